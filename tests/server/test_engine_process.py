"""Real servers with engines in processes, as clients see them when an engine breaks, loads late, or is one of two."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from vivavoce_engine import CheckpointError, EngineConfig, EnginePool, EngineProcess, VoiceStore
from vivavoce_engine.process import watcher
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.support.broken import broken_text_of
from tests.support.faulty_models import SHORT, SHORT_RECORDING_S, SLOW, faulty_model
from tests.support.live_server import live_server
from tests.support.live_socket import pcm_of
from tests.support.programs import needs, path_of
from tests.support.recordings import voice_like, wav
from tests.support.server_process import serving
from tests.support.speaking import assert_same_samples
from tests.support.texts import plain_text
from tests.support.waiting import HUNG_S, wait_until

pytestmark = pytest.mark.long

SPEECH, LIVE = "/v1/audio/speech", "/v1/audio/speech/stream"
TEXT = "Hello there, this is a test."
BODY = {"input": TEXT, "voice": "heart", "seed": 7, "response_format": "pcm"}
LONG = {**BODY, "input": "The train to the coast leaves at nine, and the second one at half past ten. " * 10}
RESTART_S = 60.0


def engine_pid(server_pid: int) -> int:
    """The process of the server's one engine."""
    (pid,) = engine_pids(server_pid)
    return pid


def engine_pids(server_pid: int) -> list[int]:
    command = [path_of("ps"), "-o", "pid=,args=", "--ppid", str(server_pid)]
    children = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return [int(line.split()[0]) for line in children if "vivavoce_engine.process.worker" in line]


def metric(url: str, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def status(url: str, path: str) -> int:
    return httpx.get(url + path).status_code


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with serving(tmp_path_factory.mktemp("server"), "--max-step-s", "3") as (process, url):
        yield process, url


# ---- the shipped voice, killed


@needs("ps")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
async def test_listeners_are_told_and_speech_is_the_same_afterwards(
    shipped: tuple[subprocess.Popen[str], str], signum: signal.Signals
) -> None:
    process, url = shipped
    reason = {signal.SIGKILL: "killed", signal.SIGSTOP: "hang"}[signum]
    async with httpx.AsyncClient(base_url=url, timeout=RESTART_S) as client:
        before = (await client.post(SPEECH, json=BODY)).content
        assert len(before) > 1920 * 2
        bare = asyncio.create_task(bytes_of_stream(client))
        events = asyncio.create_task(events_of_stream(client))
        live = asyncio.create_task(live_errors(url))
        whole = asyncio.create_task(client.post(SPEECH, json={**LONG, "stream": False}))
        await asyncio.to_thread(wait_until, lambda: metric(url, "vivavoce_active_rows") == 4)
        os.kill(engine_pid(process.pid), signum)
        assert (await whole).status_code == 503
        assert (await whole).json()["error"]["code"] == "not_serving"
        assert "retry-after" in (await whole).headers
        assert await bare == "broken off"
        assert (await events)["error"]["code"] == "not_serving"
        assert await live == (["not_serving"], 1013)
        assert (status(url, "/ready"), status(url, "/health")) == (503, 200)
        assert (await client.post(SPEECH, json=BODY)).status_code == 503
        await asyncio.to_thread(wait_until, lambda: status(url, "/ready") == 200, RESTART_S)
        assert_same_samples((await client.post(SPEECH, json=BODY)).content, before)
    assert metric(url, "vivavoce_engine_restarts_total", reason=reason) == 1
    assert metric(url, "vivavoce_active_rows") == metric(url, "vivavoce_queued") == 0


async def bytes_of_stream(client: httpx.AsyncClient) -> str:
    try:
        async with client.stream("POST", SPEECH, json=LONG) as response:
            assert response.status_code == 200
            async for _ in response.aiter_bytes():
                pass
    except httpx.RemoteProtocolError:
        return "broken off"
    return "complete"


async def events_of_stream(client: httpx.AsyncClient) -> dict[str, Any]:
    """The last event before the transfer breaks off."""
    async with client.stream("POST", SPEECH, json={**LONG, "stream_format": "sse"}) as response:
        text = await broken_text_of(response)
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    last: dict[str, Any] = events[-1]
    return last


async def live_errors(url: str) -> tuple[list[str], int | None]:
    """The codes of the errors that a live session hears of, and its close code."""
    codes = []
    async with connect(url.replace("http", "ws") + LIVE, proxy=None) as connection:
        for message in (
            {"type": "session.config", "voice": "heart"},
            {"type": "input.text", "text": LONG["input"]},
        ):
            await connection.send(json.dumps(message))
        try:
            async for answer in connection:
                parsed = {} if isinstance(answer, bytes) else json.loads(answer)
                if parsed.get("type") == "error":
                    codes.append(parsed["error"]["code"])
        except ConnectionClosed:
            pass
        return codes, connection.close_code


@needs("ps")
def test_a_signal_to_the_whole_group_is_for_the_server_alone(tmp_path: Path) -> None:
    """Ctrl-C, and service managers, signal every process: what speaks goes on to its end all the same."""
    with (
        serving(tmp_path, "--model", "fake") as (process, url),
        socket.create_connection((httpx.URL(url).host, httpx.URL(url).port or 0)) as reader,
    ):
        body = json.dumps({**BODY, "input": plain_text(4000)}).encode()
        head = f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        reader.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        received = reader.recv(4096)
        engine = engine_pid(process.pid)
        for pid in (engine, process.pid):
            for signum in (signal.SIGINT, signal.SIGTERM)[: 2 if pid == engine else 1]:
                os.kill(pid, signum)
        while piece := reader.recv(1 << 20):
            received += piece
        process.wait(timeout=HUNG_S)
    assert process.returncode == 0
    assert received.endswith(b"0\r\n\r\n")


# ---- memory


async def test_a_model_that_runs_out_of_memory_is_a_503_and_its_neighbour_goes_on() -> None:
    one, two = (EngineProcess(faulty_model(name), EngineConfig()) for name in ("one", "two"))
    with live_server({"one": one, "two": two}) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=HUNG_S) as client:
            beside = asyncio.create_task(
                client.post(SPEECH, json={**BODY, "model": "two", "input": SLOW + plain_text(100), "seed": 3})
            )
            await asyncio.to_thread(wait_until, lambda: two.stats().running == 1)
            refused = await client.post(SPEECH, json={**BODY, "model": "one", "input": "memory"})
            assert refused.status_code == 503
            assert status(server.url, "/ready") == 503
            assert (await beside).content == pcm_of(3, 104)
            await asyncio.to_thread(wait_until, lambda: status(server.url, "/ready") == 200)
            assert (await client.post(SPEECH, json={**BODY, "model": "one", "input": "abc"})).content == pcm_of(7, 3)
        assert metric(server.url, "vivavoce_engine_restarts_total", model="one", reason="out_of_memory") == 1
        assert metric(server.url, "vivavoce_engine_restarts_total", model="two") == 0


