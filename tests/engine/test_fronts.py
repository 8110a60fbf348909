"""Several fronts of one engine process: each hears its own speech, and all share one queue."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_engine import (
    AudioStream,
    EngineConfig,
    EngineError,
    EngineHost,
    EnginePool,
    LinkedEngine,
    NotServing,
    Overloaded,
    SpeechEngine,
    SynthesisRequest,
    VoiceStore,
    collect,
    private_folder,
)
from vivavoce_engine.fake_runner import FakeEncoder, tone
from vivavoce_engine.process import link, remote_engine, watcher
from vivavoce_engine.process.carrier import Phase
from vivavoce_engine.process.connection import Connection
from vivavoce_engine.process.host_wire import Need, ProcessStatus
from vivavoce_engine.process.wire import Loaded, RemoteSubmit
from vivavoce_engine.request import UtteranceOptions

from tests.support.faulty_models import SLOW, faulty_model
from tests.support.waiting import HUNG_S, soon, until

ENDLESS = SynthesisRequest(SLOW + "x" * 5000, speaker="heart")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "FIRST_BACKOFF_S", 0.05)
    monkeypatch.setattr(watcher, "TICK_S", 0.05)
    monkeypatch.setattr(link, "TICK_S", 0.05)


class House:
    """A host with its process, and fronts in this process."""

    def __init__(
        self, folder: Path, on_demand_s: float | None = None, refusal: Path | None = None, **settings: float
    ) -> None:
        self.model = faulty_model(refusal=refusal)
        self.config = EngineConfig(**settings)  # type: ignore[arg-type]
        self.on_demand_s = on_demand_s
        self.host = EngineHost(self.model, self.config, folder, on_demand_s)
        self._exits = ExitStack()

    def front(self, store: VoiceStore | None = None) -> LinkedEngine:
        engine = LinkedEngine(self.model, self.config, self.host.address, store, self.on_demand_s)
        engine.start()
        self._exits.callback(engine.stop)
        return engine

    def close(self) -> None:
        self._exits.close()
        self.host.stop()


@contextmanager
def house(on_demand_s: float | None = None, refusal: Path | None = None, **settings: float) -> Iterator[House]:
    with private_folder() as folder:
        house = House(folder, on_demand_s, refusal, **settings)
        house.host.begin()
        house.host.wait_until_started()
        try:
            yield house
        finally:
            house.close()
        assert list(folder.iterdir()) == [], "no socket is left"


def says(characters: int, seed: int = 1) -> SynthesisRequest:
    return SynthesisRequest("a" * characters, speaker="heart", seed=seed)


async def pcm_of(stream: AudioStream) -> NDArray[np.float32]:
    chunks, _ = await soon(collect(stream))
    return np.concatenate([chunk.pcm for chunk in chunks])


async def assert_speaks(engine: SpeechEngine) -> None:
    assert np.array_equal(await pcm_of(engine.submit(says(3, seed=5))), tone(5, 0, 3))


async def nobody_waits_or_runs(*engines: SpeechEngine) -> None:
    await until(lambda: all((engine.stats().running, engine.stats().queued) == (0, 0) for engine in engines))


# ---- speaking


async def test_each_front_hears_its_own() -> None:
    with house(max_streams=4) as home:
        fronts = [home.front() for _ in range(3)]
        streams = [front.submit(says(9, seed=10 * n + m)) for n, front in enumerate(fronts) for m in range(3)]
        for stream, seed in zip(streams, (0, 1, 2, 10, 11, 12, 20, 21, 22), strict=True):
            assert np.array_equal(await pcm_of(stream), tone(seed, 0, 9))
        assert home.host.fronts == 3
        for front in fronts:
            assert (front.ready, front.failed, front.processes, front.pid) == (True, False, 1, home.host.pid)
        await nobody_waits_or_runs(*fronts)


async def test_live_text_progress_and_questions_reach_the_right_front(tmp_path: Path) -> None:
    with house(max_unread_s=0.8) as home:
        one, two = home.front(VoiceStore(tmp_path)), home.front()
        live = one.open(UtteranceOptions(speaker="heart", seed=3))
        live.append("ab")
        assert np.array_equal((await soon(anext(live.stream))).pcm, tone(3, 0, 1))
        slow = two.submit(says(100, seed=2))
        await until(lambda: slow.unread_frames > 9)
        live.append("cd")
        live.end()
        assert np.array_equal(np.concatenate([chunk.pcm async for chunk in live.stream]), tone(3, 1, 3))
        assert np.array_equal(await pcm_of(slow), tone(2, 0, 100))
        audio = np.ones(24000, np.float32)
        both = await asyncio.gather(*(asyncio.to_thread(front.encode, audio * n) for n, front in ((1, one), (2, two))))
        for n, reference in enumerate(both, 1):
            assert np.array_equal(reference.embedding, FakeEncoder().encode(audio * n).embedding)


# ---- one queue


async def test_every_front_counts_what_runs_and_waits_for_all() -> None:
    with house(max_streams=2, max_queue=3, max_queue_s=3600) as home:
        one, two = home.front(), home.front()
        streams = [one.submit(replace(ENDLESS, client="ada")) for _ in range(3)]
        await until(lambda: (two.stats().running, two.stats().queued) == (2, 1))
        assert [waiting.client for waiting in two.line.queued] == ["ada"]
        assert two.outstanding == 0
        streams += [two.submit(replace(ENDLESS, client="ada")) for _ in range(2)]
        for engine in (one, two):
            await until(lambda engine=engine: engine.stats().queued == 3)  # type: ignore[misc]
            with pytest.raises(Overloaded, match="3 requests are waiting"):
                engine.submit(replace(ENDLESS, client="ada"))
        for stream in streams:
            stream.cancel()
        await nobody_waits_or_runs(one, two)


async def test_a_rush_through_many_fronts_is_refused_as_through_one() -> None:
    """No front has heard of the others' requests yet: the process itself counts."""
    with house(max_streams=2, max_queue=4, max_queue_s=3600) as home:
        fronts = [home.front() for _ in range(4)]
        os.kill(home.host.pid or 0, signal.SIGSTOP)
        streams = [front.submit(replace(ENDLESS, client="ada")) for _ in range(6) for front in fronts]
        os.kill(home.host.pid or 0, signal.SIGCONT)
        await until(lambda: sum(front.outstanding for front in fronts) == 6)
        await until(lambda: all((front.stats().running, front.stats().queued) == (2, 4) for front in fronts))
        refused = 0
        for stream in streams:
            if stream.over:
                with pytest.raises(Overloaded, match="4 requests are waiting") as refusal:
                    await soon(collect(stream))
                assert refusal.value.retry_after_s >= 1
                refused += 1
            stream.cancel()
        assert refused == 24 - 6
        await nobody_waits_or_runs(*fronts)


