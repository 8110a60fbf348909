"""Several speakers in one request: voice tags in a text, and segments. One file, each turn with its own voice."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from vivavoce_engine import SynthesisRequest, VoiceStore
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import FAKE_INFO, SAMPLE_RATE, SAMPLES_PER_FRAME
from vivavoce_server import ServerConfig
from vivavoce_server.text_parts import MAX_TURNS, MAX_VOICES

from tests.server.test_phrase_cache import caching
from tests.server.test_sse import events
from tests.support.live_server import LiveServer, fake_engine, live_server
from tests.support.live_text import plan_for, record
from tests.support.waiting import wait_until

FRAME_BYTES = 2 * SAMPLES_PER_FRAME
TURN_PAUSE_BYTES = round(0.2 * SAMPLE_RATE) * 2
TAGGED = "Hello there. [voice:michael] Good morning. [voice:heart]Bye."
PARTS = ["Hello there. ", "Good morning. ", "Bye."]


class Heard:
    """The requests that an engine has got, in order, each once."""

    def __init__(self) -> None:
        self.requests: list[SynthesisRequest] = []

    def __call__(self, plan: Plan) -> None:
        for sequence in plan.step:
            request = sequence.pending.request
            assert isinstance(request, SynthesisRequest)
            if not any(request is known for known in self.requests):
                self.requests.append(request)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def talk(heard: Heard) -> Iterator[LiveServer]:
    with live_server(fake_engine(before_step=heard)) as running:
        yield running


def post(server: LiveServer, **fields: Any) -> httpx.Response:
    body = {"voice": "heart", "seed": 7, "response_format": "pcm", **fields}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body)


def refused(server: LiveServer, **fields: Any) -> dict[str, Any]:
    response = post(server, **fields)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def segments(*turns: tuple[str, str], **fields: Any) -> list[dict[str, Any]]:
    return [{"voice": voice, "text": text, **fields} for voice, text in turns]


# ---- tags


def test_tags_give_the_text_behind_them_to_other_voices(talk: LiveServer, heard: Heard) -> None:
    response = post(talk, input=TAGGED)
    spoken = heard.requests
    assert [(request.speaker, request.text) for request in spoken] == list(
        zip(["heart", "michael", "heart"], PARTS, strict=True)
    )
    assert {request.seed for request in spoken} == {7}
    assert len(response.content) == sum(map(len, PARTS)) * FRAME_BYTES + 2 * TURN_PAUSE_BYTES
    assert post(talk, input=TAGGED).content == response.content


def test_a_voice_goes_on_from_its_own_last_turn(talk: LiveServer, heard: Heard) -> None:
    post(talk, input=TAGGED)
    first, other, again = heard.requests
    assert (first.context, first.follows) == (None, False)
    assert (other.context, other.follows) == (None, True)
    assert again.context is not None
    assert again.context.text == PARTS[0]
    assert len(again.context.codes) == len(PARTS[0])


def test_text_before_the_first_tag_needs_a_voice_only_if_there_is_some(talk: LiveServer) -> None:
    assert post(talk, input=" [voice:michael]Hi.", voice=None).status_code == 200
    assert refused(talk, input="So [voice:michael]Hi.", voice=None)["param"] == "voice"


@pytest.mark.parametrize("tag", ["[voice:michael]", "[VOICE: Michael ]", "[voice:heart(2)+michael]", "[voice:alloy]"])
def test_a_tag_names_a_voice_as_the_field_does(talk: LiveServer, tag: str) -> None:
    assert post(talk, input=f"One. {tag} Two.").status_code == 200


@pytest.mark.parametrize("tag", ["[voice:nobody]", "[voice:]", "[voice:heart+nobody]", f"[voice:{'x' * 257}]"])
def test_a_tag_without_a_voice_is_refused_before_anything_is_spoken(talk: LiveServer, heard: Heard, tag: str) -> None:
    error = refused(talk, input=f"One. {tag} Two.")
    assert error["param"] == "input"
    assert tag[:40] in error["message"]
    assert heard.requests == []
    if len(tag) < 257:
        assert "GET /v1/audio/voices" in error["message"]


def test_turns_and_voices_are_bounded(talk: LiveServer) -> None:
    assert refused(talk, input="[voice:heart]a" * (MAX_TURNS + 1))["code"] == "too_many_turns"
    many = "".join(f"[voice:heart({number})]a" for number in range(1, MAX_VOICES + 2))
    assert refused(talk, input=many)["code"] == "too_many_voices"
    assert refused(talk, segments=segments(("heart", "a")) * (MAX_TURNS + 1))["param"] == "segments"


def test_tags_may_be_text(talk: LiveServer, heard: Heard) -> None:
    for normalize in (True, False):
        text = {"input": "One [voice:nobody] two.", "normalize": normalize}
        assert post(talk, **text, allow_voice_tags=False).status_code == 200
    assert [request.speaker for request in heard.requests] == ["heart", "heart"]
    assert heard.requests[1].text == "One [voice:nobody] two."


def test_the_same_voice_again_is_no_turn(talk: LiveServer, heard: Heard) -> None:
    response = post(talk, input="One. [voice:HEART] Two.")
    assert [request.text for request in heard.requests] == ["One. Two."]
    assert len(response.content) == len("One. Two.") * FRAME_BYTES


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One[voice:heart]two.", ["One two."]),
        ("One[voice:heart](two)[voice:alloy], three.", ["One (two) three."]),
        ("One [voice:heart] [voice:alloy]two, [voice:heart]three.", ["One two, three."]),
        ("[voice:heart] One. [pause:0s] [voice:heart] Two.", ["One.", "Two."]),
        ("One. [voice:michael] Two.[voice:michael]Three. [voice:heart]Four.", ["One.", "Two. Three.", "Four."]),
        ("One. [voice:michael] ... [voice:heart] Two. [voice:alloy] Three.", ["One.", "Two. Three."]),
    ],
)
async def test_a_tag_that_is_no_turn_is_left_out_as_in_live_text(
    talk: LiveServer, heard: Heard, text: str, parts: list[str]
) -> None:
    done = events(post(talk, input=text, stream_format="sse", word_timestamps=True).text)[-1][1]
    assert [request.text.strip() for request in heard.requests] == parts
    words = [(word["word"], word["text_start"]) for word in done["words"]]
    assert [word for word, _ in words] == re.findall(r"[a-z]+", re.sub(r"\[.*?\]", " ", text), re.IGNORECASE)
    assert all(text.startswith(word, start) for word, start in words)
    live = await record(plan_for(FAKE_INFO), [text])
    assert [part.strip() for part in live.parts if isinstance(part, str)] == parts


def test_a_voice_that_speaks_again_goes_on_with_its_turn(talk: LiveServer) -> None:
    text = "One. [voice:michael] ... [voice:heart] Two. [voice:michael] [voice:alloy] Three. [voice:michael] Four."
    done = events(post(talk, input=text, stream_format="sse").text)[-1][1]
    assert [(turn["index"], turn["voice"]) for turn in done["segments"]] == [(0, "heart"), (1, "michael")]
    assert "segments" not in events(post(talk, input=text[:-22], stream_format="sse").text)[-1][1]


@pytest.mark.parametrize("names", ["heart alloy Heart", "alloy heart shimmer", "heart(2)+michael alloy(2)+MICHAEL"])
def test_another_name_of_the_same_voice_is_no_turn_and_no_pause(talk: LiveServer, names: str) -> None:
    first, *others = names.split()
    text = "One." + "".join(f" [voice:{name}] Two." for name in others)
    content = post(talk, input=text, voice=first).content
    assert len(content) == (len("One.") + len(others) * len(" Two.")) * FRAME_BYTES
    assert "segments" not in events(post(talk, input=text, voice=first, stream_format="sse").text)[-1][1]
    turns = segments(*((name, "One.") for name in [first, *others]))
    content = post(talk, segments=turns).content
    assert len(content) == len(turns) * len("One.") * FRAME_BYTES


def test_a_stored_voice_of_an_openai_name_is_a_voice_of_its_own(tmp_path: Path) -> None:
    with caching(None, store=VoiceStore(tmp_path)) as server:
        server.engine.voices.add("alloy", "This is my voice.", [0.5] * 8)
        done = events(post(server, input="One. [voice:alloy] Two.", stream_format="sse").text)[-1][1]
    assert [turn["voice"] for turn in done["segments"]] == ["heart", "alloy"]


def test_tags_with_nothing_behind_them_take_no_number(talk: LiveServer) -> None:
    def turns(text: str) -> list[tuple[int, str]]:
        done = events(post(talk, input=text, stream_format="sse").text)[-1][1]
        return [(turn["index"], turn["voice"]) for turn in done.get("segments", [])]

    assert turns("One. [voice:michael] ... [voice:heart(3)+michael] [voice:michael] Two. [voice:heart]") == [
        (0, "heart"),
        (1, "michael"),
    ]
    assert turns("One. [voice:michael] ...") == []
    assert refused(talk, input="One. [voice:nobody] [voice:heart] Two.")["code"] == "voice_not_found"


# ---- pauses between turns


@pytest.mark.parametrize(
    ("text", "fields", "pause_s"),
    [
        ("a.[voice:michael]b.", {}, 0.2),
        ("a.[voice:michael]b.", {"turn_pause_s": 0}, 0.0),
        ("a.[voice:michael]b.", {"turn_pause_s": 1.5}, 1.5),
        ("a.[pause:1s][voice:michael]b.", {}, 1.0),
        ("a.[voice:michael][pause:500ms]b.", {"turn_pause_s": 3}, 0.5),
        ("a.[pause:0s][voice:michael]b.", {}, 0.0),
        ("a.[voice:michael][voice:heart]b.", {}, 0.0),
        ("a.[voice:michael] ... [voice:heart]b.", {}, 0.0),
    ],
)
def test_a_pause_tag_takes_the_place_of_the_pause_between_turns(
    talk: LiveServer, text: str, fields: dict[str, Any], pause_s: float
) -> None:
    for speed in (1.0, 2.0):
        content = post(talk, input=text, speed=speed, **fields).content
        assert len(content) // 2 == round((4 * SAMPLES_PER_FRAME) / speed + pause_s * SAMPLE_RATE)


def test_pauses_between_turns_count_among_the_pauses(talk: LiveServer) -> None:
    text = "a.[voice:michael]b.[voice:heart]" * 4
    error = refused(talk, input=text, turn_pause_s=10)
    assert (error["param"], error["code"]) == ("turn_pause_s", "too_many_pauses")
    items = [{"input": text, "turn_pause_s": 5} for _ in range(2)]
    body = {"voice": "heart", "items": items}
    error = httpx.post(f"{talk.url}/v1/audio/speech/batch", json=body).json()["error"]
    assert (error["param"], error["code"]) == ("items[1].turn_pause_s", "too_many_pauses")


# ---- segments


def test_segments_are_turns_with_their_own_fields(talk: LiveServer, heard: Heard) -> None:
    turns = [
        {"text": "One.", "instructions": "Whisper."},
        {"text": "Two.", "voice": "michael", "seed": 9, "language": "en"},
        {"text": "Three.", "voice": {"id": "heart"}},
    ]
    response = post(talk, segments=turns, instructions="Shout.")
    assert [(each.text, each.speaker, each.seed, each.instructions, each.language) for each in heard.requests] == [
        ("One.", "heart", 7, "Whisper.", "auto"),
        ("Two.", "michael", 9, "Shout.", "english"),
        ("Three.", "heart", 7, "Shout.", "auto"),
    ]
    assert len(response.content) == len("One.Two.Three.") * FRAME_BYTES + 2 * TURN_PAUSE_BYTES
    # Other instructions are another way of speaking, which no context mixes.
    assert heard.requests[2].context is None


def test_a_context_ends_with_a_blank(talk: LiveServer, heard: Heard) -> None:
    post(talk, segments=segments(("heart", "One."), ("michael", "Two."), ("heart", "Three.")))
    context = heard.requests[2].context
    assert context is not None
    assert context.text == "One. "


def test_a_preset_a_recording_and_an_embedding_talk_to_each_other(talk: LiveServer, heard: Heard) -> None:
    recording = base64.b64encode(wav_of(1.5)).decode()
    turns = [
        {"text": "One."},
        {"text": "Two.", "ref_audio": recording, "x_vector_only_mode": True},
        {"text": "Three.", "speaker_embedding": [0.5] * 8},
        {"text": "Four.", "ref_audio": recording, "x_vector_only_mode": True},
    ]
    assert post(talk, segments=turns).status_code == 200
    first, cloned, given, again = heard.requests
    assert (first.speaker, first.reference) == ("heart", None)
    assert cloned.reference is not None
    assert given.reference is not None
    assert given.reference.embedding.tolist() == [0.5] * 8
    assert again.reference is cloned.reference
    assert again.context is not None


def wav_of(seconds: float) -> bytes:
    pcm = bytes(range(256)) * round(seconds * SAMPLE_RATE * 2 / 256)
    head = b"RIFF" + (36 + len(pcm)).to_bytes(4, "little") + b"WAVEfmt " + (16).to_bytes(4, "little")
    head += b"\1\0\1\0" + SAMPLE_RATE.to_bytes(4, "little") + (2 * SAMPLE_RATE).to_bytes(4, "little") + b"\2\0\x10\0"
    return head + b"data" + len(pcm).to_bytes(4, "little") + pcm


@pytest.mark.parametrize(
    ("turns", "param"),
    [
        ([{"text": "a", "voice": "nobody"}], "segments[0].voice"),
        ([{"text": "a"}, {"text": " "}], "segments[1].text"),
        ([{"text": "a"}, {"text": "b [voice:heart] c"}], "segments[1].text"),
        ([{"text": "a"}, {"text": "b [pause:11s] c"}], "segments[1].text"),
        ([{"text": "a"}, {"text": "b", "language": "klingon"}], "segments[1].language"),
        ([{"text": "a"}, {"text": "b", "ref_text": "x"}], "segments[1].ref_text"),
        ([{"text": "a"}, {"text": "b", "speed": 9}], "segments[1].speed"),
        ([{"text": "a"}, {"text": "b", "volume": 9}], "segments[1].volume"),
        ([{"text": "a"}, {"text": "b" * 4096}], "segments"),
        ([], "segments"),
    ],
)
def test_errors_name_the_segment(talk: LiveServer, heard: Heard, turns: list[dict[str, Any]], param: str) -> None:
    assert refused(talk, segments=turns)["param"] == param
    assert heard.requests == []


def test_a_request_has_one_text(talk: LiveServer) -> None:
    assert refused(talk, input="a", segments=segments(("heart", "a")))["param"] == "segments"
    assert refused(talk)["message"] == "Missing required field: input"


def test_a_segment_that_says_nothing_is_left_out(talk: LiveServer, heard: Heard) -> None:
    response = post(talk, segments=segments(("heart", "One."), ("michael", "..."), ("heart", "Two.")))
    assert [request.text for request in heard.requests] == ["One.", "Two."]
    assert "segments[1]" in json.loads(response.headers["X-Vivavoce-Warnings"])[0]
    assert refused(talk, segments=segments(("heart", "..."), ("michael", "!")))["code"] == "nothing_to_speak"


def test_each_turn_has_its_own_speed(talk: LiveServer) -> None:
    turns = [{"text": "abcdefgh", "speed": 2}, {"text": "abcd [pause:1s]efgh", "speed": 0.5, "voice": "michael"}]
    samples = [4 * SAMPLES_PER_FRAME, 5 * 2 * SAMPLES_PER_FRAME, SAMPLE_RATE, 4 * 2 * SAMPLES_PER_FRAME]
    response = post(talk, segments=turns, stream=False)
    assert len(response.content) // 2 == sum(samples) + TURN_PAUSE_BYTES // 2
    assert response.headers["X-Usage-Output-Tokens"] == str(8 + 5 + 4)
    same = post(talk, segments=[{**turn, "speed": 2} for turn in turns])
    assert len(same.content) // 2 == (8 + 5 + 4) * SAMPLES_PER_FRAME // 2 + SAMPLE_RATE + TURN_PAUSE_BYTES // 2


# ---- what answers tell


def test_done_has_the_turns_with_their_times(talk: LiveServer) -> None:
    def done(**fields: Any) -> dict[str, Any]:
        return events(post(talk, stream_format="sse", **fields).text)[-1][1]

    assert done(input="abcde[voice:michael]abc", speed=2)["segments"] == [
        {"index": 0, "voice": "heart", "start": 0.0, "end": 0.2},
        {"index": 1, "voice": "michael", "start": 0.4, "end": 0.52},
    ]
    turns = [{"text": "abcde"}, {"text": "abc[pause:1s]d", "speed": 2, "speaker_embedding": [0.5] * 8}]
    assert done(segments=turns)["segments"] == [
        {"index": 0, "voice": "heart", "start": 0.0, "end": 0.4},
        {"index": 1, "voice": None, "start": 0.6, "end": 1.8},
    ]
    assert "segments" not in done(input="abc[voice:heart]abc")
    assert "duration" not in done(input="abcde")
    assert done(input="abcde", word_timestamps=True)["duration"] == 0.4


def test_words_have_their_times_over_all_turns(talk: LiveServer) -> None:
    def words(**fields: Any) -> list[tuple[Any, ...]]:
        done = events(post(talk, stream_format="sse", word_timestamps=True, **fields).text)[-1][1]
        return [tuple(word[key] for key in ("word", "start", "text_start")) for word in done["words"]]

    assert words(input="One two. [voice:michael]Three.") == [("One", 0.0, 0), ("two", 0.32, 4), ("Three", 0.92, 24)]
    turns = [{"text": "One"}, {"text": "Two so", "speed": 2, "voice": "michael"}, {"text": "Three"}]
    assert words(segments=turns) == [("One", 0.0, 0), ("Two", 0.44, 4), ("so", 0.6, 8), ("Three", 0.88, 11)]


def test_what_would_be_said_names_the_voices(talk: LiveServer) -> None:
    body = post(talk, **{"input": TAGGED, "return": "text"}).json()
    assert body["parts"] == [
        {"text": PARTS[0], "voice": "heart"},
        {"pause_s": 0.2},
        {"text": PARTS[1], "voice": "michael"},
        {"pause_s": 0.2},
        {"text": PARTS[2], "voice": "heart"},
    ]
    turns = segments(("heart", "It costs $5."), ("michael", "No."))
    body = post(talk, **{"segments": turns, "normalize": True, "return": "text"}).json()
    assert body["text"] == "It costs five dollars.\nNo."
    assert body["characters"] == {"input": 16, "output": 26}
    assert body["map"][-1][3] == 16


def test_marks_and_logs_name_all_voices(caplog: pytest.LogCaptureFixture) -> None:
    with live_server(config=ServerConfig(mark_audio="metadata")) as server, caplog.at_level("INFO", "vivavoce_server"):
        response = post(server, input=TAGGED, response_format="wav")
        assert 'voice="heart, michael"' in response.headers["X-Synthetic-Audio"]
        assert b"heart, michael" in response.content[:1000]
        wait_until(lambda: any(record.name.endswith("request_lines") for record in caplog.records))
    [line] = [record.__dict__["fields"] for record in caplog.records if record.name.endswith("request_lines")]
    assert (line["voice"], line["chars"]) == ("heart, michael", len(TAGGED))


def test_a_batch_has_dialogues(talk: LiveServer) -> None:
    items: list[dict[str, Any]] = [{"input": TAGGED}, {"segments": segments(("michael", "One."), ("heart", "Two."))}]
    body = {"voice": "heart", "seed": 7, "response_format": "pcm", "items": items}
    results = httpx.post(f"{talk.url}/v1/audio/speech/batch", json=body).json()["results"]
    assert [base64.b64decode(result["audio_data"]) for result in results] == [
        post(talk, **item).content for item in items
    ]


def test_the_cache_tells_dialogues_apart(tmp_path: Path) -> None:
    with caching(tmp_path) as server:
        asked: list[dict[str, Any]] = [
            {"input": TAGGED},
            {"input": TAGGED.replace("michael", "heart(3)")},
            {"segments": segments(("heart", PARTS[0]), ("heart", PARTS[1]), ("heart", PARTS[2]))},
        ]
        for fields in asked:
            first, second = post(server, **fields), post(server, **fields)
            assert [each.headers["X-Vivavoce-Cache"] for each in (first, second)] == ["miss", "hit"]
            assert first.content == second.content
        tags = {post(server, input=TAGGED, turn_pause_s=pause_s).headers["ETag"] for pause_s in (0.2, 0.3)}
        slow = post(server, segments=[{"text": "a", "speed": 2}, {"text": "b", "speed": 1}]).headers["ETag"]
        fast = post(server, segments=[{"text": "a", "speed": 3}, {"text": "b", "speed": 1}]).headers["ETag"]
        assert len({*tags, slow, fast}) == 4
