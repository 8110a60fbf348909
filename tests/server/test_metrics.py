"""/metrics: the names, and values that match the requests."""

import asyncio

import httpx
import pytest
from fastapi.exceptions import RequestValidationError
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from pydantic import SecretStr
from starlette.exceptions import HTTPException
from vivavoce_engine import Engine, EngineConfig, NotServing, Overloaded, Rejected, SynthesisFailed
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import ServerConfig
from vivavoce_server.errors import ApiError
from vivavoce_server.ledger import Ledger
from vivavoce_server.metrics import Metrics, SpeechMeter, outcome_of

from tests.support.live_server import Gate, LiveServer, ask_and_leave, fake_engine, live_server
from tests.support.live_socket import dial
from tests.support.stepping import LateRunner
from tests.support.texts import plain_text
from tests.support.waiting import wait_until

KEY = {"Authorization": "Bearer key"}
BODY = {"input": "Hello.", "voice": "heart"}


def samples(server: LiveServer) -> list[Sample]:
    text = httpx.get(f"{server.url}/metrics").text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def scrape(server: LiveServer) -> dict[tuple[str, str], float]:
    """(sample name, outcome or bucket or "") → value, summed over models."""
    numbers: dict[tuple[str, str], float] = {}
    for sample in samples(server):
        key = sample.name, sample.labels.get("outcome", sample.labels.get("le", ""))
        numbers[key] = numbers.get(key, 0.0) + sample.value
    return numbers


def outcomes(server: LiveServer) -> dict[tuple[str, str], float]:
    """(model, outcome) → how many requests, of what there is."""
    found = {
        (sample.labels["model"], sample.labels["outcome"]): sample.value
        for sample in samples(server)
        if sample.name == "vivavoce_requests_total"
    }
    return {labels: value for labels, value in found.items() if value}


def test_every_series_is_there_before_its_first_event() -> None:
    """Prometheus' rates are differences: of a series that begins with 1, they never see that 1."""
    with live_server({"one": fake_engine(), "two": fake_engine()}) as server:
        found = {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples(server)}
    for model in ("one", "two"):
        of_model = ("model", model)
        for outcome in ("completed", "disconnected", "cancelled", "rejected", "refused", "failed", "cut_off"):
            assert found["vivavoce_requests_total", of_model, ("outcome", outcome)] == 0
        for reason in ("error", "out_of_memory", "device", "hang", "killed", "load"):
            assert found["vivavoce_engine_restarts_total", of_model, ("reason", reason)] == 0
        for name in ("endless_speech_total", "audio_seconds_total", "frames_total", "engine_steps_total"):
            assert found[f"vivavoce_{name}", of_model] == 0
        rates = ("characters_per_minute", "words_per_minute")
        for name in ("ttfa_seconds", "queue_wait_seconds", "rtf", "underrun_seconds", *rates):
            assert found[f"vivavoce_{name}_count", of_model] == 0
    for outcome in ("disconnected", "rejected", "refused", "failed"):
        assert found["vivavoce_requests_total", ("model", ""), ("outcome", outcome)] == 0


async def test_what_is_wrong_is_rejected_and_what_is_too_much_is_refused() -> None:
    gate = Gate()
    config = ServerConfig(live_max_sessions=1)
    with live_server(fake_engine(EngineConfig(max_streams=1, max_queue=1), before_step=gate), config) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            wrong = (
                {"input": "Hello."},  # no voice
                BODY | {"sped": 1},
                BODY | {"model": "other"},
                BODY | {"input": ""},
                BODY | {"input": "a" * 5000},
            )
            for body in wrong:
                assert (await client.post("/v1/audio/speech", json=body)).status_code in (400, 404)
            batch = {
                "voice": "heart",
                "items": [{"input": "Hi!", "model": "other"}, {"input": "Hi!", "voice": "nobody"}],
            }
            assert (await client.post("/v1/audio/speech/batch", json=batch)).json()["failed"] == 2
            assert outcomes(server) == {("", "rejected"): 5, ("fake", "rejected"): 2}

            accepted = [asyncio.create_task(client.post("/v1/audio/speech", json=BODY)) for _ in range(2)]
            await asyncio.to_thread(wait_until, lambda: server.engine.stats().queued == 1)
            assert (await client.post("/v1/audio/speech", json=BODY)).status_code == 429
            (item,) = (await client.post("/v1/audio/speech/batch", json={"items": [BODY]})).json()["results"]
            assert item["status_code"] == 429
            async with dial(server) as socket, dial(server) as one_too_many:
                assert await one_too_many.close_code() == 1013
                await socket.configure()
                await socket.say("Hello there.")
                await socket.send("input.done")
                await socket.expect("audio.start")
                assert (await socket.error())["code"] == "queue_full"
                await socket.expect("audio.done")
            assert outcomes(server) == {
                ("", "rejected"): 5,
                ("fake", "rejected"): 2,
                ("", "refused"): 1,
                ("fake", "refused"): 3,
            }

            server.service.drain()
            assert (await client.post("/v1/audio/speech", json=BODY)).status_code == 503
            assert outcomes(server)["fake", "refused"] == 4
            gate.open()
            assert {(await request).status_code for request in accepted} == {200}
            assert outcomes(server)["fake", "completed"] == 2


