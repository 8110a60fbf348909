"""Cached phrases: a hit has the bytes of a miss on every route, and whatever may change a sample is a miss."""

import asyncio
import base64
import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import SecretStr
from vivavoce_engine import Engine, EngineConfig, SynthesisFailed, VoiceStore
from vivavoce_engine.batching.runner import Outcome
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import ServerConfig
from vivavoce_server.formats import FORMATS
from vivavoce_server.jobs import prepare
from vivavoce_server.phrases.folder import FOLDER, LOCK
from vivavoce_server.schemas import SpeechOptions, SpeechRequest

from tests.server.test_metrics import samples
from tests.support.broken import broken_text
from tests.support.live_server import Gate, LiveServer, ask_and_leave, live_server
from tests.support.live_socket import pcm_of
from tests.support.waiting import HUNG_S, wait_until

SPEECH, BATCH, ELEVENLABS = "/v1/audio/speech", "/v1/audio/speech/batch", "/v1/text-to-speech/heart"
BODY: dict[str, Any] = {"input": "Hello there.", "voice": "heart", "seed": 7, "response_format": "wav"}
WORDS = "Words and more of them. " * 4
LONG = "The quick brown fox jumps over the lazy dog. [pause:500ms] It sleeps. And wakes. "
STATE = "X-Vivavoce-Cache"


@contextmanager
def caching(
    folder: Path | None,
    before_step: Callable[[Plan], None] | None = None,
    identity: str = "fake",
    store: VoiceStore | None = None,
    **settings: Any,
) -> Iterator[LiveServer]:
    runner = FakeRunner(before_step=before_step)
    engine = Engine(runner, settings.pop("engine", EngineConfig()), fake_voices(store), identity)
    with live_server(engine, ServerConfig(cache_dir=folder, **settings)) as server:
        yield server


def say(server: LiveServer, headers: dict[str, str] | None = None, **changes: Any) -> httpx.Response:
    response = httpx.post(server.url + SPEECH, json={**BODY, **changes}, headers=headers, timeout=HUNG_S)
    assert response.status_code == 200, response.text
    return response


def heard(answer: httpx.Response) -> object:
    """The bytes of an answer. Of events it is the audio, whose cuts follow from the server's load, and all else."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return answer.content
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    audio = b"".join(base64.b64decode(event.pop("audio", "")) for event in events)
    return audio, [event for event in events if event["type"] != "speech.audio.delta"]


def state(server: LiveServer, **changes: Any) -> str | None:
    """The source of the speech, as the answer's header tells it."""
    headers = say(server, **changes).headers
    return str(headers[STATE]) if STATE in headers else None


def counts(server: LiveServer) -> dict[str, float]:
    """Name, and source or kind, of each metric of the cache that is not 0, without the number of bytes."""
    found = {}
    for sample in samples(server):
        name = sample.name.removeprefix("vivavoce_cache_").removesuffix("_total")
        if sample.name.startswith("vivavoce_cache_") and not sample.name.endswith(("_created", "_bytes")):
            label = sample.labels.get("source", sample.labels.get("kind", ""))
            found[f"{name} {label}".strip()] = sample.value
    return {name: value for name, value in found.items() if value}


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / FOLDER).iterdir() if path.name != LOCK)


# ---- the same bytes

