"""Endless speech: a whole answer is made a second time, a streamed one ends with an error, and both are counted."""

import json
from typing import Any

import httpx
import pytest
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.fake_runner import FakeRunner
from vivavoce_server import ServerConfig

from tests.server.test_metrics import scrape
from tests.support.broken import broken_text
from tests.support.live_server import live_server
from tests.support.live_socket import dial, pcm_of

SPEECH, BATCH = "/v1/audio/speech", "/v1/audio/speech/batch"
ENDLESS = "vivavoce_endless_speech_total"


class Endless(FakeRunner):
    """Its first `attempts` utterances never end."""

    def __init__(self, attempts: int) -> None:
        super().__init__()
        self._attempts = attempts
        self.seeds: list[int] = []

    def _ends(self, sequence: Sequence) -> bool:
        seed = sequence.pending.seed
        if seed not in self.seeds:
            self.seeds.append(seed)
        return self.seeds.index(seed) >= self._attempts and super()._ends(sequence)


def body(**fields: Any) -> dict[str, Any]:
    return {"input": "Hello.", "voice": "heart", "response_format": "pcm", "stream": False, **fields}


def test_a_whole_answer_is_made_anew_with_another_seed() -> None:
    runner = Endless(attempts=1)
    with live_server(Engine(runner, EngineConfig())) as server:
        response = httpx.post(server.url + SPEECH, json=body())
        numbers = scrape(server)
    assert response.status_code == 200
    assert len(runner.seeds) == 2
    assert response.content == pcm_of(runner.seeds[1], len("Hello."))
    assert response.headers["x-usage-output-tokens"] == str(len("Hello."))
    assert numbers[ENDLESS, ""] == 1
    assert numbers["vivavoce_requests_total", "completed"] == 1


def test_the_words_of_a_second_attempt_are_its_own() -> None:
    with live_server(Engine(Endless(attempts=1), EngineConfig())) as server:
        response = httpx.post(server.url + SPEECH, json=body(input="Hello you.", word_timestamps=True))
    words = json.loads(response.headers["x-word-timestamps"])
    assert words == [{"word": "Hello", "start_ms": 0, "end_ms": 400}, {"word": "you", "start_ms": 480, "end_ms": 800}]


def test_a_long_text_is_made_anew_as_one_recording() -> None:
    runner = Endless(attempts=1)
    with live_server(Engine(runner, EngineConfig()), ServerConfig(max_part_chars=10)) as server:
        response = httpx.post(server.url + SPEECH, json=body(input="One two. Three."))
    first, again = runner.seeds
    assert first != again
    assert response.content == pcm_of(again, len("One two.")) + pcm_of(again, len(" Three."))


@pytest.mark.parametrize(("fields", "attempts"), [({}, 2), ({"seed": 4}, 1)])
def test_after_two_attempts_or_with_the_clients_seed_it_is_an_error(fields: dict[str, int], attempts: int) -> None:
    runner = Endless(attempts=9)
    with live_server(Engine(runner, EngineConfig())) as server:
        response = httpx.post(server.url + SPEECH, json=body(**fields))
        numbers = scrape(server)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (500, "server_error", "endless_speech")
    assert len(runner.seeds) == attempts
    assert numbers[ENDLESS, ""] == attempts
    assert numbers["vivavoce_requests_total", "failed"] == 1


def test_an_item_of_a_batch_is_a_whole_answer() -> None:
    runner = Endless(attempts=1)
    with live_server(Engine(runner, EngineConfig())) as server:
        batch = {"voice": "heart", "items": [{"input": "One."}, {"input": "Two, three."}]}
        results = httpx.post(server.url + BATCH, json=batch).json()["results"]
    assert [result["status"] for result in results] == ["success", "success"]
    assert len(runner.seeds) == 3


def test_events_end_with_an_error_and_the_transfer_breaks_off() -> None:
    with live_server(Engine(Endless(attempts=1), EngineConfig())) as server:
        with httpx.stream("POST", server.url + SPEECH, json=body(stream=True, stream_format="sse")) as response:
            text = broken_text(response)
        numbers = scrape(server)
    assert "event: speech.audio.delta" in text
    assert text.rstrip().rsplit("\r\n\r\n", 1)[-1].startswith("event: speech.audio.error")
    assert '"endless_speech"' in text
    assert "speech.audio.done" not in text
    assert numbers[ENDLESS, ""] == numbers["vivavoce_requests_total", "cut_off"] == 1


def test_a_streamed_file_breaks_off() -> None:
    with live_server(Engine(Endless(attempts=1), EngineConfig())) as server:
        with (
            httpx.stream("POST", server.url + SPEECH, json=body(stream=True)) as response,
            pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"),
        ):
            response.read()
        assert scrape(server)[ENDLESS, ""] == 1


async def test_a_live_utterance_ends_with_an_error_and_the_connection_stays() -> None:
    runner = Endless(attempts=1)
    with live_server(Engine(runner, EngineConfig())) as server:
        async with dial(server) as socket:
            await socket.configure(seed=1)
            await socket.say("Hello.")
            await socket.send("input.done")
            await socket.expect("audio.start")
            while isinstance(message := await socket.receive(), bytes):
                pass
            assert message["error"]["code"] == "endless_speech"
            assert (await socket.expect("audio.done"))["cancelled"]
            await socket.send("session.config", voice="heart", seed=2)
            await socket.say("Hi!")
            await socket.send("input.done")
            assert (await socket.utterance()).audio == pcm_of(2, 3)
        assert scrape(server)[ENDLESS, ""] == 1
