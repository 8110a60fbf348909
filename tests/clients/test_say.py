"""`vivavoce say`: playing, piping, and reading text while it is written."""

import argparse
import io
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from vivavoce_client import Client, say
from vivavoce_client.__main__ import main
from vivavoce_client.say import add_say_arguments, speech_options
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices

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


def test_a_line_that_cannot_be_spoken_is_passed_over(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("One\n---\n[voice:heart] ...\nThree\n"))
    assert main(["say", "-", "--lines", "--seed", "5", "-o", "-", "--format", "pcm"]) == 0
    said = capsysbinary.readouterr()
    assert said.out == pcm_of(5, 3) + pcm_of(5, 5)
    assert said.err.count(b"the line is passed over") == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("---\n"))
    assert main(["say", "-", "-o", "-", "--format", "pcm"]) == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO("One\nTwo\n"))
    assert main(["say", "-", "--lines", "--voice", "nobody", "-o", "-", "--format", "pcm"]) == 1


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([], {}),
        (["--normalize", "auto"], {}),
        (["--normalize", "true"], {"normalize": True}),
        (["--normalize", "false"], {"normalize": False}),
        (["--normalize", "urls, numbers"], {"normalize": ["urls", "numbers"]}),
        (["--leading-silence", "keep"], {"leading_silence": "keep"}),
        (["--turn-pause", "0.5"], {"turn_pause_s": 0.5}),
        (["--vtt", "a.vtt"], {"word_timestamps": True}),
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


# ---- times of words -----------------------------------------------------------------------------------------------

SAID = "Hello there, you. And so on!"
SRT = "1\n00:00:00,000 --> 00:00:01,360\nHello there, you.\n\n2\n00:00:01,440 --> 00:00:02,240\nAnd so on!\n\n"


def test_it_writes_subtitles_beside_the_speech(server: LiveServer, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.mp3", "a.srt", "a.vtt", "a.json")]
    options = [str(word) for pair in zip(("-o", "--srt", "--vtt", "--words"), files, strict=True) for word in pair]
    assert main(["say", SAID, *options]) == 0
    assert files[0].stat().st_size > 1000
    assert files[1].read_text(encoding="utf-8") == SRT
    assert (
        files[2].read_text(encoding="utf-8").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.360\nHello <00:00:00.480>")
    )
    told = json.loads(files[3].read_text(encoding="utf-8"))
    assert told["text"] == SAID
    assert told["words"][1] == {"word": "there", "start": 0.48, "end": 0.96, "text_start": 6, "text_end": 11}


def test_subtitles_go_to_standard_output_once(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "a.wav")
    assert main(["say", SAID, "-o", output, "--srt", "-"]) == 0
    assert capsys.readouterr().out == SRT
    for taken in (["-o", "-", "--srt", "-"], ["-o", output, "--srt", "-", "--vtt", "-"]):
        assert main(["say", SAID, *taken]) == 1
        told = capsys.readouterr()
        assert told.out == ""
        assert "only one of -o, --srt, --vtt and --words can go to standard output" in told.err


def test_two_files_of_one_name_are_refused_before_anything_is_spoken(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, same = str(tmp_path / "a.wav"), str(tmp_path / "." / "a.wav")
    for taken in (["-o", output, "--srt", same], ["-o", output, "--words", f"{output}.x", "--vtt", f"{output}.x"]):
        assert main(["say", SAID, *taken]) == 1
        assert "two of -o, --srt, --vtt and --words name one file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_subtitles_of_lines_of_standard_input_go_on(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello there, you.\nAnd so on!\n"))
    files = [tmp_path / name for name in ("a.wav", "a.srt", "a.json")]
    options = ["-o", str(files[0]), "--srt", str(files[1]), "--words", str(files[2])]
    assert main(["say", "-", "--lines", *options]) == 0
    assert [line for line in files[1].read_text(encoding="utf-8").splitlines() if line[:1].isalpha()] == [
        "Hello there, you.",
        "And so on!",
    ]
    told = json.loads(files[2].read_text(encoding="utf-8"))
    assert all(told["text"][word["text_start"] : word["text_end"]] == word["word"] for word in told["words"])
    first = len("Hello there, you.") * FAKE_INFO.frame_s
    assert first <= told["words"][3]["start"] == pytest.approx(first, abs=2 * FAKE_INFO.frame_s)