def test_a_request_without_a_key_is_rejected_and_one_beyond_its_limit_refused() -> None:
    config = ServerConfig(api_keys=(SecretStr("key"),), key_requests_per_minute=1)
    with live_server(config=config) as server:
        statuses = [
            httpx.post(f"{server.url}/v1/audio/speech", json=BODY, headers=headers).status_code
            for headers in ({}, KEY, KEY)
        ]
        assert statuses == [401, 200, 429]
        text = httpx.get(f"{server.url}/metrics", headers=KEY).text
    for labels in ('model="",outcome="rejected"', 'model="fake",outcome="completed"', 'model="fake",outcome="refused"'):
        assert f"vivavoce_requests_total{{{labels}}} 1.0" in text


@pytest.mark.parametrize(
    ("error", "before", "after"),
    [
        (Overloaded("full", 1), "refused", "refused"),
        (NotServing("stopped"), "refused", "failed"),
        (Rejected("text", "too long"), "rejected", "rejected"),
        (SynthesisFailed("broken"), "failed", "failed"),
        (ApiError(429, "a limit", None, "rate_limit_exceeded"), "refused", "refused"),
        (ApiError(404, "no model", "model", "model_not_found"), "rejected", "rejected"),
        (RequestValidationError([]), "rejected", "rejected"),
        (HTTPException(413), "rejected", "rejected"),
        (ZeroDivisionError(), "failed", "failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_outcomes_of_errors(error: Exception, before: str, after: str) -> None:
    assert (outcome_of(error), outcome_of(error, admitted=True)) == (before, after)


def test_speech_is_counted(server: LiveServer) -> None:
    for _ in range(2):
        httpx.post(f"{server.url}/v1/audio/speech", json=BODY)
    numbers = scrape(server)
    assert numbers["vivavoce_requests_total", "completed"] == 2
    assert numbers["vivavoce_ttfa_seconds_count", ""] == 2
    assert numbers["vivavoce_rtf_count", ""] == 2
    assert numbers["vivavoce_queue_wait_seconds_count", ""] == 2
    assert numbers["vivavoce_underrun_seconds_count", ""] == 2
    assert numbers["vivavoce_audio_seconds_total", ""] == pytest.approx(2 * len("Hello.") * 0.08)
    assert numbers["vivavoce_frames_total", ""] == 2 * len("Hello.")
    assert numbers["vivavoce_rows", ""] == 8
    assert numbers["vivavoce_active_rows", ""] == numbers["vivavoce_queued", ""] == 0
    assert numbers["vivavoce_engine_steps_total", ""] >= len("Hello.")


@pytest.mark.parametrize(("whole", "last"), [(False, "cut_off"), (True, "refused")])
async def test_speech_that_gives_way_is_cut_off_if_it_was_heard(whole: bool, last: str) -> None:
    """Two that need two pages each, of which there are two, and are taken to need one."""
    engine_config = EngineConfig(max_streams=2, max_context=128, kv_positions=128)
    gate = Gate()
    runner = LateRunner(FakeRunner(frames_per_character=10, before_step=gate))
    engine = Engine(runner, engine_config, fake_voices())

    async def ask(client: httpx.AsyncClient) -> str:
        try:
            body = {**BODY, "input": plain_text(10), "response_format": "pcm", "stream": not whole}
            return str((await client.post("/v1/audio/speech", json=body)).status_code)
        except httpx.RemoteProtocolError:
            return "cut off"

    with live_server(engine) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            asked = [asyncio.create_task(ask(client)) for _ in range(2)]
            await asyncio.to_thread(wait_until, lambda: engine.stats().running + engine.stats().queued == 2)
            gate.open()
            answers = await asyncio.gather(*asked)
        assert outcomes(server) == {("fake", "completed"): 1, ("fake", last): 1}
    assert sorted(answers) == ["200", "429" if whole else "cut off"]


def test_aborts_are_counted_by_reason() -> None:
    gate = Gate()
    with live_server(fake_engine(before_step=gate)) as server:
        ask_and_leave(server, "/v1/audio/speech", BODY, lambda: server.engine.stats().running == 1)
        gate.open()
        wait_until(lambda: scrape(server)["vivavoce_requests_total", "disconnected"] == 1)
        server.engine.drain()
        httpx.post(f"{server.url}/v1/audio/speech", json=BODY)
        numbers = scrape(server)
    assert numbers["vivavoce_requests_total", "disconnected"] == 1
    assert numbers["vivavoce_requests_total", "refused"] == 1
    assert numbers["vivavoce_requests_total", "completed"] == 0


def test_the_virtual_player_runs_dry_when_audio_is_late() -> None:
    now_s = 0.0
    metrics = Metrics({}, Ledger())
    meter = SpeechMeter(metrics, "m", clock=lambda: now_s)
    for arrival_s in (1.0, 1.25, 2.5, 3.0):  # half a second each: dry from 2.0 to 2.5, and just in time at 3.0
        now_s = arrival_s
        meter.add_audio(0.5)
    now_s = 4.0
    meter.end("completed")
    value = metrics.registry.get_sample_value
    assert value("vivavoce_ttfa_seconds_sum", {"model": "m"}) == 1.0
    assert value("vivavoce_underrun_seconds_sum", {"model": "m"}) == 0.5
    assert value("vivavoce_rtf_sum", {"model": "m"}) == 2.0
