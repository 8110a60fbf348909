"""An engine in a process of its own: it speaks like one in this process, and restarts when it breaks."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_engine import (
    AudioChunk,
    AudioStream,
    CheckpointError,
    EngineConfig,
    EnginePool,
    EngineProcess,
    NotServing,
    Overloaded,
    Rejected,
    SpeechEngine,
    SynthesisRequest,
    VoiceStore,
    collect,
)
from vivavoce_engine.fake_runner import FAKE_FIT, FakeEncoder, tone
from vivavoce_engine.process import watcher
from vivavoce_engine.process.carrier import Phase
from vivavoce_engine.request import UtteranceOptions
from vivavoce_engine.text.transcript import NO_FIT

from tests.support.faulty_models import HANG, LEAVE, RAISE, SLOW, faulty_model
from tests.support.recordings import voice_like, wav
from tests.support.waiting import HUNG_S, soon, until, wait_until

ENDLESS = SynthesisRequest(SLOW + "x" * 5000, speaker="heart")
T = TypeVar("T")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "FIRST_BACKOFF_S", 0.05)
    monkeypatch.setattr(watcher, "TICK_S", 0.05)


@contextmanager
def started(engine: EngineProcess) -> Iterator[EngineProcess]:
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """One that no test breaks."""
    store = VoiceStore(tmp_path_factory.mktemp("voices"))
    config = EngineConfig(max_streams=2, max_queue=2, max_queue_s=3600, max_unread_s=0.8)
    with started(EngineProcess(faulty_model(), config, store)) as engine:
        yield engine


def faulty(**settings: float) -> EngineProcess:
    return EngineProcess(faulty_model(), EngineConfig(**settings))  # type: ignore[arg-type]


def says(characters: int, seed: int = 1) -> SynthesisRequest:
    return SynthesisRequest("a" * characters, speaker="heart", seed=seed)


async def pcm_of(stream: AudioStream) -> NDArray[np.float32]:
    chunks, _ = await soon(collect(stream))
    return np.concatenate([chunk.pcm for chunk in chunks])


async def assert_speaks(engine: SpeechEngine) -> None:
    assert np.array_equal(await pcm_of(engine.submit(says(3, seed=5))), tone(5, 0, 3))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# ---- as any engine


async def test_it_speaks(shared: EngineProcess) -> None:
    speech = [shared.submit(says(frames, seed=frames)) for frames in (3, 9)]
    assert np.array_equal(await pcm_of(speech[0]), tone(3, 0, 3))
    assert np.array_equal(await pcm_of(speech[1]), tone(9, 0, 9))
    finished = speech[1].finished
    assert finished is not None
    assert (finished.text_tokens, finished.frames, finished.reason) == (9, 9, "stop")
    assert (shared.stats().running, shared.stats().queued) == (0, 0)
    assert (shared.ready, shared.failed, shared.processes) == (True, False, 1)


async def test_live_text_is_spoken_as_it_comes(shared: EngineProcess) -> None:
    live = shared.open(UtteranceOptions(speaker="heart", seed=3))
    live.append("ab")
    first = await soon(anext(live.stream))
    assert np.array_equal(first.pcm, tone(3, 0, 1))
    live.append("cd")
    live.end()
    rest = np.concatenate([chunk.pcm async for chunk in live.stream])
    assert np.array_equal(rest, tone(3, 1, 3))


async def test_what_is_wrong_is_told_at_once(shared: EngineProcess) -> None:
    with pytest.raises(Rejected) as rejected:
        shared.submit(SynthesisRequest("Hello", speaker="nobody"))
    assert rejected.value.param == "speaker"
    streams = [shared.submit(ENDLESS) for _ in range(4)]
    with pytest.raises(Overloaded, match="2 requests are waiting"):
        shared.submit(ENDLESS)
    for stream in streams:
        stream.cancel()
    await until(lambda: shared.stats().running == shared.stats().queued == 0)
    await assert_speaks(shared)


async def test_a_wait_that_is_too_long_is_told_with_the_time_to_come_back(shared: EngineProcess) -> None:
    running = [shared.submit(ENDLESS) for _ in range(2)]
    for stream in running:
        await soon(anext(stream))
    with pytest.raises(Overloaded) as refused:
        await soon(collect(shared.submit(replace(says(2), max_wait_s=0.0))))
    assert refused.value.retry_after_s >= 1
    for stream in running:
        stream.cancel()
    await until(lambda: shared.stats().running == 0)


async def test_a_slow_reader_rests_its_row_and_loses_nothing(shared: EngineProcess) -> None:
    slow = shared.submit(says(100, seed=2))
    before, most = shared.stats().frames, 10 + 8 + 2  # max_unread_s, the largest piece, the step under way
    await until(lambda: slow.unread_frames > 9)
    await asyncio.sleep(0.3)
    assert shared.stats().frames - before <= most
    await assert_speaks(shared)
    assert np.array_equal(await pcm_of(slow), tone(2, 0, 100))


async def test_a_listener_that_leaves_frees_its_row(shared: EngineProcess) -> None:
    async with shared.submit(ENDLESS) as stream:
        await soon(anext(stream))
        assert shared.stats().running == 1
    await until(lambda: shared.stats().running == 0)
    assert shared.outstanding == 0
    await assert_speaks(shared)


async def test_voices_are_mixed_encoded_and_kept(shared: EngineProcess) -> None:
    speaker, mix = await asyncio.to_thread(shared.voices.resolve, "heart(1)+michael(3)")
    assert speaker == ""
    assert mix is not None
    assert np.array_equal(mix.embedding, np.full(8, 1.75, np.float32))
    audio = wav(voice_like(1, 1.2))
    clone = await asyncio.to_thread(shared.voices.clone, audio, "What is said.")
    assert clone.codes is not None
    assert clone.embedding.shape == (8,)
    assert clone.text_fit == FAKE_FIT
    assert (await asyncio.to_thread(shared.voices.clone, audio, "la " * 100)).text_fit == NO_FIT
    stored = await asyncio.to_thread(shared.voices.add, "ada", "I agree.", audio)
    assert np.array_equal(stored.reference.embedding, clone.embedding)
    assert len(await pcm_of(shared.submit(replace(says(3), speaker="", reference=clone)))) == 3 * 1920


async def test_nothing_that_was_loaded_is_collected_again(caplog: pytest.LogCaptureFixture) -> None:
    """Two starts, one line each: modules and models are out of the garbage collector's sight."""
    caplog.set_level(logging.INFO)
    engine = faulty()
    with started(engine):
        with pytest.raises(NotServing):
            await soon(collect(engine.submit(SynthesisRequest(LEAVE, speaker="heart"))))
        await until(lambda: engine.ready)
    records = [record for record in caplog.records if record.name == "vivavoce_engine.runtime"]
    counts = [int(record.getMessage().split()[0]) for record in records]
    assert len(counts) == 2
    assert min(counts) > 10_000


