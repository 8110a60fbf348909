"""`vivavoce say`: playing, piping, and reading text while it is written."""

import argparse
import io
import os
import subprocess
import sys
import types
from collections.abc import Iterator

import pytest
from vivavoce_client.__main__ import main
from vivavoce_client.say import add_say_arguments, speech_options

from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import pcm_of
from tests.support.waiting import HUNG_S


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    with live_server() as running:
        monkeypatch.setenv("VIVAVOCE_URL", running.url)
        yield running


class Device(types.ModuleType):
    """Stands for the package sounddevice."""

    class PortAudioError(Exception):
        pass

    def __init__(self, works: bool) -> None:
        super().__init__("sounddevice")
        self.played = b""
        device = self

        class RawOutputStream:
            def __init__(self, **options: object) -> None:
                if not works:
                    raise Device.PortAudioError("no device")
                assert options == {"samplerate": 24000, "channels": 1, "dtype": "int16", "latency": "low"}

            def start(self) -> None: ...
            def stop(self) -> None: ...
            def close(self) -> None: ...

            def write(self, pcm: bytes) -> None:
                assert len(pcm) % 2 == 0
                device.played += pcm

        self.RawOutputStream = RawOutputStream


def test_it_plays(server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    device = Device(works=True)
    monkeypatch.setitem(sys.modules, "sounddevice", device)
    assert main(["say", "Hello.", "--seed", "5"]) == 0
    assert device.played == pcm_of(5, 6)
    report = capsys.readouterr().err
    assert report.startswith("loudspeaker: 23040 bytes, first audio after ")
    assert "0.48 s of speech, real-time factor" in report


@pytest.mark.parametrize("installed", [False, True])
def test_without_a_device_it_writes_a_file_and_says_so(
    server: LiveServer,
    installed: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path_factory.mktemp("say")
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "sounddevice", Device(works=False) if installed else None)
    assert main(["say", "Hello.", "--seed", "5"]) == 0
    assert (folder / "speech.wav").read_bytes()[44:] == pcm_of(5, 6)
    assert "writing speech.wav" in capsys.readouterr().err


def test_a_pipe_gets_a_wav_as_it_is_made(server: LiveServer) -> None:
    command = [sys.executable, "-m", "vivavoce_client", "say", "Hello.", "--seed", "5", "-o", "-"]
    ended = subprocess.run(command, capture_output=True, env={**os.environ}, timeout=60, check=True)
    assert ended.stdout[:4] == b"RIFF"
    assert ended.stdout[4:8] == ended.stdout[40:44] == b"\xff\xff\xff\xff"
    assert ended.stdout[44:] == pcm_of(5, 6)


def test_it_speaks_while_standard_input_is_still_being_written(server: LiveServer) -> None:
    command = [sys.executable, "-m", "vivavoce_client", "say", "-", "--seed", "5", "-o", "-", "--format", "pcm"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("It was Helé".encode()[:-1])  # half of a character: the pipe knows bytes alone
        process.stdin.flush()
        first = process.stdout.read(2)  # comes although the text has not ended
        rest, report = process.communicate("é there".encode()[1:], timeout=HUNG_S)
    assert first + rest == pcm_of(5, len("It was Helé there"))
    assert b"first audio after" in report


def test_lines_are_said_one_by_one(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("One\n\nThree\n"))
    assert main(["say", "-", "--lines", "--seed", "5", "-o", "-", "--format", "pcm"]) == 0
    said = capsysbinary.readouterr()
    assert said.out == pcm_of(5, 3) + pcm_of(5, 5)
    assert said.err.count(b"real-time factor") == 2


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([], {}),
        (["--normalize", "auto"], {}),
        (["--normalize", "true"], {"normalize": True}),
        (["--normalize", "false"], {"normalize": False}),
        (["--normalize", "urls, numbers"], {"normalize": ["urls", "numbers"]}),
        (["--leading-silence", "keep"], {"leading_silence": "keep"}),
    ],
)
def test_a_field_is_sent_as_the_user_gives_it(given: list[str], sent: dict[str, object]) -> None:
    parser = argparse.ArgumentParser()
    add_say_arguments(parser)
    args = parser.parse_args(["Hello.", *given])
    assert speech_options(args, "pcm") == {"response_format": "pcm", **sent}


def test_an_empty_list_of_stages_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["say", "Hello.", "--normalize", ","])
    assert "',' is not auto, true, false or a list of stages" in capsys.readouterr().err