async def test_clients_are_served_in_turn_whatever_their_fronts() -> None:
    with house(max_streams=2, max_queue_s=3600) as home:
        one, two = home.front(), home.front()
        running = [one.submit(replace(ENDLESS, client="ada")) for _ in range(2)]
        for stream in running:
            await soon(anext(stream))
        burst = [one.submit(replace(ENDLESS, client="ada")) for _ in range(3)]
        await until(lambda: two.stats().queued == 3)
        late = two.submit(replace(says(2, seed=4), client="bob"))
        running[0].cancel()
        assert np.array_equal(await pcm_of(late), tone(4, 0, 2))
        for stream in (running[1], *burst):
            stream.cancel()
        await nobody_waits_or_runs(one, two)


# ---- a front that ends


FRONT = """
import asyncio, sys
from pathlib import Path
from vivavoce_engine import EngineConfig, LinkedEngine
from tests.support.faulty_models import faulty_model
from tests.engine.test_fronts import ENDLESS

async def main() -> None:
    engine = LinkedEngine(faulty_model(), EngineConfig(), Path(sys.argv[1]))
    engine.start()
    streams = [engine.submit(ENDLESS) for _ in range(int(sys.argv[2]))]
    for stream in streams[:2]:
        await anext(stream)
    print("speaking", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@contextmanager
def front_process(address: Path, streams: int) -> Iterator["subprocess.Popen[str]"]:
    """A front in a process of its own, which listens to none of its streams."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", FRONT, str(address), str(streams)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as front:
        try:
            assert front.stdout is not None
            assert front.stdout.readline() == "speaking\n"
            yield front
        finally:
            front.kill()


