"""`vivavoce batch` over a real socket: files, what is said again, and what is refused."""

import asyncio
import errno
import io
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import types
import wave
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from vivavoce_client import AsyncClient, Client
from vivavoce_client.__main__ import main
from vivavoce_client.batch import running, speaking
from vivavoce_client.batch.job import JOB_FILE, Job

from tests.clients.batch.folders import content_of
from tests.support.live_server import LiveServer, fake_engine, live_server
from tests.support.live_socket import pcm_of
from tests.support.waiting import HUNG_S, wait_until

TABLE = "text,voice,seed\nHello there.,heart,5\nAnd so on!,michael,6\nBye.,,\n"
BOOK = "# One\n\nIt rained.\n\n# Two\n\nIt shone.\n"


@pytest.fixture(scope="module")
def shared() -> Iterator[LiveServer]:
    with live_server() as server:
        yield server


@pytest.fixture
def server(shared: LiveServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LiveServer:
    monkeypatch.setenv("VIVAVOCE_URL", shared.url)
    monkeypatch.chdir(tmp_path)
    return shared


def batch(name: str, content: str, *options: str) -> int:
    """Runs a job of a file in the folder of the test, into `out`."""
    Path(name).write_text(content, encoding="utf-8")
    return main(["batch", name, "--out", "out", *options])


def pcm_in(path: str) -> bytes:
    with wave.open(path) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24000)
        pcm: bytes = file.readframes(file.getnframes())
        return pcm


def silence(seconds: float) -> bytes:
    return bytes(round(seconds * 24000) * 2)


def test_each_line_is_a_numbered_file_with_its_own_fields(
    server: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch("lines.csv", TABLE, "--seed", "7", "--streams", "1") == 0
    assert sorted(content_of(Path("out"))) == ["0001.wav", "0002.wav", "0003.wav"]
    assert pcm_in("out/0001.wav") == pcm_of(5, len("Hello there."))
    assert pcm_in("out/0002.wav") == pcm_of(6, len("And so on!"))
    assert pcm_in("out/0003.wav") == pcm_of(7, len("Bye."))
    assert capsys.readouterr().err.splitlines() == [
        "0001 [1 of 3]: lines.csv, line 2",
        "0002 [2 of 3]: lines.csv, line 3",
        "0003 [3 of 3]: lines.csv, line 4",
    ]


@pytest.mark.parametrize(
    ("audio_format", "magic"), [("mp3", b"\xff\xfb"), ("flac", b"fLaC"), ("opus", b"OggS"), ("pcm", b"")]
)
def test_other_formats_are_the_files_that_the_server_sends(server: LiveServer, audio_format: str, magic: bytes) -> None:
    assert batch("lines.txt", "Hello.\n", "--format", audio_format, "--seed", "5") == 0
    ((name, content),) = content_of(Path("out")).items()
    assert name == f"0001.{audio_format}"
    assert content.startswith(magic)
    assert len(content) > 500
    if audio_format == "pcm":
        assert content == pcm_of(5, len("Hello."))


def test_a_job_without_a_server_starts_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIVAVOCE_URL", raising=False)
    assert batch("lines.txt", "Hello.\n", "--model", "fake", "--seed", "5") == 0
    assert pcm_in("out/0001.wav") == pcm_of(5, len("Hello."))


def test_a_finished_job_needs_no_server(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert batch("lines.txt", "Hello.\nBye.\n", "--join", "--srt") == 0
    before = content_of(Path("out"))
    monkeypatch.setattr(running, "server_url", lambda args: pytest.fail("a server was looked for"))
    assert batch("lines.txt", "Hello.\nBye.\n", "--join", "--srt") == 0
    assert content_of(Path("out")) == before


def test_a_chapter_is_a_file_with_pauses_between_its_pieces(server: LiveServer) -> None:
    assert batch("book.md", BOOK, "--seed", "5", "--pause", "0.25", "--join") == 0
    assert sorted(content_of(Path("out"))) == ["01-one.wav", "02-two.wav", "whole.chapters.txt", "whole.wav"]
    one = pcm_of(5, len("One.")) + silence(0.25) + pcm_of(5, len("It rained."))
    two = pcm_of(5, len("Two.")) + silence(0.25) + pcm_of(5, len("It shone."))
    assert pcm_in("out/01-one.wav") == one
    assert pcm_in("out/whole.wav") == one + silence(0.25) + two
    marks = [
        line
        for line in Path("out/whole.chapters.txt").read_text().splitlines()
        if line.startswith(("START", "END", "t"))
    ]
    begins = (len(one) + len(silence(0.25))) // 2
    assert marks == [
        *("START=0", f"END={len(one) // 2}", "title=One"),
        *(f"START={begins}", f"END={begins + len(two) // 2}", "title=Two"),
    ]


def test_a_voice_may_be_named_as_by_openais_clients(server: LiveServer) -> None:
    rows = '{"text": "One.", "voice": {"id": "heart"}}\n{"text": "Two.", "voice": "michael"}\n'
    assert batch("lines.jsonl", rows, "--vtt") == 0
    assert [line for line in Path("out/whole.vtt").read_text().splitlines() if line.startswith("<v")] == [
        "<v heart>One.",
        "<v michael>Two.",
    ]


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--speed", "nan"], 2, "'nan' is not a number"),
        (["--speed", "1e999"], 2, "'1e999' is not a number"),
        (["--instructions", "calm\udcff"], 1, "a text cannot be written as utf-8"),
    ],
)
def test_what_json_cannot_send_is_refused_in_one_line(
    server: LiveServer, capsys: pytest.CaptureFixture[str], options: list[str], status: int, message: str
) -> None:
    for arguments in (["batch", "lines.txt", "--out", "out"], ["say", "--output", "a.wav", "Hello."]):
        Path("lines.txt").write_text("Hello.")
        try:
            found = main([*arguments, *options])
        except SystemExit as end:
            found = int(end.code or 0)
        assert found == status
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_lines_of_subtitles_begin_at_their_cues_or_behind_the_line_before(server: LiveServer) -> None:
    cues = "1\n00:00:01,000 --> 00:00:02,000\nHello there.\n\n2\n00:00:01,100 --> 00:00:02,000\nOn.\n\n"
    cues += "3\n00:00:05,000 --> 00:00:06,000\nLate.\n"
    assert batch("film.srt", cues, "--seed", "5", "--join", "--srt", "--pause", "9") == 0
    hello, on, late = (pcm_of(5, len(text)) for text in ("Hello there.", "On.", "Late."))
    start = silence(1) + hello + on
    assert pcm_in("out/whole.wav") == start + silence(5)[len(start) :] + late
    times = [line for line in Path("out/whole.srt").read_text().splitlines() if "-->" in line]
    assert times == [
        "00:00:01,000 --> 00:00:01,960",
        "00:00:01,960 --> 00:00:02,960",
        "00:00:05,000 --> 00:00:05,400",
    ]