async def test_what_the_process_logs_is_in_the_servers_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine = faulty()
    with started(engine):
        with pytest.raises(NotServing):
            await soon(collect(engine.submit(SynthesisRequest("raise", speaker="heart"))))
        await until(lambda: engine.ready)
    (record,) = (record for record in caplog.records if record.name == "vivavoce_engine.process.serving")
    assert "the engine broke down" in record.getMessage()
    told = record.exc_text or ""
    assert told.endswith("\nRuntimeError")
    assert "the sum is not a number" not in told  # a message may quote a text
    assert any("broke down (error)" in record.getMessage() for record in caplog.records)


# ---- breaking down


BREAK: dict[str, tuple[str, Callable[[EngineProcess], None]]] = {
    "killed": ("killed", lambda engine: os.kill(pid_of(engine), signal.SIGKILL)),
    "stopped": ("hang", lambda engine: os.kill(pid_of(engine), signal.SIGSTOP)),
}
CUES = {**{text: reason for text, (reason, _) in RAISE.items()}, HANG: "hang", LEAVE: "killed"}


def pid_of(engine: EngineProcess) -> int:
    assert engine.pid is not None
    return engine.pid


@pytest.mark.parametrize("how", [*BREAK, *CUES])
async def test_it_comes_back(how: str) -> None:
    # A step takes 10 ms; a machine that stands still for a second must not look like an engine that hangs.
    with started(faulty(max_streams=2, max_step_s=3.0)) as engine, started(faulty()) as neighbour:
        other = neighbour.submit(replace(ENDLESS, seed=4))
        streams = [engine.submit(ENDLESS), engine.submit(replace(ENDLESS, seed=2)), engine.submit(says(2))]
        for stream in streams[:2]:
            await soon(anext(stream))
        pid = pid_of(engine)
        if how in BREAK:
            reason = BREAK[how][0]
            BREAK[how][1](engine)
        else:
            reason = CUES[how]
            streams[1].cancel()
            streams[2].cancel()
            streams[1:] = [engine.submit(SynthesisRequest(how, speaker="heart"))]
        for stream in streams:
            with pytest.raises(NotServing, match="broke down"):
                await soon(collect(stream))
        assert not is_alive(pid)
        assert not engine.failed
        await until(lambda: engine.ready)
        assert engine.restarts == {reason: 1}
        await assert_speaks(engine)
        assert (engine.stats().running, engine.stats().queued, engine.outstanding) == (0, 0, 0)
        # Nobody else noticed.
        assert neighbour.restarts == {}
        heard = np.concatenate([(await soon(anext(other))).pcm for _ in range(4)])
        assert np.array_equal(heard, tone(4, 0, len(heard) // 1920))
        other.cancel()


async def test_while_it_is_away_everybody_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "MAX_FAILURES", 3)
    refusal = tmp_path / "refuse"
    engine = EngineProcess(faulty_model(refusal=refusal), EngineConfig())
    with started(engine):
        refusal.touch()
        os.kill(pid_of(engine), signal.SIGKILL)
        await until(lambda: not engine.ready)
        with pytest.raises(NotServing):
            engine.submit(says(2))
        with pytest.raises(NotServing):
            await asyncio.to_thread(engine.voices.resolve, "heart+michael")
        assert not engine.failed
        await until(lambda: engine.failed)
        assert engine.restarts["load"] >= 2
        refusal.unlink()
        await until(lambda: engine.ready)
        assert not engine.failed
        await assert_speaks(engine)


async def test_a_recording_that_is_being_encoded_when_it_breaks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with started(faulty()) as engine:
        os.kill(pid_of(engine), signal.SIGSTOP)
        encoding = asyncio.create_task(asyncio.to_thread(engine.encode, np.zeros(24000, np.float32)))
        await until(lambda: bool(engine._questions))
        os.kill(pid_of(engine), signal.SIGKILL)
        with pytest.raises(NotServing):
            await soon(encoding)
        await until(lambda: engine.ready)
        expected = await asyncio.to_thread(FakeEncoder().encode, np.ones(24000, np.float32))
        again = await asyncio.to_thread(engine.encode, np.ones(24000, np.float32))
        assert np.array_equal(again.embedding, expected.embedding)


def test_a_model_that_cannot_be_loaded_is_told_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "refuse").touch()
    engine = EngineProcess(faulty_model(refusal=tmp_path / "refuse"), EngineConfig())
    with pytest.raises(CheckpointError, match="of another model"):
        engine.start()
    assert not engine.ready
    engine.stop()
    assert "vivavoce_engine.process.worker" not in [record.name for record in caplog.records], "no traceback"


