"""Times of words over HTTP: in events, headers, batches, and in the objects of ElevenLabs and Kokoro-FastAPI."""

import base64
import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices
from vivavoce_server import ServerConfig
from vivavoce_server.audio import AudioOptions
from vivavoce_server.formats import FORMATS, FormatName

from tests.server.test_sse import events
from tests.support.decoding import heard_by_ffmpeg
from tests.support.live_server import LiveServer, live_server

SPEECH, ELEVENLABS, CAPTIONED = "/v1/audio/speech", "/v1/text-to-speech/heart", "/dev/captioned_speech"
RATE, FRAME_S = 24000, 0.08
TEXT = "Hello, it costs $5.50 here. [pause:500ms] Bye now."
WORDS = ["Hello", "it", "costs", "$5.50", "here", "Bye", "now"]
BODY: dict[str, Any] = {
    "input": TEXT,
    "voice": "heart",
    "seed": 7,
    "response_format": "pcm",
    "normalize": True,
    "word_timestamps": True,
}
Words = list[dict[str, Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@pytest.fixture(scope="module")
def without_times() -> Iterator[LiveServer]:
    info = replace(FAKE_INFO, word_times=False)
    engine = Engine(FakeRunner(info), EngineConfig(), fake_voices(info=info), "fake")
    with live_server(engine) as running:
        yield running


def post(server: LiveServer, path: str = SPEECH, **fields: Any) -> httpx.Response:
    body = {name: value for name, value in {**BODY, **fields}.items() if value is not None}
    return httpx.post(server.url + path, json=body, timeout=60)


def spoken_words(server: LiveServer, **fields: Any) -> tuple[Words, bytes]:
    """All words of an answer in events, and its file. The events are checked on the way."""
    response = post(server, stream_format="sse", **fields)
    assert response.status_code == 200, response.text
    *middle, (last, done) = events(response.text)
    assert last == "speech.audio.done"
    file, words = b"", []
    for name, data in middle:
        if name == "speech.audio.words":
            words += data["words"]
        else:
            assert name == "speech.audio.delta"
            file += base64.b64decode(data["audio"])
    assert done["words"] == words
    return words, file


def check(words: Words, text: str, file_s: float) -> None:
    """The words are in order, in the text, and inside the file."""
    at, at_s = 0, 0.0
    for word in words:
        assert text[word["text_start"] : word["text_end"]] == word["word"]
        assert at <= word["text_start"] < word["text_end"]
        assert at_s <= word["start"] <= word["end"] <= file_s + 0.001
        at, at_s = word["text_end"], word["start"]


def test_events_have_the_words_of_the_text(server: LiveServer) -> None:
    words, file = spoken_words(server)
    assert [word["word"] for word in words] == WORDS
    check(words, TEXT, len(file) / 2 / RATE)
    first = "Hello, it costs five dollars and fifty cents here. "
    second = " Bye now."
    price = words[3]
    assert price["start"] == pytest.approx(first.index("five") * FRAME_S)
    assert price["end"] == pytest.approx((first.index("cents") + 5) * FRAME_S)
    last = words[-1]
    assert last["start"] == pytest.approx((len(first) + second.index("now")) * FRAME_S + 0.5)
    bare = post(server, word_timestamps=None)
    assert bare.content == file


def test_no_word_comes_before_the_audio_in_which_it_begins(server: LiveServer) -> None:
    for response_format in ("pcm", "mp3"):
        heard_s = 0.0
        file = b""
        for name, data in events(post(server, stream_format="sse", response_format=response_format).text):
            if name == "speech.audio.delta":
                file += base64.b64decode(data["audio"])
            elif name == "speech.audio.words" and response_format == "pcm":
                heard_s = len(file) / 2 / RATE
                assert all(word["start"] < heard_s for word in data["words"])
            elif name == "speech.audio.words":
                samples, rate = heard_by_ffmpeg(file, AudioOptions("mp3"))
                assert all(word["start"] <= len(samples) / rate for word in data["words"])


def test_words_come_while_the_speech_is_made(server: LiveServer) -> None:
    names = [name for name, _ in events(post(server, stream_format="sse").text)]
    first = names.index("speech.audio.words")
    assert "speech.audio.delta" in names[first:]


def test_events_have_no_words_unless_asked(server: LiveServer) -> None:
    ways: list[dict[str, Any]] = [{}, {"word_timestamps": False}, {"timestamp_granularities": []}]
    for fields in ways:
        answer = events(post(server, **{"word_timestamps": None, **fields}, stream_format="sse").text)
        assert {name for name, _ in answer} == {"speech.audio.delta", "speech.audio.done"}
        assert "words" not in answer[-1][1]


def test_granularities_say_the_same(server: LiveServer) -> None:
    asked = spoken_words(server, word_timestamps=None, timestamp_granularities=["word"])
    assert asked == spoken_words(server)


@pytest.mark.parametrize("response_format", list(FORMATS))
@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_times_are_those_of_the_decoded_file(server: LiveServer, response_format: FormatName, speed: float) -> None:
    text = "One two three. [pause:1s] Four five."
    words, file = spoken_words(server, input=text, response_format=response_format, speed=speed, sample_rate=None)
    samples, rate = heard_by_ffmpeg(file, AudioOptions(response_format))
    check(words, text, len(samples) / rate)
    # The only silence is the pause, which ends where the part with "Four" begins.
    loud = np.flatnonzero(np.abs(samples) > 0.02) / rate
    pause = int(np.argmax(np.diff(loud)))
    four = next(word for word in words if word["word"] == "Four")
    blank_s = FRAME_S / speed  # the second part begins with a blank, which the fake voice speaks
    assert four["start"] - blank_s == pytest.approx(loud[pause + 1], abs=0.04 if speed >= 1 else 0.08)


@pytest.mark.parametrize("seed", range(6))
def test_words_of_any_text_are_in_order_and_in_place(server: LiveServer, seed: int) -> None:
    rng = random.Random(seed)
    pieces = ["Hello,", "$5.50", "3 km", "**so**", "[pause:80ms]", "FBI", "a-b", "yes.", "6:40", "(no)", "\n\n", "end!"]
    text = " ".join(rng.choices(pieces, k=40))
    words, file = spoken_words(
        server, input=text, speed=rng.choice([0.5, 1.0, 1.5]), max_new_tokens=rng.choice([None, 40])
    )
    check(words, text, len(file) / 2 / RATE)
    assert words


def test_a_cut_off_text_has_the_words_that_were_spoken(server: LiveServer) -> None:
    words, file = spoken_words(server, input="One two three four.", max_new_tokens=8)
    assert [word["word"] for word in words] == ["One", "two"]
    check(words, "One two three four.", len(file) / 2 / RATE)


def test_the_words_of_a_cut_off_text_are_the_same_everywhere(server: LiveServer) -> None:
    cut: dict[str, Any] = {"input": "One **two** three four.", "max_new_tokens": 9}
    words, _ = spoken_words(server, **cut)
    assert [word["word"] for word in words] == ["One", "two"]
    header = json.loads(post(server, stream=False, **cut).headers["X-Word-Timestamps"])
    assert [word["word"] for word in header] == ["One", "two"]
    assert [word["end_ms"] for word in header] == [round(word["end"] * 1000) for word in words]
    body = {**BODY, **cut}
    shared = {name: value for name, value in body.items() if name != "input"}
    batch = {**shared, "items": [{"input": cut["input"]}]}
    [item] = httpx.post(f"{server.url}{SPEECH}/batch", json=batch, timeout=60).json()["results"]
    assert (item["words"], item["finish_reason"]) == (words, "length")


# ---- places without events --------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", [{"word_timestamps": True}, {"timestamp_granularities": ["word"]}])
def test_a_stream_of_audio_has_no_place(server: LiveServer, field: dict[str, Any]) -> None:
    response = post(server, **{"word_timestamps": None, **field})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == next(iter(field))
    assert "sse" in error["message"]
    assert "captioned_speech" in error["message"]


def test_a_whole_file_has_them_in_a_header(server: LiveServer) -> None:
    response = post(server, stream=False)
    assert response.content == post(server, stream=False, word_timestamps=None).content
    told = json.loads(response.headers["X-Word-Timestamps"])
    words, _ = spoken_words(server)
    assert told == [
        {"word": word["word"], "start_ms": round(word["start"] * 1000), "end_ms": round(word["end"] * 1000)}
        for word in words
    ]


def test_a_long_text_does_not_fit_into_the_header(server: LiveServer) -> None:
    assert post(server, stream=False, input="a " * 150).status_code == 200
    for text in ("a " * 200, "\u4f60" * 200):
        response = post(server, stream=False, input=text)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "word_timestamps")


def test_the_text_that_would_be_said_needs_no_place(server: LiveServer) -> None:
    assert post(server, **{"return": "text"}).json()["text"].startswith("Hello, it costs five")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"word_timestamps": False, "timestamp_granularities": ["word"]}, "timestamp_granularities"),
        ({"timestamp_granularities": ["segment"]}, "timestamp_granularities"),
        ({"timestamp_granularities": "word"}, "timestamp_granularities"),
    ],
)
def test_wrong_values_are_named(server: LiveServer, fields: dict[str, Any], param: str) -> None:
    response = post(server, **fields, stream_format="sse")
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize("field", [{"word_timestamps": True}, {"timestamp_granularities": ["word"]}])
def test_a_model_without_times_says_so(without_times: LiveServer, field: dict[str, Any]) -> None:
    response = post(without_times, **{"word_timestamps": None, **field}, stream_format="sse")
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, next(iter(field)), "not_available")
    assert "vivavoce eval align" in error["message"]


