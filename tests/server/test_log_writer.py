"""The log's own thread: a reader that stalls stops no request, and costs lines only past a bound."""

import io
import logging
import signal
import threading
from pathlib import Path

import httpx
from vivavoce_server.log_writer import MAX_WAITING_CHARS, LogWriter, QueuedHandler

from tests.support.server_process import serving
from tests.support.waiting import HUNG_S, wait_until

REQUESTS = 900
"""Their lines have over 64 KiB, which is what a pipe holds."""


class Stalled(io.StringIO):
    """A stream whose reader takes nothing before `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.begun = threading.Event()

    def write(self, text: str) -> int:
        self.begun.set()
        assert self.go_on.wait(HUNG_S)
        return super().write(text)


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("a.name", logging.INFO, "", 0, text, None, None)


def test_lines_are_written_in_order_to_their_streams() -> None:
    writer, one, other = LogWriter(), io.StringIO(), io.StringIO()
    handlers = QueuedHandler(writer, one), QueuedHandler(writer, other)
    for number in range(100):
        handlers[number % 2].handle(record(str(number)))
    handlers[0].flush()
    assert one.getvalue().split() == [str(number) for number in range(0, 100, 2)]
    assert other.getvalue().split() == [str(number) for number in range(1, 100, 2)]


def test_lines_past_the_bound_are_lost_and_counted() -> None:
    writer, stream = LogWriter(), Stalled()
    handler = QueuedHandler(writer, stream)
    line = "x" * (MAX_WAITING_CHARS // 8 - 1)
    for _ in range(11):
        handler.handle(record(line))
    assert not writer.flush(0.0)
    stream.go_on.set()
    assert writer.flush(HUNG_S)
    handler.handle(record("the next one"))
    handler.handle(record("another"))
    assert writer.flush(HUNG_S)
    lost = "3 lines of the log were lost, because nobody read the log"
    assert stream.getvalue().splitlines() == [*[line] * 8, lost, "the next one", "another"]


def test_a_line_longer_than_the_bound_is_written() -> None:
    writer, stream = LogWriter(), io.StringIO()
    assert writer.put(stream, "y" * (MAX_WAITING_CHARS + 1))
    assert writer.flush(HUNG_S)
    assert len(stream.getvalue()) == MAX_WAITING_CHARS + 1


def test_a_closed_stream_loses_its_own_lines_alone() -> None:
    writer, closed, stream = LogWriter(), io.StringIO(), io.StringIO()
    closed.close()
    assert writer.put(closed, "nobody hears this\n")
    assert writer.put(stream, "but this\n")
    assert writer.flush(HUNG_S)
    assert stream.getvalue() == "but this\n"


def test_a_server_whose_log_nobody_reads_goes_on_and_ends(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "fake") as (process, url), httpx.Client(base_url=url, timeout=HUNG_S) as client:
        for number in range(REQUESTS):
            assert client.get(f"/no/such/page/{number:0100}").status_code == 404
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.poll() is not None, HUNG_S)
        assert process.returncode == 0
        assert process.stderr is not None
        assert "/no/such/page/" in process.stderr.read()