# ---- rows that loading settles


async def test_what_loading_settles_counts_in_both_processes(tmp_path: Path) -> None:
    """More rows run, and the front counts only what waits for one of them. Another start may settle otherwise."""
    rows = tmp_path / "rows"
    rows.write_text("12")
    engine = EngineProcess(faulty_model(rows=rows), EngineConfig(max_queue_s=3600))
    assert engine.rows == 8
    with started(engine):
        assert (engine.rows, engine.config.max_streams) == (12, 12)
        streams = [engine.submit(replace(ENDLESS, seed=seed)) for seed in range(12)]
        await until(lambda: engine.stats().running == 12)
        streams.append(engine.submit(ENDLESS))
        assert engine.waiting().requests == 1
        rows.write_text("3")
        os.kill(pid_of(engine), signal.SIGKILL)
        for stream in streams:
            with pytest.raises(NotServing):
                await soon(collect(stream))
        await until(lambda: engine.ready)
        assert engine.rows == 3
        streams = [engine.submit(replace(ENDLESS, seed=seed)) for seed in range(5)]
        await until(lambda: engine.stats().running == 3)
        assert engine.waiting().requests == 2
        for stream in streams:
            stream.cancel()


async def test_a_pool_has_the_rows_of_all_its_processes(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_text("5")
    pool = EnginePool.of_processes(faulty_model(rows=rows), EngineConfig(), workers=2)
    assert pool.rows == 16
    pool.start()
    try:
        assert pool.rows == 10
    finally:
        pool.stop()


# ---- ending


async def test_stop_fails_what_runs_and_leaves_no_process() -> None:
    engine = faulty()
    with started(engine):
        stream = engine.submit(ENDLESS)
        await soon(anext(stream))
        pid = pid_of(engine)
        await asyncio.to_thread(engine.stop)
        with pytest.raises(NotServing):
            await soon(collect(stream))
        assert not is_alive(pid)
        assert (engine.ready, engine.processes, engine.restarts) == (False, 0, {})
        with pytest.raises(NotServing):
            engine.submit(says(2))


async def test_drain_finishes_what_was_accepted() -> None:
    with started(faulty(max_streams=1)) as engine:
        streams = [engine.submit(says(3, seed=1)), engine.submit(says(3, seed=2))]
        engine.drain()
        with pytest.raises(NotServing):
            engine.submit(says(2))
        for seed, stream in enumerate(streams, 1):
            assert np.array_equal(await pcm_of(stream), tone(seed, 0, 3))


ORPHAN = """
import time
from vivavoce_engine import EngineConfig, EngineProcess
from tests.support.faulty_models import faulty_model
engine = EngineProcess(faulty_model(), EngineConfig())
engine.start()
print(engine.pid, flush=True)
time.sleep(60)
"""


def test_no_process_outlives_a_server_that_was_killed() -> None:
    root = str(Path(__file__).parents[2])
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True, cwd=root) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert is_alive(pid)
        server.kill()
    wait_until(lambda: not is_alive(pid))


