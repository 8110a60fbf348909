"""Characters and words a minute: the same by every way that tells a usage, and in the metrics."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import ServerConfig
from vivavoce_server.speaking_rate import NOTHING_SAID, SpeakingRate

from tests.server.test_metrics import samples
from tests.server.test_realtime import begin
from tests.server.test_sse import events
from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import dial
from tests.support.realtime_socket import dial_realtime
from tests.support.waiting import HUNG_S

SPEECH, BATCH = "/v1/audio/speech", "/v1/audio/speech/batch"
TEXT = "It costs $5. Pay now."
SAID = "It costs five dollars. Pay now."
FRAME_MIN = 0.08 / 60
OPTIONS: dict[str, Any] = {"voice": "heart", "seed": 7, "response_format": "pcm", "normalize": True}
Rate = tuple[float | None, float | None]


def rate_of(characters: int, words: int) -> Rate:
    """Rate of the engine below, whose speech has two frames for each character."""
    minutes = 2 * characters * FRAME_MIN
    return round(characters / minutes, 1), round(words / minutes, 1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    engine = Engine(FakeRunner(frames_per_character=2), EngineConfig(), fake_voices(), "fake")
    config = ServerConfig(cache_dir=tmp_path_factory.mktemp("phrases"), leading_silence="keep")
    with live_server(engine, config) as running:
        yield running


def told(usage: dict[str, Any]) -> Rate:
    return usage["characters_per_minute"], usage["words_per_minute"]


def say(server: LiveServer, **fields: Any) -> httpx.Response:
    response = httpx.post(server.url + SPEECH, json={"input": TEXT, **OPTIONS, **fields}, timeout=HUNG_S)
    assert response.status_code == 200, response.text
    return response


def usage_of(server: LiveServer, **fields: Any) -> dict[str, Any]:
    usage: dict[str, Any] = events(say(server, stream_format="sse", **fields).text)[-1][1]["usage"]
    return usage


def header_rate(response: httpx.Response) -> Rate:
    names = ("X-Usage-Characters-Per-Minute", "X-Usage-Words-Per-Minute")
    characters, words = (response.headers.get(name) for name in names)
    return characters and float(characters), words and float(words)


def test_each_route_tells_the_rate_of_what_is_said_and_a_cached_phrase_that_of_its_speech(server: LiveServer) -> None:
    expected = rate_of(len(SAID), 6)
    assert expected == (375.0, 72.6)
    for source in ("miss", "hit"):
        whole = say(server, stream=False)
        assert whole.headers["X-Vivavoce-Cache"] == source
        assert header_rate(whole) == expected
    assert told(usage_of(server)) == expected
    batch = httpx.post(server.url + BATCH, json={**OPTIONS, "items": [{"input": TEXT}]}).json()
    assert told(batch["results"][0]["usage"]) == expected


async def test_sockets_tell_it_too(server: LiveServer) -> None:
    expected = rate_of(len(SAID), 6)
    async with dial(server) as socket:
        await socket.configure(normalize=True)
        await socket.say(TEXT[:9], TEXT[9:])
        await socket.send("input.done")
        assert told((await socket.utterance()).done) == expected
    async with dial_realtime(server) as realtime:
        await begin(realtime)
        await realtime.say(TEXT)
        # The model reads prose, so that the text stays as it is written.
        assert told((await realtime.response()).response["usage"]) == rate_of(len(TEXT), 5)


def test_pauses_and_speed_change_no_rate(server: LiveServer) -> None:
    assert told(usage_of(server, input="One two. [pause:2s] Three.")) == rate_of(len("One two. ") + len(" Three."), 3)
    assert told(usage_of(server, input="One two. Three.", speed=2)) == rate_of(len("One two. Three."), 3)
    segments = [
        {"voice": "heart", "text": "One two.", "speed": 0.5},
        {"voice": "michael", "text": "Three.", "speed": 2},
    ]
    assert told(usage_of(server, input=None, voice=None, segments=segments)) == rate_of(
        len("One two.") + len("Three."), 3
    )


def test_a_text_that_was_cut_has_no_rate(server: LiveServer) -> None:
    cut = say(server, max_new_tokens=10, stream=False)
    assert cut.headers["X-Finish-Reason"] == "length"
    assert header_rate(cut) == (None, None)
    assert told(usage_of(server, max_new_tokens=10)) == (None, None)
    # The parts that ended by themselves have one: the first takes ten frames, and the second is cut.
    assert told(usage_of(server, input="One. [pause:1s] And two three.", max_new_tokens=10)) == rate_of(len("One. "), 1)


def rates(server: LiveServer) -> dict[str, float]:
    return {sample.name: sample.value for sample in samples(server) if "_per_minute_" in sample.name}


def test_the_metrics_have_complete_speech_of_a_second_or_more() -> None:
    engine = Engine(FakeRunner(frames_per_character=2), EngineConfig(), fake_voices())
    with live_server(engine) as server:
        say(server, input="Six by", seed=1)  # 12 frames: 0.96 s
        say(server, max_new_tokens=10)
        assert rates(server)["vivavoce_characters_per_minute_count"] == 0
        say(server, input="One two three.", speed=4)
        found = rates(server)
    characters, words = rate_of(len("One two three."), 3)
    assert found["vivavoce_characters_per_minute_count"] == found["vivavoce_words_per_minute_count"] == 1
    assert (found["vivavoce_characters_per_minute_sum"], found["vivavoce_words_per_minute_sum"]) == (characters, words)


def test_rates_add_up_by_their_seconds() -> None:
    both = SpeakingRate.of(" Slow words. ", 6.0) + SpeakingRate.of("Fast.", 0.5)
    assert both == SpeakingRate(13 + 5, 3, 6.5)
    assert both.fields() == {"characters_per_minute": 166.2, "words_per_minute": 27.7}
    assert SpeakingRate.of("[]", 0.0) == SpeakingRate.of(" ", 1.0) == NOTHING_SAID
    assert json.dumps(NOTHING_SAID.fields()) == '{"characters_per_minute": null, "words_per_minute": null}'