WAYS: dict[str, dict[str, Any]] = {
    "stream": {},
    "whole": {"stream": False},
    "events": {"stream_format": "sse"},
    "fast": {"speed": 1.3, "sample_rate": 8000},
    "whole and slow": {"speed": 0.7, "stream": False, "leading_silence": "keep"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("response_format", FORMATS)
def test_a_hit_has_the_bytes_of_a_miss_and_of_a_server_without_cache(
    tmp_path: Path, response_format: str, way: str
) -> None:
    request = {"input": LONG, "response_format": response_format, **WAYS[way]}
    with caching(None, max_part_chars=30) as server:
        plain = say(server, **request)
    assert STATE not in plain.headers
    assert "ETag" not in plain.headers
    with caching(tmp_path, max_part_chars=30) as server:
        miss = say(server, **request)
        steps = server.engine.stats().steps
        hit = say(server, **request)
        assert server.engine.stats().steps == steps
        assert server.engine.stats().running == 0
    assert [miss.headers[STATE], hit.headers[STATE]] == ["miss", "hit"]
    assert heard(plain) == heard(miss) == heard(hit)
    told = ("date", "x-request-id", "etag", "cache-control", STATE.lower())
    assert [(name, value) for name, value in hit.headers.items() if name not in told] == [
        (name, value) for name, value in plain.headers.items() if name not in told
    ]


@pytest.mark.parametrize("path", ["", "/stream", "/with-timestamps", "/stream/with-timestamps"])
@pytest.mark.parametrize("output_format", ["mp3_44100_128", "ulaw_8000", "pcm_16000", "opus_48000_32"])
def test_elevenlabs_routes(tmp_path: Path, path: str, output_format: str) -> None:
    with caching(tmp_path) as server:
        ask = {"params": {"output_format": output_format}, "json": {"text": LONG, "seed": 7}}
        first, again = (httpx.post(server.url + ELEVENLABS + path, **ask) for _ in range(2))  # type: ignore[arg-type]
    assert [first.headers[STATE], again.headers[STATE]] == ["miss", "hit"]
    assert first.content == again.content


def test_a_batch_takes_what_single_requests_have_left(tmp_path: Path) -> None:
    items = [{"input": f"Sentence number {number}."} for number in range(4)] + [{"input": "..."}]
    batch = {"voice": "heart", "seed": 7, "response_format": "opus", "items": items}
    with caching(None) as server:
        expected = httpx.post(server.url + BATCH, json=batch).json()["results"]
    with caching(tmp_path) as server:
        say(server, input="Sentence number 2.", response_format="mp3")
        results = [httpx.post(server.url + BATCH, json=batch).json()["results"] for _ in range(2)]
        assert results == [expected, expected]
        assert counts(server) == {"phrases miss": 4, "phrases hit": 5, "stored": 4}


def test_one_entry_serves_all_formats_rates_speeds_and_pauses(tmp_path: Path) -> None:
    with caching(tmp_path) as server:
        assert state(server, input="One. [pause:1s] Two.") == "miss"
        for response_format in FORMATS:
            assert state(server, input="One. [pause:1s] Two.", response_format=response_format, speed=2.0) == "hit"
        assert state(server, input="One. [pause:2s] Two.", sample_rate=48000, leading_silence="keep") == "hit"
        assert state(server, input="One. [pause:1s] Two.", voice="HEART", max_new_tokens=None, language=None) == "hit"
        assert state(server, input="One. Two.") == "miss"
    assert len(entries(tmp_path)) == 2


def test_a_hit_outlives_the_server(tmp_path: Path) -> None:
    with caching(tmp_path) as server:
        miss = say(server)
    with caching(tmp_path) as server:
        hit = say(server)
        assert server.engine.stats().steps == 0
    assert (hit.headers[STATE], hit.headers["ETag"]) == ("hit", miss.headers["ETag"])
    assert hit.content == miss.content


def test_a_text_of_many_parts(tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog near the river bank. " * 40
    with caching(tmp_path, max_part_chars=200) as server:
        miss = say(server, input=text, response_format="pcm")
        hit = say(server, input=text, response_format="pcm")
    assert [miss.headers[STATE], hit.headers[STATE]] == ["miss", "hit"]
    assert miss.content == hit.content
    assert len(hit.content) == len(text.rstrip()) * 1920 * 2


def test_a_text_of_which_nothing_is_spoken_needs_no_cache(tmp_path: Path) -> None:
    with caching(tmp_path, strict_text=False) as server:
        first, again = (say(server, input="...") for _ in range(2))
    assert [first.headers[STATE], again.headers[STATE]] == ["bypass", "bypass"]
    assert first.content == again.content


# ---- the key

OTHERS: list[dict[str, Any]] = [
    {"input": "Hello there!"},
    {"input": "hello there."},
    {"seed": 8},
    {"seed": 0},
    {"voice": "michael"},
    {"voice": "heart(2)+michael(1)"},
    {"voice": "heart(1)+michael(2)"},
    {"instructions": "Whisper."},
    {"language": "en"},
    {"temperature": 0.5},
    {"temperature": 0.0},
    {"top_p": 0.5},
    {"top_k": 5},
    {"repetition_penalty": 1.2},
    {"max_new_tokens": 500},
    {"non_streaming_mode": False},
    {"initial_codec_chunk_frames": 4},
    {"voice": None, "speaker_embedding": [1.0] * 8},
    {"voice": None, "speaker_embedding": [1.0] * 7 + [0.5]},
]


def test_each_option_that_may_change_a_sample_has_its_own_entry(tmp_path: Path) -> None:
    with caching(tmp_path) as server:
        assert [state(server, **other) for other in ({}, *OTHERS)] == ["miss"] * (len(OTHERS) + 1)
        assert [state(server, **other) for other in ({}, *OTHERS)] == ["hit"] * (len(OTHERS) + 1)
    assert len(entries(tmp_path)) == len(OTHERS) + 1


def test_every_field_of_a_request_is_in_the_key_or_in_the_files_name(tmp_path: Path) -> None:
    """A field that is added later must be looked at here."""
    decides_samples = {name for other in OTHERS for name in other} | {"model", "ref_audio", "ref_text"}
    decides_file = {"response_format", "sample_rate", "speed", "leading_silence", "stream", "stream_format"}
    decides_words = {"word_timestamps", "timestamp_granularities"}  # of which the engine's option is the result
    decides_text = {"normalize", "normalization_options", "allow_voice_tags", "segments", "turn_pause_s"}
    """Fields of which the texts that are spoken, their voices and their pauses are the result."""
    decides_voice = {"x_vector_only_mode", "task_type"}  # of which the embedding and the model are
    neither = {"answer"}
    known = decides_samples | decides_file | decides_text | decides_voice | decides_words | neither
    assert set(SpeechRequest.model_fields) == known


def test_a_text_that_is_read_differently_is_another(tmp_path: Path) -> None:
    with caching(tmp_path) as server:
        assert state(server, input="It costs $5.", normalize=True) == "miss"
        assert state(server, input="It costs $5.", normalize=False) == "miss"
        assert state(server, input="It costs five dollars.", normalize=False) == "hit"


def test_a_stored_voice_that_was_replaced_is_another(tmp_path: Path) -> None:
    def keep(value: float) -> None:
        form = {"name": (None, "ada"), "consent": (None, "I agree."), "speaker_embedding": (None, str([value] * 8))}
        assert httpx.post(server.url + "/v1/audio/voices", files=form).status_code == 200

    with caching(tmp_path / "cache", store=VoiceStore(tmp_path / "voices")) as server:
        keep(0.25)
        assert [state(server, voice="ada"), state(server, voice="ada")] == ["miss", "hit"]
        mixed = state(server, voice="ada(1)+heart(1)")
        httpx.delete(server.url + "/v1/audio/voices/ada")
        refused = httpx.post(server.url + SPEECH, json={**BODY, "voice": "ada"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "voice")
        keep(0.5)
        assert [state(server, voice="ada"), state(server, voice="ada")] == ["miss", "hit"]
        assert [mixed, state(server, voice="ada(1)+heart(1)")] == ["miss", "miss"]
        httpx.delete(server.url + "/v1/audio/voices/ada")
        keep(0.25)
        assert state(server, voice="ada") == "hit"


def test_another_identity_of_the_model_is_a_miss(tmp_path: Path) -> None:
    for identity, expected in (("one", "miss"), ("two", "miss"), ("one", "hit")):
        with caching(tmp_path, identity=identity) as server:
            assert state(server) == expected


def test_a_model_whose_speech_depends_on_the_load_is_never_cached(tmp_path: Path) -> None:
    with caching(tmp_path, identity="") as server:
        answers = [say(server) for _ in range(2)]
        assert counts(server) == {"phrases bypass": 2}
    assert [answer.headers[STATE] for answer in answers] == ["bypass", "bypass"]
    assert "ETag" not in answers[0].headers
    assert entries(tmp_path) == []


def test_a_model_that_was_loaded_again_with_other_weights_leaves_nothing_under_the_old_key(tmp_path: Path) -> None:
    gate = Gate()
    with caching(tmp_path, gate) as server:
        asked = threading.Thread(target=say, args=(server,))
        asked.start()
        wait_until(lambda: bool(gate.batches))
        assert isinstance(server.engine, Engine)
        server.engine._identity = "other"
        gate.open()
        asked.join()
        assert counts(server) == {"phrases miss": 1}
    assert entries(tmp_path) == []


# ---- seeds


@pytest.mark.parametrize("seed", [{}, {"seed": None}])
def test_requests_without_a_seed_are_never_cached(tmp_path: Path, seed: dict[str, None]) -> None:
    body = {name: value for name, value in BODY.items() if name != "seed"} | seed
    with caching(tmp_path, max_part_chars=20) as server:
        for text in ("Hello there.", LONG):
            answers = [httpx.post(server.url + SPEECH, json={**body, "input": text}) for _ in range(2)]
            assert [answer.headers[STATE] for answer in answers] == ["bypass", "bypass"]
            assert "ETag" not in answers[0].headers
            assert answers[0].headers["Cache-Control"] == "no-store"
    assert entries(tmp_path) == []


@pytest.mark.parametrize("default_seed", [0, 5])
def test_a_default_seed_is_that_of_requests_without_one(tmp_path: Path, default_seed: int) -> None:
    with caching(tmp_path, default_seed=default_seed) as server:
        first = say(server, seed=None, response_format="pcm")
        again = say(server, seed=default_seed, response_format="pcm")
        other = say(server, seed=9, response_format="pcm")
        live = prepare(SpeechOptions(voice="heart"), server.service).turns[0].options
    assert [first.headers[STATE], again.headers[STATE], other.headers[STATE]] == ["miss", "hit", "miss"]
    assert first.content == again.content == pcm_of(default_seed, len("Hello there."))
    assert other.content == pcm_of(9, len("Hello there."))
    assert live.seed == default_seed


def test_a_seed_of_zero_is_a_seed(tmp_path: Path) -> None:
    with caching(tmp_path) as server:
        assert [state(server, seed=0), state(server, seed=0)] == ["miss", "hit"]


# ---- incomplete speech


def test_speech_whose_listener_leaves_is_not_kept(tmp_path: Path) -> None:
    gate = Gate(hold_from_step=6)
    with caching(tmp_path, gate) as server:
        body = {**BODY, "initial_codec_chunk_frames": 1}
        ask_and_leave(server, SPEECH, body, lambda: len(gate.batches) > 6)
        wait_until(lambda: server.service.speaking == 0)
        gate.open()
        assert entries(tmp_path) == []
        assert "stored" not in counts(server)
        assert state(server, initial_codec_chunk_frames=1) == "miss"
        assert state(server, initial_codec_chunk_frames=1) == "hit"


def test_a_long_recording_that_is_given_up_leaves_no_file(tmp_path: Path) -> None:
    gate = Gate(hold_from_step=120)
    with caching(tmp_path, gate, engine=EngineConfig(max_unread_s=3600)) as server:
        ask_and_leave(server, SPEECH, {**BODY, "input": WORDS * 4}, lambda: entries(tmp_path) != [])
        assert [path.suffix for path in entries(tmp_path)] == [".partial"]
        wait_until(lambda: entries(tmp_path) == [])
        gate.open()
        folder = server.service.phrases._folder
        assert folder is not None
        wait_until(lambda: folder.total_bytes == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_speech_that_max_new_tokens_cuts_is_not_kept(tmp_path: Path, stream: bool) -> None:
    with caching(tmp_path) as server:
        assert [state(server, max_new_tokens=3, stream=stream) for _ in range(2)] == ["miss", "miss"]
    assert entries(tmp_path) == []


def test_speech_that_fails_is_not_kept(tmp_path: Path) -> None:
    """The second part of a text fails; the first one was complete."""

    def fail(plan: Plan) -> None:
        if any(sequence.pending.request.context is not None for sequence in plan.step):
            raise SynthesisFailed("broken on purpose")

    with caching(tmp_path, fail, max_part_chars=15) as server:
        with httpx.stream("POST", server.url + SPEECH, json={**BODY, "input": "One two three. Four five six."}) as it:
            broken_text(it)
        wait_until(lambda: server.service.speaking == 0)
    assert entries(tmp_path) == []


def test_samples_that_are_no_numbers_are_not_kept(tmp_path: Path) -> None:
    """A resampler hands the last ones on after the engine has ended."""

    class Faulty(FakeRunner):
        def run(self, plan: Plan) -> Outcome:
            outcome = super().run(plan)
            for chunk in outcome.audio.values():
                chunk.pcm[-1] = np.nan
            return outcome

    engine = Engine(Faulty(), EngineConfig(), fake_voices(), "fake")
    with live_server(engine, ServerConfig(cache_dir=tmp_path)) as server:
        body = {**BODY, "input": "Hi", "sample_rate": 8000, "stream": False}
        answers = [httpx.post(server.url + SPEECH, json=body, timeout=HUNG_S) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [500, 500]
        assert counts(server) == {"phrases miss": 2}
    assert entries(tmp_path) == []


def test_two_same_requests_at_once_are_both_whole(tmp_path: Path) -> None:
    gate = Gate()
    with caching(tmp_path, gate) as server:

        async def both() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=server.url) as client:
                asked = [asyncio.create_task(client.post(SPEECH, json=BODY)) for _ in range(2)]
                await asyncio.to_thread(wait_until, lambda: server.service.speaking == 2)
                gate.open()
                return list(await asyncio.gather(*asked))

        one, other = asyncio.run(both())
        hit = say(server)
    assert one.content == other.content == hit.content
    assert hit.headers[STATE] == "hit"
    assert len(entries(tmp_path)) == 1


# ---- damage, and disks that do not serve


def test_a_damaged_entry_is_made_again(tmp_path: Path) -> None:
    with caching(tmp_path) as server:
        miss = say(server)
        (entry,) = entries(tmp_path)
        sound = entry.read_bytes()
        entry.write_bytes(sound[:5000] + b"\0" + sound[5001:])
        assert say(server).content == miss.content
        assert entry.read_bytes() == sound
        assert state(server) == "hit"
        assert counts(server) == {"phrases miss": 2, "phrases hit": 1, "stored": 2, "errors damaged": 1}


def test_a_full_disk_costs_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write

    def full(file: int, data: bytes) -> int:
        if threading.current_thread().name.startswith("vivavoce-cache"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    with caching(tmp_path) as server:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            one, two = (say(server) for _ in range(2))
        assert counts(server) == {"phrases miss": 2, "errors write": 2}
        wait_until(lambda: entries(tmp_path) == [])
        assert [state(server), state(server)] == ["miss", "hit"]
        assert one.content == two.content == say(server).content
    told = [record.getMessage() for record in caplog.records if "phrase cache" in record.getMessage()]
    assert told == ["the phrase cache lost an entry; write: No space left on device"]


def test_a_folder_that_cannot_be_used_costs_the_cache_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a folder")
    with caching(tmp_path / "file") as server:
        assert state(server) is None
        assert counts(server) == {"errors write": 1}
    assert "no phrases will be cached" in caplog.text


def test_a_folder_that_is_deleted_costs_entries_alone(tmp_path: Path) -> None:
    with caching(tmp_path / "cache") as server:
        miss = say(server)
        for path in (tmp_path / "cache" / FOLDER).iterdir():
            path.unlink()
        (tmp_path / "cache" / FOLDER).rmdir()
        assert [say(server).content, say(server).content] == [miss.content] * 2
        assert counts(server) == {"phrases miss": 3, "stored": 1, "errors write": 2}


# ---- HTTP


def test_a_client_that_has_the_file_gets_no_body_and_costs_no_speech(tmp_path: Path) -> None:
    with caching(tmp_path) as server:
        first = say(server)
        tag = first.headers["ETag"]
        steps = server.engine.stats().steps
        for sent in (tag, f"W/{tag}", f'"other", {tag}', f'"a,b",{tag} , W/"x"'):
            known = httpx.post(server.url + SPEECH, json=BODY, headers={"If-None-Match": sent})
            assert (known.status_code, known.content) == (304, b"")
            assert known.headers["ETag"] == tag
            assert (
                known.headers["Cache-Control"] == first.headers["Cache-Control"] == ("private, no-cache, no-transform")
            )
            assert "Content-Type" not in known.headers
            assert "Transfer-Encoding" not in known.headers
        assert server.engine.stats().steps == steps
        assert counts(server) == {"phrases miss": 1, "phrases not_modified": 4, "stored": 1}
        for sent in ("*", '"other"', tag.strip('"'), "", '"', tag.replace(tag[-2], "g")):
            assert say(server, {"If-None-Match": sent}).headers[STATE] == "hit"


def test_texts_that_sound_alike_have_tags_of_their_own_if_words_are_told(tmp_path: Path) -> None:
    alike = [{**BODY, "input": text, "stream": False, "normalize": True} for text in ("There is 1.", "There is one.")]
    with caching(tmp_path) as server:
        answers = [httpx.post(server.url + SPEECH, json=body) for body in alike]
        assert [answer.headers[STATE] for answer in answers] == ["miss", "hit"]
        assert answers[0].headers["ETag"] == answers[1].headers["ETag"]
        told = [httpx.post(server.url + SPEECH, json={**body, "word_timestamps": True}) for body in alike]
    words = [answer.headers["X-Word-Timestamps"] for answer in told]
    assert words[0] != words[1]
    assert told[0].headers["ETag"] != told[1].headers["ETag"]


def test_the_tag_is_known_before_the_speech(tmp_path: Path) -> None:
    with caching(tmp_path / "one") as server:
        tag = say(server).headers["ETag"]
    with caching(tmp_path / "two") as server:
        assert httpx.post(server.url + SPEECH, json=BODY, headers={"If-None-Match": tag}).status_code == 304
        assert server.engine.stats().steps == 0
        assert entries(tmp_path / "two") == []
        both = [("If-None-Match", '"other"'), ("If-None-Match", tag)]
        assert httpx.post(server.url + SPEECH, json=BODY, headers=both).status_code == 304


def test_each_file_has_a_tag_of_its_own(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        *({"response_format": name} for name in FORMATS),
        *({"response_format": name, "stream": False} for name in FORMATS),
        {"speed": 1.5},
        {"sample_rate": 8000},
        {"leading_silence": "keep"},
        {"input": "Hello [pause:1s] there."},
        {"input": "Hello [pause:2s] there."},
        {"seed": 8},
        {"voice": "michael"},
    ]
    with caching(tmp_path) as server:
        tags = [say(server, **change).headers["ETag"] for change in changes]
        again = [say(server, **change).headers["ETag"] for change in changes]
    assert tags == again
    assert len(set(tags)) == len(tags)
    assert all(tag.startswith('"') and tag.endswith('"') for tag in tags)


def test_streams_of_events_have_no_tag(tmp_path: Path) -> None:
    with caching(tmp_path) as server:
        answer = say(server, stream_format="sse")
        timed = httpx.post(f"{server.url}{ELEVENLABS}/stream/with-timestamps", json={"text": "Hi.", "seed": 1})
    for each in (answer, timed):
        assert "ETag" not in each.headers
        assert each.headers["Cache-Control"] == "no-store"
        assert each.headers[STATE] == "miss"


def test_a_tag_opens_nothing(tmp_path: Path) -> None:
    """A client needs the key, the right to ask, and a voice that exists, as for speech."""
    config: dict[str, Any] = {"api_keys": (SecretStr("one"), SecretStr("two")), "key_requests_per_minute": 4}
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    with caching(tmp_path, **config) as server:
        miss = say(server, one)
        known = {"If-None-Match": miss.headers["ETag"]}
        assert httpx.post(server.url + SPEECH, json=BODY, headers=known).status_code == 401
        assert say(server, two).headers[STATE] == "hit"
        nobody = httpx.post(server.url + SPEECH, json={**BODY, "voice": "nobody"}, headers={**one, **known})
        assert nobody.status_code == 400
        assert httpx.post(server.url + SPEECH, json=BODY, headers={**one, **known}).status_code == 304
        assert say(server, one).headers[STATE] == "hit"
        refused = httpx.post(server.url + SPEECH, json=BODY, headers={**one, **known})
        assert refused.status_code == 429
        assert "ETag" not in refused.headers


def test_a_hit_waits_for_no_row(tmp_path: Path) -> None:
    gate, is_held = Gate(), threading.Event()

    def hold(plan: Plan) -> None:
        if is_held.is_set():
            gate(plan)

    with caching(tmp_path, hold, engine=EngineConfig(max_streams=1, max_queue=1)) as server:
        miss = say(server)
        is_held.set()
        others = [threading.Thread(target=say, args=(server,), kwargs={"seed": seed}) for seed in (1, 2)]
        for other in others:
            other.start()
        wait_until(lambda: server.engine.stats().queued == 1)
        assert say(server).content == miss.content
        assert httpx.post(server.url + SPEECH, json={**BODY, "seed": 3}).status_code == 429
        gate.open()
        for other in others:
            other.join()


def test_the_metrics_are_there_from_the_start(tmp_path: Path) -> None:
    def found() -> dict[tuple[str, str], float]:
        labels = ("source", "kind")
        return {(it.name, "".join(it.labels.get(name, "") for name in labels)): it.value for it in samples(server)}

    with caching(tmp_path) as server:
        numbers = found()
        for source in ("hit", "miss", "bypass", "not_modified"):
            assert numbers["vivavoce_cache_phrases_total", source] == 0
        for kind in ("damaged", "read", "write"):
            assert numbers["vivavoce_cache_errors_total", kind] == 0
        for name in ("bytes", "stored_total", "evicted_total"):
            assert numbers[f"vivavoce_cache_{name}", ""] == 0
        say(server)
        (entry,) = entries(tmp_path)
        assert found()["vivavoce_cache_bytes", ""] == entry.stat().st_size


def test_old_phrases_leave_for_new_ones(tmp_path: Path) -> None:
    """A phrase takes 0.74 MB, and the folder has 4.2."""
    with caching(tmp_path, cache_size_mb=4) as server:
        assert [state(server, input=WORDS, seed=seed) for seed in range(8)] == ["miss"] * 8
        assert state(server, input=WORDS, seed=7) == "hit"
        assert state(server, input=WORDS, seed=0) == "miss"
        assert counts(server)["evicted"] >= 4
        assert state(server, input=WORDS * 2, seed=0) == "miss"  # more than a quarter of the folder
        assert state(server, input=WORDS * 2, seed=0) == "miss"
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 4 * 2**20


def test_the_line_of_a_request_tells_whether_the_cache_had_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[tuple[str, str | None]]:
        found = [each.__dict__["fields"] for each in caplog.records if each.name.endswith("request_lines")]
        return [(fields["event"], fields.get("cache")) for fields in found if "outcome" in fields]

    with caching(tmp_path) as server, caplog.at_level("INFO", "vivavoce_server"):
        tag = say(server, seed=7).headers["ETag"]
        say(server, seed=7)
        httpx.post(server.url + SPEECH, json={**BODY, "seed": 7}, headers={"If-None-Match": tag})
        say(server, seed=None)
        shared = {name: value for name, value in BODY.items() if name != "input"}
        httpx.post(f"{server.url}{SPEECH}/batch", json={**shared, "items": [{"input": BODY["input"]}]})
        wait_until(lambda: len(told()) == 5)
    assert told()[-1] == ("item", "hit")
    assert [source for _, source in told()] == ["miss", "hit", "not_modified", "bypass", "hit"]
