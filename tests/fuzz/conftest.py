import pytest

from tests.support.fuzzing import INPUTS, table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if INPUTS:
        terminalreporter.write_line(f"\n{table()}")