async def test_a_front_that_is_killed_costs_its_own_speech_alone() -> None:
    with house(max_streams=3, max_queue_s=3600) as home, front_process(home.host.address, 4) as other:
        mine = home.front()
        await until(lambda: (mine.stats().running, mine.stats().queued) == (3, 1))
        waiting = mine.submit(says(5, seed=7))
        await until(lambda: mine.stats().queued == 2)
        other.kill()
        assert np.array_equal(await pcm_of(waiting), tone(7, 0, 5))
        await nobody_waits_or_runs(mine)
        assert (mine.restarts, home.host.fronts) == ({}, 1)


async def test_a_front_that_stands_still_holds_nobody_up() -> None:
    """It takes no audio any more, and the process does not wait until it does."""
    with house(max_streams=8, max_unread_s=3600) as home, front_process(home.host.address, 6) as other:
        mine = home.front()
        os.kill(other.pid, signal.SIGSTOP)
        before = mine.stats().frames
        await until(lambda: mine.stats().frames - before > 6 * 40)  # 1.8 MB, more than a socket takes
        await assert_speaks(mine)


# ---- a process that ends


@pytest.mark.parametrize(("signum", "reason"), [(signal.SIGKILL, "killed"), (signal.SIGSTOP, "hang")])
async def test_fronts_come_back_to_the_next_process(signum: signal.Signals, reason: str) -> None:
    with house(max_step_s=3.0) as home:
        fronts = [home.front(), home.front()]
        streams = [front.submit(ENDLESS) for front in fronts]
        for stream in streams:
            await soon(anext(stream))
        pid = home.host.pid or 0
        os.kill(pid, signum)
        for stream in streams:
            with pytest.raises(NotServing, match="broke down"):
                await soon(collect(stream))
        for front in fronts:
            await until(lambda front=front: front.ready)  # type: ignore[misc]
            assert front.pid == home.host.pid != pid
            assert front.restarts == {reason: 1}
            await assert_speaks(front)
            assert (front.stats().running, front.stats().queued, front.outstanding) == (0, 0, 0)


async def test_a_question_without_an_answer_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(watcher, "ANSWER_TIMEOUT_S", 0.1)
    with house(max_step_s=3600) as home:
        front = home.front()
        os.kill(home.host.pid or 0, signal.SIGSTOP)
        with pytest.raises(NotServing, match="does not answer"):
            await asyncio.to_thread(front.encode, np.zeros(24000, np.float32))
        await until(lambda: home.host.restarts == {"hang": 1})
        await until(lambda: front.ready)
        monkeypatch.setattr(remote_engine, "ANSWER_TIMEOUT_S", HUNG_S)
        answer = await asyncio.to_thread(front.encode, np.zeros(24000, np.float32))
        assert answer.embedding.shape == (8,)


async def test_while_it_is_away_every_front_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "MAX_FAILURES", 2)
    refusal = tmp_path / "refuse"
    with house(refusal=refusal) as home:
        early = home.front()
        refusal.touch()
        os.kill(home.host.pid or 0, signal.SIGKILL)
        await until(lambda: early.failed)
        late = home.front()  # it starts although there is nothing to speak with
        for front in (early, late):
            assert (front.ready, front.failed, front.processes) == (False, True, 0)
            assert front.restarts["load"] >= 1
            with pytest.raises(NotServing):
                front.submit(says(2))
        refusal.unlink()
        for front in (early, late):
            await until(lambda front=front: front.ready)  # type: ignore[misc]
            assert not front.failed
            await assert_speaks(front)