def test_times_of_later_lines_are_rounded_and_turns_of_piped_text_have_their_voices(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = "Good morning.\nDid it land here? [voice:michael] It did land.\nSo it goes on.\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    files = [tmp_path / name for name in ("a.wav", "a.vtt", "a.json")]
    options = ["-o", str(files[0]), "--vtt", str(files[1]), "--words", str(files[2])]
    assert main(["say", "-", "--lines", *options]) == 0
    cues = [re.sub(r"<[\d:.]+>", "", cue) for cue in files[1].read_text(encoding="utf-8").splitlines()[3::3]]
    assert cues == ["Good morning.", "<v heart>Did it land here?", "<v michael>It did land.", "So it goes on."]
    times = [word[name] for word in json.loads(files[2].read_text())["words"] for name in ("start", "end")]
    assert times == [round(time, 3) for time in times]
    assert times[4] == pytest.approx(13 * FAKE_INFO.frame_s, abs=0.001)


def test_a_model_without_word_times_is_told_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = FakeRunner()
    runner.info = replace(runner.info, word_times=False)
    with live_server(Engine(runner, EngineConfig(), fake_voices())) as server:
        monkeypatch.setenv("VIVAVOCE_URL", server.url)
        assert main(["say", SAID, "-o", str(tmp_path / "a.wav"), "--srt", str(tmp_path / "a.srt")]) == 1
    assert "word" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_sends_no_word_times_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = b'data: {"type": "speech.audio.done"}\n\n'
    transport = httpx.MockTransport(
        lambda request: httpx.Response(200, headers={"content-type": "text/event-stream"}, content=done)
    )
    monkeypatch.setattr(say, "connect", lambda args: Client("http://server", transport=transport))
    options = ["--voice", "heart", "-o", str(tmp_path / "a.mp3"), "--srt", str(tmp_path / "a.srt")]
    assert main(["say", SAID, *options]) == 1
    assert "the server sent no times of words" in capsys.readouterr().err
    assert not (tmp_path / "a.srt").exists()


def test_speech_that_breaks_off_keeps_the_subtitles_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word = {"word": "Hello", "start": 0, "end": 1.5, "text_start": 0, "text_end": 5}
    event = json.dumps({"type": "speech.audio.words", "words": [word]}).encode()
    transport = httpx.MockTransport(
        lambda request: httpx.Response(
            200, headers={"content-type": "text/event-stream"}, content=b"data: " + event + b"\n\n"
        )
    )
    monkeypatch.setattr(say, "connect", lambda args: Client("http://server", transport=transport))
    options = ["--voice", "heart", "-o", str(tmp_path / "a.mp3"), "--srt", str(tmp_path / "a.srt")]
    assert main(["say", SAID, *options]) == 1
    assert (tmp_path / "a.srt").read_text(encoding="utf-8") == "1\n00:00:00,000 --> 00:00:01,500\nHello\n\n"


@pytest.mark.parametrize("path", ["missing/a.srt", "."])
def test_a_path_that_cannot_be_written_is_told_before_anything_is_spoken(
    server: LiveServer, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["say", SAID, "-o", "a.wav", "--srt", path]) == 1
    assert f"--srt {path} cannot be written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("status", "is_told"), [(404, False), (405, False), (500, True)])
def test_a_server_without_a_list_of_voices_speaks_with_openais_first(
    status: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(status, text="no list")
        asked.append(json.loads(request.content)["voice"])
        return httpx.Response(200, headers={"content-type": "audio/pcm"}, stream=httpx.ByteStream(bytes(480)))

    monkeypatch.setattr(say, "connect", lambda args: Client("http://server", transport=httpx.MockTransport(answer)))
    assert main(["say", SAID, "-o", str(tmp_path / "a.wav")]) == int(is_told)
    assert asked == ([] if is_told else ["alloy"])


# ---- dialogue -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["not JSON", "{}", '["Hello."]', '[{"voice": "heart"}]'])
def test_a_file_that_is_no_dialogue_is_told(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "talk.json").write_text(content, encoding="utf-8")
    assert main(["say", "--segments", str(tmp_path / "talk.json"), "--url", "http://127.0.0.1:1"]) == 1
    told = capsys.readouterr().err
    assert "talk.json is not JSON" in told or "talk.json is no list of segments such as" in told


def test_a_text_and_a_dialogue_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["say", "Hello.", "--segments", "talk.json"])
    assert "not allowed with" in capsys.readouterr().err
