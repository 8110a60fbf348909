"""Isolation of every test from the developer's own files."""

import os
from collections.abc import Iterator

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG

from tests.support.programs import skip_without_programs
from tests.support.waiting import HUNG_S


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures, which start the programs."""
    skip_without_programs(item)


@pytest.fixture(scope="session", autouse=True)
def _own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers that tests start store no voices among the developer's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _patient_requests() -> None:
    """Lets requests without a timeout of their own wait as long as any other wait of a test.

    httpx gives up after 5 s by default, which a busy machine can take to start the process that reads a recording.
    """
    for phase in ("connect", "read", "write", "pool"):
        setattr(DEFAULT_TIMEOUT_CONFIG, phase, HUNG_S)