def test_models_tell_whether_they_have_times(server: LiveServer, without_times: LiveServer) -> None:
    told = [httpx.get(f"{each.url}/v1/models").json()["data"][0]["word_times"] for each in (server, without_times)]
    assert told == [True, False]


def test_items_of_a_batch_have_words(server: LiveServer) -> None:
    items = [{"input": TEXT}, {"input": "Plain.", "word_timestamps": False}]
    shared = {name: value for name, value in BODY.items() if name != "input"}
    answer = httpx.post(f"{server.url}{SPEECH}/batch", json={**shared, "items": items}, timeout=60).json()
    first, second = answer["results"]
    assert first["words"] == spoken_words(server)[0]
    assert second["words"] is None


# ---- other shapes -----------------------------------------------------------------------------------------------


def elevenlabs(server: LiveServer, way: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"text": TEXT, "seed": 7, "apply_text_normalization": "on", **fields}
    response = httpx.post(
        f"{server.url}{ELEVENLABS}{way}", json=body, params={"output_format": "pcm_24000"}, timeout=60
    )
    return [json.loads(line) for line in response.text.splitlines()]


@pytest.mark.parametrize("way", ["/with-timestamps", "/stream/with-timestamps"])
def test_elevenlabs_objects_have_every_character(server: LiveServer, way: str) -> None:
    objects = elevenlabs(server, way)
    assert (len(objects) == 1) == (way == "/with-timestamps")
    file_s = len(b"".join(base64.b64decode(each["audio_base64"]) for each in objects)) / 2 / RATE
    for name, text in (("alignment", TEXT), ("normalized_alignment", None)):
        found = [each[name] for each in objects if each[name] is not None]
        chars = "".join(char for each in found for char in each["characters"])
        assert chars == (text or "Hello, it costs five dollars and fifty cents here. Bye now.")
        starts = [at_s for each in found for at_s in each["character_start_times_seconds"]]
        ends = [at_s for each in found for at_s in each["character_end_times_seconds"]]
        assert len(starts) == len(ends) == len(chars)
        assert starts == sorted(starts)
        assert ends[-1] == pytest.approx(file_s, abs=0.001)


