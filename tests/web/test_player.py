"""The playground as a player in a real browser: over plain http from another machine too, and on a phone."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from vivavoce_client import Client, SpokenWord, srt, vtt
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import ServerConfig

from tests.support.live_server import LiveServer, live_server
from tests.web.test_playground import (
    EAR_S,
    FRAME_S,
    LOUDNESS,
    LOUDNESS_OFF,
    assert_speech,
    drive,
    needs_browser,
    run_steps,
)

AFTER_S = 0.25
"""Silence behind a word in which it stays marked."""
WORDS_S = len("word " * 12) * FRAME_S - FRAME_S


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(config=ServerConfig(allowed_hosts=("another-machine.test",))) as running:
        yield running


def from_another_machine(server: LiveServer) -> str:
    """The server's address under a name that the browser resolves, and does not trust."""
    return f"http://another-machine.test:{httpx.URL(server.url).port}"


@needs_browser
@pytest.mark.parametrize("secure", [True, False])
def test_each_sample_is_heard_and_saved(server: LiveServer, tmp_path: Path, secure: bool) -> None:
    url = server.url if secure else from_another_machine(server)
    seen = drive(url, tmp_path, "playAll")["playAll"]
    samples = len("Each sample of it, without a gap.") * 1920
    assert (seen["secure"], seen["worklet"]) == (secure, secure)
    assert seen["samples"] == samples
    assert seen["gaps"] == "0"
    assert seen["sound"]["seconds"] == pytest.approx(samples / 24000, abs=EAR_S)
    assert seen["sound"]["rms"] == pytest.approx(LOUDNESS, rel=LOUDNESS_OFF)
    assert (seen["saved"], seen["dataBytes"]) == (True, 2 * samples)
    assert (seen["name"], seen["time"]) == ("Play", "0:02 / 0:02")


@needs_browser
@pytest.mark.parametrize("secure", [True, False])
def test_pause_seek_replay_and_stop(server: LiveServer, tmp_path: Path, secure: bool) -> None:
    url = server.url if secure else from_another_machine(server)
    seen = drive(url, tmp_path, "transport")["transport"]
    assert seen["before"], "there is nothing to play yet"
    assert seen["paused"] == {"silent": "suspended", "name": "Play", "stop": True}
    assert seen["heard"]["seconds"] == pytest.approx(WORDS_S, abs=EAR_S), "the pause lost or repeated something"
    assert seen["places"] == [f"{second} of 4 seconds" for second in (2, 3, 2, 0, 4, 3, 2)]
    assert seen["rest"]["seconds"] == pytest.approx(WORDS_S - 3, abs=EAR_S)
    assert seen["again"]["seconds"] == pytest.approx(WORDS_S, abs=EAR_S)
    assert seen["again"]["asked"] == 0, "the server spoke again"
    assert seen["stopped"] == {"seconds": 0, "rms": 0, "stop": False, "name": "Play"}
    assert seen["gaps"] == "0"