# ---- changes ------------------------------------------------------------------------------------------------------


def lines_said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are asked for from now on."""
    said: list[str] = []
    ask = speaking.Asking._speak

    async def told(self: speaking.Asking, part: Any) -> Any:
        said.append(part.line.text)
        return await ask(self, part)

    monkeypatch.setattr(speaking.Asking, "_speak", told)
    return said


def test_a_changed_source_is_noticed_and_nothing_is_touched(
    server: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch("lines.txt", "One.\nTwo.\nThree.\n", "--seed", "5") == 0
    before = content_of(Path("out"))
    assert batch("lines.txt", "One.\nToo.\nThree.\n", "--seed", "5") == 1
    told = capsys.readouterr().err
    assert (
        "1 of 3 requests are new (the first is lines.txt, line 2), 1 are gone, and 1 files would go. --changed" in told
    )
    assert batch("lines.txt", "One.\nTwo.\nThree.\n", "--seed", "6") == 1
    assert "3 of 3 requests are new" in capsys.readouterr().err
    assert batch("lines.txt", "Two.\nOne.\nThree.\n", "--seed", "5") == 1
    assert "0 of 3 requests are new, 0 are gone, and 0 files would go" in capsys.readouterr().err
    assert content_of(Path("out")) == before


@pytest.mark.parametrize(
    ("changed", "new"),
    [
        ("Zero.\nOne.\nTwo.\nThree.\nFour.\n", ["Zero."]),
        ("Four.\nThree.\nTwo.\nOne.\n", []),
        ("Three.\n", []),
        ("One.\nOne.\nOne, and more.\nFour.\n", ["One.", "One, and more."]),
    ],
)
def test_after_a_change_only_what_is_new_is_said(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, changed: str, new: list[str]
) -> None:
    options = ("--seed", "5", "--join", "--vtt", "--words")
    assert batch("lines.txt", changed, *options) == 0
    expected = content_of(Path("out"))
    Path("out").rename("expected")
    assert batch("lines.txt", "One.\nTwo.\nThree.\nFour.\n", *options) == 0
    said = lines_said(monkeypatch)
    assert batch("lines.txt", changed, *options, "--changed") == 0
    assert sorted(said) == sorted(new)
    assert content_of(Path("out")) == expected
    assert batch("lines.txt", changed, *options) == 0
    assert len(said) == len(new)


def test_after_a_change_of_a_book_other_chapters_stay_and_stale_files_go(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert batch("book.md", BOOK, "--srt", "--seed", "5") == 0
    said = lines_said(monkeypatch)
    assert batch("book.md", BOOK.replace("# Two", "# 2nd"), "--seed", "5", "--changed") == 0
    assert sorted(said) == ["2nd.", "It shone."]
    assert sorted(content_of(Path("out"))) == ["01-one.srt", "01-one.wav", "02-2nd.wav"]


@pytest.mark.parametrize("options", [["--pause", "1"], ["--format", "pcm"], ["--depth", "2"], ["--words"]])
def test_options_that_would_change_the_files_are_noticed(
    server: LiveServer, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    book = BOOK.replace("It shone.", "It shone.\n\n## Three\n\nIt froze.")
    assert batch("book.md", book, "--seed", "5") == 0
    before = content_of(Path("out"))
    assert batch("book.md", book, "--seed", "5", *options) == 1
    assert "this is not the job that out holds" in capsys.readouterr().err
    assert content_of(Path("out")) == before
    assert batch("book.md", book, "--seed", "5", *options, "--changed") == 0
    after = content_of(Path("out"))
    Path("out").rename("old")
    assert batch("book.md", book, "--seed", "5", *options) == 0
    assert content_of(Path("out")) == after


def test_before_anything_is_said_a_job_may_change(server: LiveServer) -> None:
    assert batch("lines.txt", "One.\n", "--voice", "nobody") == 1
    assert batch("lines.txt", "Two.\n", "--voice", "heart", "--seed", "5") == 0
    assert pcm_in("out/0001.wav") == pcm_of(5, len("Two."))


def test_a_whole_that_is_no_longer_true_is_removed(server: LiveServer) -> None:
    assert batch("book.md", BOOK, "--join", "--srt") == 0
    Path("out/01-one.wav").unlink()
    assert batch("book.md", BOOK) == 0
    assert sorted(content_of(Path("out"))) == ["01-one.wav", "02-two.srt", "02-two.wav"]


@pytest.mark.parametrize("harm", ["cut", "changed", "gone"])
def test_a_file_that_is_not_as_it_was_made_is_made_again(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    assert batch("lines.txt", "One.\nTwo.\n", "--seed", "5") == 0
    before = content_of(Path("out"))
    path = Path("out/0002.wav")
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(before["0002.wav"][:-1] + (b"x" if harm == "changed" else b""))
    said = lines_said(monkeypatch)
    assert batch("lines.txt", "One.\nTwo.\n", "--seed", "5") == 0
    assert said == ["Two."]
    assert content_of(Path("out")) == before


# ---- refusals -----------------------------------------------------------------------------------------------------


def test_a_line_that_cannot_be_said_is_told_and_does_not_stop_the_others(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = "text,voice\nOne.,\n---,\nThree.,nobody\nFour.,\n"
    assert batch("lines.csv", table, "--join", "--srt", "--seed", "5", "--pause", "0") == 1
    told = capsys.readouterr().err
    assert "2 of 4 lines were refused:" in told
    assert "lines.csv, line 3: " in told
    assert "lines.csv, line 4: there is no voice 'nobody'" in told
    assert sorted(content_of(Path("out"))) == ["0001.wav", "0004.wav", "whole.srt", "whole.wav"]
    assert pcm_in("out/whole.wav") == pcm_of(5, len("One.")) + pcm_of(5, len("Four."))
    said = lines_said(monkeypatch)
    assert batch("lines.csv", table, "--seed", "5") == 1
    assert said == ["---", "Three."], "a server may have changed its mind"


def test_what_concerns_all_lines_ends_the_job(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("lines.txt", "One.\nTwo.\n", "--voice", "nobody") == 1
    told = capsys.readouterr().err
    assert "there is no voice 'nobody'" in told
    assert "0 of 2 lines are done; the same command goes on from there" in told
    assert content_of(Path("out")) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "mp3", "--join"], "--join needs --format wav or pcm: files in mp3 cannot be joined"),
        (["--format", "mp3", "--srt", "--words"], "--srt and --words needs --format wav or pcm"),
    ],
)
def test_what_cannot_be_joined_is_refused_before_anything_is_said(
    server: LiveServer, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert batch("lines.txt", "One.\n", *options) == 1
    assert message in capsys.readouterr().err
    assert batch("book.md", BOOK, "--format", "opus") == 1
    assert "a book, whose chapters are joined from pieces, needs --format wav or pcm" in capsys.readouterr().err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--streams", "0"], "0 is not a number from 1 to 100"),
        (["--streams", "many"], "many is not a number from 1 to 100"),
        (["--depth", "-1"], "-1 is not a number from 1 to 100"),
        (["--pause", "nan"], "nan is not a number of seconds"),
        (["--patience", "soon"], "soon is not a number of seconds"),
        (["--format", "doc"], "there is no choice 'doc'"),
    ],
)
def test_a_wrong_option_is_told(capsys: pytest.CaptureFixture[str], option: list[str], message: str) -> None:
    with pytest.raises(SystemExit):
        main(["batch", "lines.txt", "--out", "out", *option])
    assert message in capsys.readouterr().err


def test_a_folder_that_is_not_the_jobs_is_left_alone(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    Path("out/0001.wav").write_bytes(b"mine")
    assert batch("lines.txt", "One.\n") == 1
    assert "out has files and no job; a new job begins in a folder of its own" in capsys.readouterr().err
    assert content_of(Path("out")) == {"0001.wav": b"mine"}
    (Path("out") / JOB_FILE).write_bytes(b"no database, but long enough to be taken for one" * 100)
    assert batch("lines.txt", "One.\n") == 1
    assert "is no job file" in capsys.readouterr().err
    Path("file").write_bytes(b"")
    assert main(["batch", "lines.txt", "--out", "file"]) == 1
    assert "file cannot be used" in capsys.readouterr().err


def test_a_job_of_another_version_is_told(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("lines.txt", "One.\n") == 0
    with sqlite3.connect(f"out/{JOB_FILE}") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    assert batch("lines.txt", "One.\n") == 1
    assert "is of another version of this program" in capsys.readouterr().err


def test_two_processes_do_not_work_at_one_job(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("lines.txt", "One.\n") == 0
    with Job(Path("out")):
        assert batch("lines.txt", "One.\n") == 1
    assert "another process works at this job" in capsys.readouterr().err


# ---- servers that are busy, away, or of another kind --------------------------------------------------------------

PCM = b"\1\0" * 2400


class Other:
    """A server that is not ours: answers come from a list, and then are speech."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.waits_s: list[float] = []
        self.asked: list[dict[str, Any]] = []

        async def sleep(seconds: float) -> None:
            self.waits_s.append(seconds)

        # Servers of other tests in this process have the true one.
        own = types.SimpleNamespace(sleep=sleep, TaskGroup=asyncio.TaskGroup)
        monkeypatch.setattr(speaking, "asyncio", own)
        transport = httpx.MockTransport(self._answer)
        monkeypatch.setattr(running, "AsyncClient", partial(AsyncClient, transport=transport))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content))
        answer = self.answers.pop(0) if self.answers else sound(PCM)
        if isinstance(answer, Exception):
            raise answer
        return answer