def test_elevenlabs_characters_lie_in_the_audio_that_was_sent(server: LiveServer) -> None:
    heard_s, checked = 0.0, 0
    for each in elevenlabs(server, "/stream/with-timestamps"):
        heard_s += len(base64.b64decode(each["audio_base64"])) / 2 / RATE
        for alignment in (each["alignment"], each["normalized_alignment"]):
            if alignment is not None:
                assert max(alignment["character_start_times_seconds"]) <= heard_s
                checked += 1
    assert checked > 4


def test_elevenlabs_objects_of_a_model_without_times_have_none(without_times: LiveServer) -> None:
    for way in ("/with-timestamps", "/stream/with-timestamps"):
        objects = elevenlabs(without_times, way)
        assert all(each["alignment"] is None and each["normalized_alignment"] is None for each in objects)
        assert all(each["audio_base64"] for each in objects)


CAPTIONED_BODY = {"model": "kokoro", "input": TEXT, "voice": "heart", "seed": 7, "response_format": "pcm"}


def captioned(server: LiveServer, **fields: Any) -> list[dict[str, Any]]:
    body = {**CAPTIONED_BODY, "normalization_options": {"normalize": True}, **fields}
    response = httpx.post(server.url + CAPTIONED, json=body, timeout=60)
    assert response.status_code == 200, response.text
    lines = body.get("stream", True)
    assert response.headers["Content-Type"] == ("application/x-ndjson" if lines else "application/json")
    return [json.loads(line) for line in response.text.splitlines()]


