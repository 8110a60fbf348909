"""Isolation of every test from the developer's own files."""

import os
from collections.abc import Iterator

import pytest

from tests.support.programs import skip_without_programs


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
