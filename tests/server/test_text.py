"""Parts of a text that is spoken: pauses, splitting, one recording of them all."""

from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, tone
from vivavoce_server import ServerConfig
from vivavoce_server.errors import ApiError
from vivavoce_server.jobs import prepare
from vivavoce_server.schemas import SpeechRequest
from vivavoce_server.service import Service
from vivavoce_server.text_parts import split_long

from tests.support.live_server import Gate, LiveServer, ask_and_leave, fake_engine, live_server, spoken_request
from tests.support.scripts import parts_of
from tests.support.waiting import wait_until

SAMPLE_RATE = 24000
BODY = {"voice": "heart", "response_format": "pcm", "seed": 7}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Plain text. ", ["Plain text. "]),
        ("One.[pause:0.5s]Two.", ["One.", 0.5, "Two."]),
        ("[PAUSE: 250 ms] Hi [pause:1s]", [0.25, "Hi ", 1.0]),
        ("A[pause:1s][pause:2s]B", ["A", 1.0, 2.0, "B"]),
        ("[pauses] and [x]", ["[pauses] and [x]"]),
        ("[pause:1s]", [1.0]),
        ("Hi.[pause:1s] ... [pause:1s]\u201cYes\u201d", ["Hi.", 1.0, 1.0, "\u201cYes\u201d"]),
        (" \u2014 ", []),
    ],
)
def test_pauses(text: str, parts: list[str | float]) -> None:
    assert parts_of(text, "english", 1000) == parts


