"""Programs that cannot be run here: their requests, replayed (tests/support/replay.py)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_server import LiveServer, live_server
from tests.support.replay import replay

FILES = sorted((Path(__file__).parent / "replays").glob("*.json"))


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_request_of_the_program_is_answered(server: LiveServer, file: Path) -> None:
    replay(file, server.url)