OPTIONS = ("--url", "http://server", "--voice", "v", "--streams", "1")


def sound(pcm: bytes) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "audio/pcm"}, stream=httpx.ByteStream(pcm))


def busy(status: int, retry_after: str | None = None) -> httpx.Response:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return httpx.Response(status, headers=headers, json={"error": {"message": "Busy", "param": None, "code": None}})


@pytest.mark.parametrize(
    ("answers", "waits_s"),
    [
        ([busy(429, "7"), busy(503, "1")], [7, 1]),
        ([busy(429), busy(503), busy(502), busy(504)], [0.5, 1, 2, 4]),
        ([busy(503, "Wed, 21 Oct 2026 07:28:00 GMT")], [0.5]),
        ([httpx.ConnectError("refused")] * 9, [0.5, 1, 2, 4, 8, 16, 30, 30, 30]),
        ([httpx.ReadError("reset"), busy(500)], [0.5, 1]),
        ([sound(b"")], [0.5]),
        ([sound(PCM[:-1])], [0.5]),
    ],
)
def test_a_line_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: list[Any], waits_s: list[float]
) -> None:
    monkeypatch.chdir(tmp_path)
    other = Other(monkeypatch, *answers)
    assert batch("lines.txt", "One.\nTwo.\n", *OPTIONS) == 0
    assert other.waits_s == waits_s
    assert pcm_in("out/0001.wav") == pcm_in("out/0002.wav") == PCM
    assert [body["input"] for body in other.asked] == ["One."] * (len(answers) + 1) + ["Two."]
    assert other.asked[0] == {"response_format": "pcm", "input": "One.", "voice": "v"}