@pytest.mark.parametrize("text", ["Hi [pause:long]", "Hi [pause:]", "Hi [pause:11s]", "Hi [pause:-1s]"])
def test_a_wrong_pause_is_refused(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        parts_of(text, "english", 1000)
    assert (caught.value.status, caught.value.detail.param) == (400, "input")


def test_a_long_text_is_split_between_sentences() -> None:
    text = "Dr. Smith came at 3.30 p.m. today. He left early! Was it far? No."
    assert split_long(text, "english", 40) == ["Dr. Smith came at 3.30 p.m. today.", " He left early! Was it far? No."]
    assert split_long(text, "english", 200) == [text]


def test_a_long_sentence_is_split_at_its_commas_then_words() -> None:
    text = "one two three, four five six seven eight nine ten"
    assert split_long(text, "english", 20) == ["one two three,", " four five six seven", " eight nine ten"]
    assert split_long("a" * 25, "english", 10) == ["a" * 10, "a" * 10, "a" * 5]


def test_chinese_is_split_too() -> None:
    text = "今天天气很好。我们去公园吧。"
    assert split_long(text, "chinese", 8) == ["今天天气很好。", "我们去公园吧。"]


@given(st.text(max_size=300), st.integers(1, 50))
def test_splitting_keeps_every_word_and_the_limit(text: str, max_chars: int) -> None:
    pieces = split_long(text, "auto", max_chars)
    assert "".join(pieces).rstrip() == text.rstrip()
    assert all(len(piece.strip()) <= max_chars for piece in pieces) or len(text) <= max_chars
    assert all(piece.strip() for piece in pieces)


def post(server: LiveServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/audio/speech", json={**BODY, **fields})


def test_a_pause_is_exact_silence(server: LiveServer) -> None:
    samples = np.frombuffer(post(server, input="First part.[pause:0.5s]Second part.").content, "<i2")
    first, second = (np.rint(tone(7, 0, len(text)) * 32767) for text in ("First part.", "Second part."))
    np.testing.assert_array_equal(samples, np.concatenate([first, np.zeros(12000), second]))


def test_a_pause_is_as_long_at_any_speed(server: LiveServer) -> None:
    samples = np.frombuffer(post(server, input="First part.[pause:0.5s]Second part.", speed=2).content, "<i2")
    quiet = np.convolve(np.abs(samples.astype(np.float64)), np.ones(100) / 100, "same") < 10
    # The stretcher blends over a window at both ends.
    assert quiet.sum() / SAMPLE_RATE == pytest.approx(0.5, abs=0.06)


def test_usage_counts_all_parts(server: LiveServer) -> None:
    response = post(server, input="Four[pause:1s]Sixsix", stream=False)
    assert response.headers["x-usage-input-tokens"] == response.headers["x-usage-output-tokens"] == "10"


def test_a_long_text_holds_one_row_and_leaves_none() -> None:
    rows: list[int] = []
    engine = fake_engine(EngineConfig(max_streams=8), before_step=lambda plan: rows.append(len(plan.step)))
    with live_server(engine, ServerConfig(max_part_chars=20)) as server:
        text = "This is a sentence. " * 12
        response = post(server, input=text.strip())
        assert len(response.content) == len(text.strip()) * 1920 * 2
        assert max(rows) == 1
        wait_until(lambda: engine.stats().running == engine.stats().queued == 0)


def test_parts_share_one_seed() -> None:
    plans: list[Plan] = []
    with live_server(fake_engine(before_step=plans.append), ServerConfig(max_part_chars=20)) as server:
        post(server, input="This is a sentence. And here is another.", seed=None)
    started = {sequence.utterance_id: sequence.pending.seed for plan in plans for sequence in plan.start}
    assert len(started) == 2
    assert len(set(started.values())) == 1


def test_each_part_goes_on_from_the_one_before() -> None:
    """From its text and all of its codes; the blanks between them are the later one's."""
    plans: list[Plan] = []
    with live_server(fake_engine(before_step=plans.append), ServerConfig(max_part_chars=20)) as server:
        post(server, input="This is a sentence.  And here is another.[pause:1s]The last.", normalize=False)
    requests = [spoken_request(sequence) for plan in plans for sequence in plan.start]
    assert [request.text for request in requests] == ["This is a sentence.", "  And here is another.", "The last."]
    contexts = [request.context for request in requests]
    assert contexts[0] is None
    for said, context in zip(requests, contexts[1:], strict=False):
        assert context is not None
        assert context.text == said.text
        assert np.array_equal(context.codes, np.arange(len(said.text))[:, None])


def test_a_part_begins_before_the_one_before_it_is_read() -> None:
    """The client reads nothing: its socket is full with the first part, of 30 s of speech at most unread."""
    begun: list[str] = []
    engine = fake_engine(before_step=lambda plan: begun.extend(spoken_request(row).text for row in plan.start))
    with live_server(engine, ServerConfig(max_part_chars=300)) as server:
        text = ("word " * 50).strip() + "."
        body = {**BODY, "input": f"{text} {text}", "sample_rate": 48000}
        ask_and_leave(server, "/v1/audio/speech", body, lambda: len(begun) == 2)
    assert begun == [text, f" {text}"]


async def test_a_model_says_no_more_in_one_go_than_it_can() -> None:
    engine = Engine(FakeRunner(replace(FAKE_INFO, max_utterance_chars=12)), EngineConfig())
    request = SpeechRequest(input="One two three. Four five.", voice="heart")
    job = await prepare(request, Service({"fake": engine}, ServerConfig())).read()
    assert job.parts == ("One two", " three.", " Four five.")


def test_leaving_in_a_later_part_frees_everything() -> None:
    gate = Gate(hold_from_step=25)
    with live_server(fake_engine(before_step=gate), ServerConfig(max_part_chars=20)) as server:
        body = {**BODY, "input": "This is a sentence. " * 12, "stream": False}
        stats = server.engine.stats
        ask_and_leave(server, "/v1/audio/speech", body, lambda: stats().running > 0 and stats().steps == 25)
        gate.open()
        wait_until(lambda: stats().running == stats().queued == 0)


def test_the_fake_model_is_what_these_tests_assume() -> None:
    assert (FAKE_INFO.sample_rate, FAKE_INFO.samples_per_frame) == (24000, 1920)