async def test_fronts_hear_that_their_host_has_ended() -> None:
    with house() as home:
        front = home.front()
        stream = front.submit(ENDLESS)
        await soon(anext(stream))
        await asyncio.to_thread(home.host.stop)
        with pytest.raises(NotServing):
            await soon(collect(stream))
        await until(lambda: not front.ready)
        assert front.processes == 0
        with pytest.raises(NotServing):
            front.submit(says(2))


# ---- on demand


async def test_the_first_front_that_needs_it_loads_it_and_the_last_one_unloads_it() -> None:
    with house(on_demand_s=0.3) as home:
        one, two = home.front(), home.front()
        assert (one.ready, one.processes, one.phase) == (True, 0, Phase.ASLEEP)
        assert np.array_equal(await pcm_of(one.submit(says(3, seed=2))), tone(2, 0, 3))
        first = home.host.pid
        assert (one.phase, two.phase, two.processes) == (Phase.SERVING, Phase.ASLEEP, 1)
        stream = two.submit(SynthesisRequest(SLOW + "a" * 60, speaker="heart", seed=6))
        heard = await pcm_of(stream)  # longer than the time to live of the first front
        assert np.array_equal(heard, tone(6, 0, len(heard) // 1920))
        assert (one.phase, home.host.pid) == (Phase.ASLEEP, first)
        await until(lambda: home.host.pid is None)
        await until(lambda: one.processes == two.processes == 0)
        assert (one.restarts, one.ready, two.ready) == ({}, True, True)
        await assert_speaks(one)
        assert home.host.pid != first


async def test_a_front_that_sleeps_tells_what_the_process_makes_for_others() -> None:
    with house(on_demand_s=0.3) as home:
        one, two = home.front(), home.front()
        await pcm_of(one.submit(says(5)))
        stream = two.submit(ENDLESS)
        await soon(anext(stream))
        await until(lambda: one.phase is Phase.ASLEEP)
        made = one.stats().frames
        await until(lambda: (one.stats().running, one.stats().frames > max(5, made)) == (1, True))
        three = home.front()
        await until(lambda: (three.phase, three.stats().running, three.stats().frames > 5) == (Phase.ASLEEP, 1, True))
        stream.cancel()
        await until(lambda: home.host.pid is None)
        await until(lambda: all(front.stats().frames == 0 for front in (one, two, three)))
        await assert_speaks(one)
        await assert_speaks(three)


async def test_a_process_is_not_unloaded_under_a_request() -> None:
    """Requests come when it is about to be unloaded, again and again."""
    with house(on_demand_s=0.05) as home:
        fronts = [home.front(), home.front()]
        for turn in range(30):
            await asyncio.sleep(0.005 * turn)
            speech = [pcm_of(front.submit(says(2, seed=turn))) for front in fronts]
            for heard in await asyncio.gather(*speech):
                assert np.array_equal(heard, tone(turn, 0, 2))
        assert fronts[0].restarts == {}


async def test_nothing_is_sent_before_the_host_has_answered_the_need() -> None:
    """An earlier status of the host may be old: the process may be about to be unloaded."""
    with private_folder() as folder:
        fronts: list[Connection] = []
        links: list[Connection] = []

        async def accept(into: list[Connection], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            into.append(Connection(reader, writer))

        host = await asyncio.start_unix_server(partial(accept, fronts), folder / "host")
        process = await asyncio.start_unix_server(partial(accept, links), folder / "process")
        engine = LinkedEngine(faulty_model(), EngineConfig(), folder / "host", None, 60.0)
        starting = asyncio.create_task(asyncio.to_thread(engine.start))
        await until(lambda: len(fronts) == 1)
        status = ProcessStatus(Phase.SERVING, 1, folder / "process", False, {}, None)
        fronts[0].send(status)
        await soon(starting)
        stream = engine.submit(says(2))
        assert await soon(fronts[0].receive()) == Need(True)
        fronts[0].send(status)
        await asyncio.sleep(0.2)
        assert (links, engine.phase) == ([], Phase.WAKING)
        fronts[0].send(replace(status, answers_need=True))
        await until(lambda: len(links) == 1)
        links[0].send(Loaded(EngineConfig(), ""))
        assert isinstance(await soon(links[0].receive()), RemoteSubmit)
        stream.cancel()
        await asyncio.to_thread(engine.stop)
        for connection in (*fronts, *links):
            connection.close()
        host.close()
        process.close()


async def test_all_who_wait_for_a_model_that_does_not_load_hear_why(tmp_path: Path) -> None:
    refusal = tmp_path / "refuse"
    refusal.touch()
    with house(on_demand_s=60, refusal=refusal) as home:
        fronts = [home.front(), home.front()]
        for stream in [front.submit(says(2)) for front in fronts]:
            with pytest.raises(NotServing, match="could not be loaded: the weights are of another model"):
                await soon(collect(stream))
        refusal.unlink()
        for front in fronts:
            await until(lambda front=front: front.phase is Phase.ASLEEP)  # type: ignore[misc]
            await assert_speaks(front)


# ---- addresses


async def test_a_stranger_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    with house() as home:
        assert home.host.address.parent.stat().st_mode & 0o777 == 0o700
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        with pytest.raises(NotServing, match="host has ended"):
            home.front()


def test_an_address_that_is_too_long_is_told(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    with pytest.raises(EngineError, match=r"no socket can be made at .*longlong"):
        EngineHost(faulty_model(), EngineConfig(), folder).begin()


async def test_a_front_without_a_host_does_not_start(tmp_path: Path) -> None:
    engine = LinkedEngine(faulty_model(), EngineConfig(), tmp_path / "nobody")
    with pytest.raises(NotServing, match="cannot be reached"):
        engine.start()
    assert not engine.ready
    engine.stop()


@pytest.mark.parametrize("ways", range(5))
async def test_a_pause_that_ends_as_it_is_cancelled_is_cancelled(tmp_path: Path, ways: int) -> None:
    """A link that stops ends its pauses, and cancels them. One that went on would never end."""
    engine = LinkedEngine(faulty_model(), EngineConfig(), tmp_path / "nobody")
    carrier = engine._carrier
    went_on: list[int] = []

    async def follow() -> None:
        await carrier._pause(HUNG_S)
        await asyncio.sleep(0)
        went_on.append(1)

    following = asyncio.create_task(follow())
    for _ in range(5):
        await asyncio.sleep(0)
    carrier._stopping.set()
    for _ in range(ways):
        await asyncio.sleep(0)
    was_done = following.done()
    following.cancel()
    await soon(asyncio.wait([following]))
    assert was_done or following.cancelled()
    assert went_on == [1] * was_done


async def test_a_pool_of_links_shares_the_processes_out() -> None:
    config = EngineConfig(max_streams=1)
    with private_folder() as folder, ExitStack() as exits:
        hosts = [EngineHost(faulty_model(), config, folder) for _ in range(2)]
        for host in hosts:
            exits.callback(host.stop)
            host.begin()
        for host in hosts:
            host.wait_until_started()
        pools = [EnginePool.of_links(faulty_model(), config, [host.address for host in hosts]) for _ in range(2)]
        for pool in pools:
            exits.callback(pool.stop)
            pool.start()
        assert (pools[0].rows, pools[0].processes) == (2, 2)
        streams = [pools[0].submit(ENDLESS)]
        await soon(anext(streams[0]))
        await until(lambda: pools[1].stats().running == 1)
        streams.append(pools[1].submit(ENDLESS))
        await soon(anext(streams[1]))  # it went to the other process
        for stream in streams:
            stream.cancel()
        await nobody_waits_or_runs(*pools)