def test_captioned_speech_has_kokoros_shapes(server: LiveServer) -> None:
    words, file = spoken_words(server)
    expected = [{"word": word["word"], "start_time": word["start"], "end_time": word["end"]} for word in words]
    whole, lines = captioned(server, stream=False), captioned(server)
    assert len(whole) == 1
    assert len(lines) > 2
    for objects in (whole, lines):
        assert all(each.keys() == {"audio", "audio_format", "timestamps"} for each in objects)
        assert {each["audio_format"] for each in objects} == {"audio/pcm"}
        assert [word for each in objects for word in each["timestamps"]] == expected
        assert b"".join(base64.b64decode(each["audio"]) for each in objects) == file


def test_captions_of_a_dialogue_go_over_its_turns(server: LiveServer) -> None:
    def starts(text: str, **fields: Any) -> dict[str, float]:
        objects = captioned(server, input=text, **fields)
        return {word["word"]: word["start_time"] for each in objects for word in each["timestamps"]}

    text = "One. [voice:michael]Two."
    for pause_s in (0.5, None):
        expected = len("One. ") * FRAME_S + (0.2 if pause_s is None else pause_s)
        assert starts(text, turn_pause_s=pause_s) == {"One": 0.0, "Two": pytest.approx(expected, abs=0.001)}
    assert "Two" not in starts("[voice:michael]One.", allow_voice_tags=None)
    assert len(starts("One [voice:michael] two.", allow_voice_tags=False)) > 2


def test_captions_may_be_left_out(server: LiveServer, without_times: LiveServer) -> None:
    for each in (server, without_times):
        assert all(line["timestamps"] == [] for line in captioned(each, return_timestamps=False))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"return_download_link": True}, "return_download_link"),
        ({"volume_multiplier": 2.0}, "volume_multiplier"),
        ({"lang_code": "x"}, "lang_code"),
        ({"input": " "}, "input"),
        ({"stream": "yes"}, "stream"),
        ({"turn_pause_s": 11}, "turn_pause_s"),
        ({"input": "One [voice:nobody] two."}, "input"),
    ],
)
def test_captioned_speech_names_wrong_fields(server: LiveServer, fields: dict[str, Any], param: str) -> None:
    response = httpx.post(server.url + CAPTIONED, json={**CAPTIONED_BODY, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_captioned_speech_of_a_model_without_times_is_refused(without_times: LiveServer) -> None:
    response = httpx.post(without_times.url + CAPTIONED, json=CAPTIONED_BODY)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "return_timestamps", "not_available")


def test_kokoros_letters_are_languages(server: LiveServer) -> None:
    assert captioned(server, lang_code="b") == captioned(server, lang_code=None)


# ---- the phrase cache -------------------------------------------------------------------------------------------


def test_a_cached_phrase_has_the_same_words(tmp_path: Path) -> None:
    engine = Engine(FakeRunner(), EngineConfig(), fake_voices(), "fake")
    with live_server(engine, ServerConfig(cache_dir=tmp_path)) as server:
        ways: list[tuple[str, dict[str, Any]]] = [
            (SPEECH, {"stream_format": "sse"}),
            (SPEECH, {"stream": False}),
            (SPEECH, {"word_timestamps": None}),
        ]
        answers = [[post(server, path, **fields) for path, fields in ways] for _ in range(2)]
        states = [[answer.headers["X-Vivavoce-Cache"] for answer in each] for each in answers]
        assert states == [["miss", "hit", "miss"], ["hit", "hit", "hit"]]
        for first, again in zip(*answers, strict=True):
            assert first.content == again.content
            assert first.headers.get("X-Word-Timestamps") == again.headers.get("X-Word-Timestamps")
        assert [word["word"] for word in events(answers[1][0].text)[-1][1]["words"]] == WORDS
        assert re.fullmatch(r'\[\{"word":"Hello".*\}\]', answers[1][1].headers["X-Word-Timestamps"])
