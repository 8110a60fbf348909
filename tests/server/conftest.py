from collections.abc import Iterator

import pytest

from tests.server.live import LiveServer, live_server


@pytest.fixture
def server() -> Iterator[LiveServer]:
    """A server with a fake engine and default settings."""
    with live_server() as running:
        yield running
