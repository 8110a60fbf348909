"""Files that a command line names."""

import json
from pathlib import Path
from typing import Any

from vivavoce_client.protocol import VivavoceError


class BadFile(VivavoceError):
    """A file named on the command line cannot be read."""


def read_file(path: str) -> bytes:
    """Raises BadFile."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error}") from error


def read_json(path: str) -> Any:  # noqa: ANN401 (any JSON)
    """Raises BadFile."""
    try:
        return json.loads(read_file(path))
    except ValueError as error:
        raise BadFile(f"{path} is not JSON: {error}") from error
