"""Responses that break off."""

import httpx
import pytest

BROKEN = r"incomplete chunked read"


def broken_text(response: httpx.Response) -> str:
    """The text of a streamed response up to its break."""
    received = b""
    with pytest.raises(httpx.RemoteProtocolError, match=BROKEN):  # noqa: PT012 (the text comes before the break)
        for piece in response.iter_bytes():
            received += piece
    return received.decode(errors="replace")


async def broken_text_of(response: httpx.Response) -> str:
    """The same for an AsyncClient's response."""
    received = b""
    with pytest.raises(httpx.RemoteProtocolError, match=BROKEN):  # noqa: PT012 (the text comes before the break)
        async for piece in response.aiter_bytes():
            received += piece
    return received.decode(errors="replace")
