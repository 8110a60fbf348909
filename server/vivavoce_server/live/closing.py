"""Reasons for closing a live connection, and their messages to the client."""

from enum import Enum

from vivavoce_server.errors import BUG_DETAIL, INVALID_REQUEST, ErrorDetail


class Code(int, Enum):
    """Reasons for closing, as WebSocket close codes."""

    NORMAL = 1000
    PROTOCOL = 1002
    POLICY = 1008
    TOO_LARGE = 1009
    FAILURE = 1011
    TRY_AGAIN_LATER = 1013


class Closing(Exception):
    """Closes the connection. `detail` tells the client why; None if the client knows."""

    def __init__(self, code: Code, detail: ErrorDetail | None = None) -> None:
        super().__init__(detail.message if detail else code.name)
        self.code = code
        self.detail = detail


def fault(message: str, code: str, param: str | None = None) -> ErrorDetail:
    """A client's error, with OpenAI's four keys."""
    return ErrorDetail(message=message, type=INVALID_REQUEST, param=param, code=code)


BUG = Closing(Code.FAILURE, BUG_DETAIL)