# ---- on demand


def on_demand(ttl_s: float = 3600.0, refusal: Path | None = None, load_s: float = 0.0) -> EngineProcess:
    model = faulty_model(refusal=refusal, load_s=load_s)
    return EngineProcess(model, EngineConfig(max_queue=8), on_demand_s=ttl_s)


async def test_the_first_request_loads_the_model_and_others_share_it() -> None:
    with started(on_demand()) as engine:
        assert (engine.ready, engine.processes, engine.pid) == (True, 0, None)
        streams = [engine.submit(says(3, seed=seed)) for seed in (1, 2)]
        assert engine.stats().queued == 2
        for seed, stream in enumerate(streams, 1):
            assert np.array_equal(await pcm_of(stream), tone(seed, 0, 3))
        assert engine.processes == 1
        pid = engine.pid
        await assert_speaks(engine)
        assert engine.pid == pid


async def test_a_mix_of_voices_loads_the_model_too() -> None:
    with started(on_demand()) as engine:
        _, mix = await asyncio.to_thread(engine.voices.resolve, "heart+michael")
        assert mix is not None
        assert engine.processes == 1


async def test_what_nobody_uses_is_unloaded_and_comes_back() -> None:
    with started(on_demand(ttl_s=0.3)) as engine:
        stream = engine.submit(SynthesisRequest(SLOW + "a" * 60, speaker="heart", seed=6))
        heard = await pcm_of(stream)  # longer than the time to live: it is used
        assert np.array_equal(heard, tone(6, 0, len(heard) // 1920))
        first = pid_of(engine)
        await until(lambda: engine.processes == 0)
        await until(lambda: not is_alive(first))
        assert (engine.ready, engine.restarts, engine.stats().queued) == (True, {}, 0)
        await assert_speaks(engine)
        assert pid_of(engine) != first


async def test_a_request_waits_for_the_model_no_longer_than_it_wants() -> None:
    with started(on_demand(load_s=2)) as engine:
        late = engine.submit(replace(says(2), max_wait_s=0.2))
        patient = engine.submit(says(2, seed=9))
        with pytest.raises(Overloaded, match="time to wait has passed"):
            await soon(collect(late))
        assert engine.processes == 0
        assert np.array_equal(await pcm_of(patient), tone(9, 0, 2))
        assert engine.stats().queued == 0


async def test_the_queue_counts_while_the_model_loads() -> None:
    with started(on_demand(load_s=1)) as engine:
        streams = [engine.submit(says(2)) for _ in range(engine.config.rows + engine.config.max_queue)]
        with pytest.raises(Overloaded):
            engine.submit(says(2))
        streams[0].cancel()
        for stream in streams[1:]:
            assert len(await pcm_of(stream)) == 2 * 1920


async def test_a_model_that_does_not_load_is_told_to_those_who_wait(tmp_path: Path) -> None:
    refusal = tmp_path / "refuse"
    refusal.touch()
    with started(on_demand(refusal=refusal)) as engine:
        for _ in range(2):
            with pytest.raises(NotServing, match="could not be loaded: the weights are of another model"):
                await soon(collect(engine.submit(says(2))))
            await until(lambda: engine.phase is Phase.ASLEEP)
        assert (engine.ready, engine.failed) == (True, False)
        refusal.unlink()
        await assert_speaks(engine)


async def test_stopping_does_not_wait_for_a_model_to_load() -> None:
    with started(on_demand(load_s=60)) as engine:
        stream = engine.submit(says(2))
        await until(lambda: engine.pid is not None)
        stopping = threading.Thread(target=engine.stop)
        stopping.start()
        with pytest.raises(NotServing):
            await soon(collect(stream))
        await asyncio.to_thread(stopping.join, HUNG_S)
        assert not stopping.is_alive()


async def test_chunks_are_what_the_loop_made(shared: EngineProcess) -> None:
    chunks = [chunk async for chunk in shared.submit(says(7, seed=8))]
    assert all(isinstance(chunk, AudioChunk) for chunk in chunks)
    assert chunks[0].frames == 1
    assert np.concatenate([chunk.codes for chunk in chunks])[:, 0].tolist() == list(range(7))