async def test_a_card_that_a_neighbour_has_filled_is_a_503_for_that_request_alone(tmp_path: Path) -> None:
    """Both a prompt and a recording find no memory. What runs beside them is not disturbed, nor is the process."""
    engine = EngineProcess(faulty_model(), EngineConfig(), VoiceStore(tmp_path))
    with live_server(engine) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=HUNG_S) as client:
            pid = engine.pid
            text = SLOW + plain_text(200)
            beside = asyncio.create_task(client.post(SPEECH, json={**BODY, "input": text, "seed": 3}))
            await asyncio.to_thread(wait_until, lambda: engine.stats().running == 1)
            spoken = [client.post(SPEECH, json={**BODY, "input": text}) for text in (SHORT, "abc", SHORT)]
            refused, heard, refused_too = await asyncio.gather(*spoken)
            clone = {"audio_sample": ("me.wav", wav(voice_like(1, SHORT_RECORDING_S + 1)), "audio/wav")}
            form = {"name": "me", "consent": "This is my voice."}
            stored = await client.post("/v1/audio/voices", data=form, files=clone)
            for answer in (refused, refused_too, stored):
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "5"
                assert answer.json()["error"]["message"] == "there is not enough memory for this now"
            assert heard.content == pcm_of(7, 3)
            assert (await beside).content == pcm_of(3, 204)
        assert engine.pid == pid
        assert status(server.url, "/ready") == 200
        assert metric(server.url, "vivavoce_engine_restarts_total") == 0