@needs_browser
def test_without_a_worklet_each_sample_follows_the_one_before(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(from_another_machine(server), tmp_path, "rendered")["rendered"]
    assert seen == {"name": "BufferOutput", "differ": -1, "leadSamples": 480}


@needs_browser
def test_stop_before_the_connection_is_open(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "early")["early"]
    assert seen["early"] == {"state": "Stopped", "audio": 0, "seconds": 0, "rms": 0}
    assert_speech(seen["next"], "Heard.")


@needs_browser
def test_an_utterance_that_was_stopped_can_be_played_and_saved(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "stopped")["stopped"]
    assert seen["kept"] > 0.3 * 24000
    assert seen["sent"], "the file is not what the server sent"
    assert seen["rms"] == pytest.approx(LOUDNESS, rel=LOUDNESS_OFF)
    assert server.engine.stats().running == 0


@needs_browser
def test_the_volume_holds_for_the_next_visit(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "volume")["volume"]
    assert seen["half"]["rms"] == pytest.approx(LOUDNESS / 2, rel=LOUDNESS_OFF)
    assert (seen["kept"], seen["told"]) == ("50", "50 %")


@needs_browser
def test_code_is_copied_over_plain_http_from_another_machine(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(from_another_machine(server), tmp_path, "copied")["copied"]
    assert seen == {"same": True}


@needs_browser
def test_a_text_that_is_too_long_is_called_so(server: LiveServer, tmp_path: Path) -> None:
    answer = run_steps(server.url, tmp_path, "tooLong")
    seen = answer["results"]["tooLong"]
    message = "The text has 75,000 characters. At most 65,536 are spoken at once: speak it in parts."
    assert seen["later"] == message
    assert seen["kept"] == "0:00 / 0:00", "what was spoken before can still be played"
    assert seen["first"] == {"error": message, "audio": 0}
    assert seen["closed"]
    assert not seen["warned"]
    # The browser itself notes that the reading of a long text was refused.
    assert all("400" in complaint for complaint in answer["complaints"])


@needs_browser
def test_on_a_phone(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "phone")["phone"]
    assert seen["error"] == "There is no text to speak."
    assert seen["top"] >= 0
    assert seen["bottom"] <= 640
    assert seen["small"] == []
    assert seen["overflow"] <= 0


def words_of(server: LiveServer, text: str) -> tuple[SpokenWord, ...]:
    with Client(server.url) as client, client.live("heart", word_timestamps=True) as live, live.say(text) as speech:
        assert b"".join(speech)
        return speech.words


@needs_browser
def test_the_word_that_is_heard_is_marked(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "readAlong")["readAlong"]
    text = "One 😀 “two”, three & four.\nFive!"
    assert seen["hidden"], "nothing has been spoken yet"
    assert seen["shown"] == text
    times = {word.word: (word.start_s or 0, word.end_s or 0) for word in words_of(server, text)}
    assert list(times) == ["One", "two", "three", "&", "four", "Five"]
    for marked in (seen["first"], seen["again"]):
        assert [each["word"] for each in marked if each["word"]] == list(times), "a word was not marked, or twice"
        for start_s, end_s, at in ((*times[each["word"]], each["at"]) for each in marked if each["word"]):
            assert start_s - 0.01 <= at < end_s + AFTER_S
    begun = [word for word, (start_s, end_s) in times.items() if start_s <= 1.3 < end_s + AFTER_S]
    assert seen["sought"] == begun[-1:]
    assert seen["picked"] == {"now": ["&"], "at": pytest.approx(times["&"][0], abs=0.01)}
    assert seen["paused"] == ["Five"], "the place is lost in the silence at which it was paused"
    assert seen["live"] == 0, "a screen reader would tell every word"
    assert seen["overflow"] <= 0
    assert all(height >= 44 for height in seen["heights"])


@needs_browser
def test_the_example_of_a_dialogue_is_spoken_and_its_subtitles_name_the_voices(
    server: LiveServer, tmp_path: Path
) -> None:
    seen = drive(server.url, tmp_path, "dialogue")["dialogue"]
    assert seen["first"].startswith("[voice:heart] Did you hear that? [voice:michael] I did.")
    assert seen["other"].startswith("[voice:michael] Did you hear that? [voice:heart] I did.")
    assert seen["behind"] == f"Mine.\n{seen['other']}"
    assert [line for line in seen["vtt"].splitlines() if line.startswith("<v")] == ["<v michael>Hi.", "<v heart>Ho."]


@needs_browser
def test_subtitles_can_be_saved(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "subtitles")["subtitles"]
    text = "Hello, a < b & c! And so on."
    words = words_of(server, text)
    audio_s = len(text) * FRAME_S
    assert (seen["srt"], seen["vtt"]) == (srt(words, text, (), audio_s), vtt(words, text, (), audio_s))
    assert [cue["text"] for cue in seen["cues"]] == ["Hello, a < b & c!", "And so on."]
    assert [cue["start"] for cue in seen["cues"]] == [words[0].start_s, words[6].start_s]


@needs_browser
def test_a_model_without_word_times_has_no_read_along(tmp_path: Path) -> None:
    runner = FakeRunner()
    runner.info = replace(runner.info, word_times=False)
    with live_server(Engine(runner, EngineConfig(), fake_voices())) as server:
        seen = drive(server.url, tmp_path, "withoutWords")["withoutWords"]
    assert seen == {"hidden": True, "error": False}
