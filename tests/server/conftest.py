from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_server import LiveServer, live_server
from tests.support.tiny_checkpoints import write_checkpoint


@pytest.fixture
def server() -> Iterator[LiveServer]:
    """A server with a fake engine and default settings."""
    with live_server() as running:
        yield running


@pytest.fixture(scope="session")
def base_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random checkpoint that clones; to read, not to change."""
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "base", "tiny", "base")