def test_rows_that_loading_settles_are_in_the_metrics(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_text("12")
    with live_server(EngineProcess(faulty_model(rows=rows), EngineConfig())) as server:
        assert metric(server.url, "vivavoce_rows") == 12
    with live_server(EngineProcess(faulty_model(rows=rows), EngineConfig(), on_demand_s=60)) as server:
        assert metric(server.url, "vivavoce_rows") == 8
        assert httpx.post(f"{server.url}{SPEECH}", json=BODY, timeout=HUNG_S).status_code == 200
        assert metric(server.url, "vivavoce_rows") == 12


async def test_an_engine_that_does_not_get_its_memory_back_is_no_dead_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbour takes it at a restart. The server answers, tries again, and speaks once there is room."""
    monkeypatch.setattr(watcher, "FIRST_BACKOFF_S", 0.05)
    monkeypatch.setattr(watcher, "MAX_FAILURES", 2)
    refusal = tmp_path / "refuse"
    engine = EngineProcess(faulty_model(refusal=refusal), EngineConfig())
    with live_server(engine) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=HUNG_S) as client:
            refusal.write_text("cuda:0 ran out of memory while the model was loaded (0.2 of 24.0 GB are free)")
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: engine.restarts["load"] >= 2)
            refused = await client.post(SPEECH, json=BODY)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert (status(server.url, "/health"), status(server.url, "/ready")) == (200, 503)
            refusal.unlink()
            await asyncio.to_thread(wait_until, lambda: status(server.url, "/ready") == 200)
            assert (await client.post(SPEECH, json={**BODY, "input": "abc"})).content == pcm_of(7, 3)


def test_a_start_without_memory_ends_with_the_numbers(tmp_path: Path) -> None:
    refusal = tmp_path / "refuse"
    refusal.write_text("the model with 1 row takes 5.1 GB, but 4.0 GB may be used")
    engine = EngineProcess(faulty_model(refusal=refusal), EngineConfig())
    with pytest.raises(CheckpointError, match=r"takes 5.1 GB, but 4.0 GB may be used"):
        engine.start()
    engine.stop()


# ---- on demand


@needs("ps")
def test_models_are_loaded_when_they_are_asked_for(tmp_path: Path) -> None:
    flags = ("--model", "one=fake", "--model", "two=fake", "--load", "on-demand", "--model-ttl-s", "4")
    with serving(tmp_path, *flags) as (process, url):
        assert [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]] == ["one", "two"]
        assert (status(url, "/ready"), engine_pids(process.pid)) == (200, [])
        with httpx.Client(base_url=url, timeout=HUNG_S) as client:
            for model in ("two", "two", "one"):
                answer = client.post(SPEECH, json={**BODY, "model": model, "input": "abc"})
                assert answer.content == pcm_of(7, 3)
            assert metric(url, "vivavoce_engine_processes", model="two") == 1
            assert len(engine_pids(process.pid)) == 2
            wait_until(lambda: engine_pids(process.pid) == [])
            assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["one", "two"]
            assert client.post(SPEECH, json={**BODY, "input": "abc"}).content == pcm_of(7, 3)
        assert metric(url, "vivavoce_engine_restarts_total") == 0


@needs("ps")
def test_a_live_session_outlasts_its_model(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "fake", "--load", "on-demand", "--model-ttl-s", "0.5") as (process, url):

        async def talk() -> list[bytes]:
            heard = []
            async with connect(url.replace("http", "ws") + LIVE, proxy=None) as connection:
                await connection.send(json.dumps({"type": "session.config", "voice": "heart", "seed": 5}))
                for _ in range(2):
                    await asyncio.to_thread(wait_until, lambda: engine_pids(process.pid) == [])
                    await connection.send(json.dumps({"type": "input.text", "text": "abcd"}))
                    await connection.send(json.dumps({"type": "input.done"}))
                    audio = b""
                    async with asyncio.timeout(HUNG_S):
                        while True:
                            message = await connection.recv()
                            if isinstance(message, bytes):
                                audio += message
                            elif json.loads(message)["type"] == "audio.done":
                                break
                    heard.append(audio)
            return heard

        assert asyncio.run(talk()) == [pcm_of(5, 4)] * 2


async def test_a_model_that_does_not_load_is_a_clear_503_and_no_matter_of_health(tmp_path: Path) -> None:
    refusal = tmp_path / "refuse"
    refusal.touch()
    broken = EngineProcess(faulty_model("broken", refusal), EngineConfig(), on_demand_s=60)
    sound = EngineProcess(faulty_model("sound"), EngineConfig(), on_demand_s=60)
    with live_server({"broken": broken, "sound": sound}) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=HUNG_S) as client:
            both = [client.post(SPEECH, json={**BODY, "model": "broken"}) for _ in range(2)]
            for answer in await asyncio.gather(*both):
                assert answer.status_code == 503
                assert "could not be loaded: the weights are of another model" in answer.json()["error"]["message"]
            assert broken.restarts == {"load": 1}
            assert (status(server.url, "/health"), status(server.url, "/ready")) == (200, 200)
            assert (await client.post(SPEECH, json={**BODY, "model": "sound", "input": "abc"})).content == pcm_of(7, 3)


# ---- several processes


@needs("ps")
def test_workers_share_the_requests_of_a_model(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "fake", "--workers", "2", "--max-streams", "1") as (process, url):
        assert metric(url, "vivavoce_engine_processes") == len(engine_pids(process.pid)) == 2

        async def together() -> list[bytes]:
            async with httpx.AsyncClient(base_url=url, timeout=HUNG_S) as client:
                posts = [client.post(SPEECH, json={**BODY, "input": "abc", "seed": seed}) for seed in range(6)]
                return [answer.content for answer in await asyncio.gather(*posts)]

        assert asyncio.run(together()) == [pcm_of(seed, 3) for seed in range(6)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=HUNG_S) == 0


async def test_what_one_process_leaves_another_takes() -> None:
    pool = EnginePool.of_processes(faulty_model(), EngineConfig(max_streams=1), workers=2)
    with live_server(pool) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=HUNG_S) as client:
            long = {**BODY, "input": SLOW + plain_text(300), "stream": False}
            streams = [asyncio.create_task(client.post(SPEECH, json={**long, "seed": seed})) for seed in (1, 2)]
            await asyncio.to_thread(wait_until, lambda: [engine.stats().running for engine in pool.engines] == [1, 1])
            pid = pool.engines[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            answers = await asyncio.gather(*streams)
            assert sorted(answer.status_code for answer in answers) == [200, 503]
            assert status(server.url, "/ready") == 200
            assert (await client.post(SPEECH, json={**BODY, "input": "abc"})).content == pcm_of(7, 3)
            await asyncio.to_thread(wait_until, lambda: pool.processes == 2)
            assert pool.restarts == {"killed": 1}
