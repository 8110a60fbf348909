"""/metrics: names, and numbers that follow what happened."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from vivavoce_server.metrics import Metrics, SpeechMeter

from tests.server.live import Gate, LiveServer, ask_and_leave, fake_engine, live_server, wait_until

BODY = {"input": "Hello.", "voice": "heart"}


def scrape(server: LiveServer) -> dict[tuple[str, str], float]:
    """(sample name, outcome or bucket or "") → value."""
    text = httpx.get(f"{server.url}/metrics").text
    return {
        (sample.name, sample.labels.get("outcome", sample.labels.get("le", ""))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


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
    assert numbers["vivavoce_active_rows", ""] == numbers["vivavoce_queued", ""] == 0
    assert numbers["vivavoce_engine_steps_total", ""] >= len("Hello.")


def test_aborts_are_counted_by_reason() -> None:
    gate = Gate()
    with live_server(fake_engine(before_step=gate)) as server:
        ask_and_leave(server, "/v1/audio/speech", BODY, lambda: server.engine.stats().running == 1)
        gate.open()
        wait_until(lambda: ("vivavoce_requests_total", "disconnected") in scrape(server))
        server.engine.drain()
        httpx.post(f"{server.url}/v1/audio/speech", json=BODY)
        numbers = scrape(server)
    assert numbers["vivavoce_requests_total", "disconnected"] == 1
    assert numbers["vivavoce_requests_total", "refused"] == 1
    assert ("vivavoce_requests_total", "completed") not in numbers


def test_the_virtual_player_runs_dry_when_audio_is_late() -> None:
    now_s = 0.0
    metrics = Metrics({})
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