@pytest.mark.parametrize(
    ("answers", "patience", "message"),
    [
        ([busy(429, "7"), busy(429, "7")], "10", "lines.txt, line 2 could not be spoken: Busy"),
        ([httpx.ConnectError("refused")] * 9, "10", "no server answers: refused"),
        ([httpx.ReadError("reset")] * 3, "600", "the connection broke: reset"),
        ([busy(500)] * 3, "600", "lines.txt, line 2 could not be spoken: Busy"),
        ([busy(401)], "600", "Busy"),
    ],
)
def test_patience_has_an_end_and_what_is_done_is_kept(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answers: list[Any],
    patience: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    said = sound(PCM)
    other = Other(monkeypatch, said, *answers)
    assert batch("lines.txt", "One.\nTwo.\n", *OPTIONS, "--patience", patience) == 1
    told = capsys.readouterr().err
    assert message in told
    assert "1 of 2 lines are done; the same command goes on from there" in told
    assert list(content_of(Path("out"))) == ["0001.wav"]
    other.answers.clear()
    asked = len(other.asked)
    assert batch("lines.txt", "One.\nTwo.\n", *OPTIONS) == 0
    assert [body["input"] for body in other.asked[asked:]] == ["Two."]


def test_a_server_without_a_list_of_voices_speaks_with_openais_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    other = Other(monkeypatch)
    client: Callable[..., Any] = partial(
        Client, transport=httpx.MockTransport(lambda request: httpx.Response(404, text="Not Found"))
    )
    monkeypatch.setattr(running, "Client", client)
    assert batch("lines.txt", "One.\n", "--url", "http://server", "--model", "tts-1") == 0
    assert other.asked == [{"response_format": "pcm", "input": "One.", "voice": "alloy", "model": "tts-1"}]


def test_the_voice_that_a_job_began_with_stays(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert batch("lines.txt", "One.\n", "--seed", "5") == 0
    monkeypatch.setattr(running, "default_voice", lambda client: "michael")
    assert batch("lines.txt", "One.\n", "--seed", "5") == 0
    assert batch("lines.txt", "One.\n", "--seed", "5", "--voice", "heart") == 0


# ---- this machine -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [1, 2, 4, 7])
def test_a_full_disk_is_told_and_the_job_goes_on_once_there_is_room(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: int
) -> None:
    assert batch("lines.txt", "One.\nTwo.\nThree.\n", "--seed", "5", "--join") == 0
    Path("out").rename("expected")
    replace, calls = os.replace, itertools.count(1)

    def full(source: Path, target: Path) -> None:
        if next(calls) >= call:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert batch("lines.txt", "One.\nTwo.\nThree.\n", "--seed", "5", "--join") == 1
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert batch("lines.txt", "One.\nTwo.\nThree.\n", "--seed", "5", "--join") == 0
    assert content_of(Path("out")) == content_of(Path("expected"))


INTERRUPTIBLE = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from vivavoce_client.__main__ import main
sys.exit(main())
"""
"""The command line where SIGINT interrupts it, which a shell's job in the background would ignore."""


def test_a_signal_ends_the_job_and_tells_its_state(tmp_path: Path) -> None:
    source = tmp_path / "lines.txt"
    source.write_text("One.\n" + "This is a long line. " * 100 + "\n")
    with live_server(fake_engine(step_s=0.005)) as slow:
        command = ["batch", str(source), "--out", str(tmp_path / "out"), "--url", slow.url, "--streams", "1"]
        with subprocess.Popen([sys.executable, "-c", INTERRUPTIBLE, *command], stderr=subprocess.PIPE) as process:
            wait_until(lambda: (tmp_path / "out/0001.wav").exists() or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=HUNG_S)
    assert process.returncode == 1
    assert b"1 of 2 lines are done; the same command goes on from there" in told
    assert b"Traceback" not in told


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("has_bar", [True, False])
def test_a_terminal_shows_a_bar(server: LiveServer, monkeypatch: pytest.MonkeyPatch, has_bar: bool) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    if not has_bar:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    assert batch("lines.txt", "One.\n---\n") == 1
    shown = terminal.getvalue()
    assert ("2/2" in shown) == has_bar
    assert ("[2 of 2]" in shown) != has_bar
    assert "1 of 2 lines were refused" in shown


def test_a_book_without_its_readers_names_the_extra(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    assert batch("book.md", BOOK) == 2
    assert "pip install 'vivavoce-speech[batch]'" in capsys.readouterr().err
    assert not Path("out").exists()
