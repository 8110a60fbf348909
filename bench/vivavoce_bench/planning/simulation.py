"""Discrete-event simulation of an engine: its real loop, scheduler and admission over a runner that only takes time.

The clock stands still while the host works, and advances by recorded step times when the runner runs. Batches,
queueing, chunk ramp and refusals are therefore the engine's own, not a model of them. Each HTTP process in front of the
engine is a queue: it accepts requests and hands out audio one at a time, in the order of arrival. A request goes to the
one with the fewest open requests, of several to the one that is free first. `serving_s` adds a constant for network and
client. Encoders and other work of the machine are not simulated, but all processes stand still during `stalls`.
"""

import heapq
import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.batching.capacity import CORES, DEVICE, HOST, Capacity
from vivavoce_engine.batching.line import Accepted, Line, Waiting
from vivavoce_engine.batching.listener import Playback
from vivavoce_engine.batching.loop import EngineLoop
from vivavoce_engine.batching.messages import AudioChunk, Delivery, Finished, Submit
from vivavoce_engine.batching.pending import Pending, TrailingText
from vivavoce_engine.batching.runner import Outcome, Step
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import Overloaded
from vivavoce_engine.fake_runner import FAKE_INFO, FakeText
from vivavoce_engine.request import SynthesisRequest
from vivavoce_engine.text.prompt import NO_ID, Prompt

from vivavoce_bench.planning.step_times import StepTimes

FRAME_S = FAKE_INFO.frame_s
FRAMES_PER_TOKEN = 4
"""Frames of English speech per text token. Used only to estimate the length of the queue."""
ON_TIME_S = 1e-6
NO_PCM = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """A request: its arrival time, the length of its speech in frames, and its client."""

    at_s: float
    frames: int
    client: str = ""


@dataclass(slots=True)
class SimulatedListener:
    """Listener of one request, with what it hears. It reads at once, so no frame is ever unread."""

    utterance_id: int
    arrival: Arrival
    refused_for_s: float | None = None
    """Seconds after which it is told to come back; None if it was accepted."""
    first_s: float | None = None
    ended_s: float | None = None
    stalled_s: float = 0.0
    underruns: int = 0
    unread_frames: int = 0
    front: int = 0
    """Number of the HTTP process that serves it."""
    _playback: Playback = field(default_factory=Playback)

    @property
    def refused(self) -> bool:
        return self.refused_for_s is not None

    def count_sent(self, frames: int) -> None:
        pass

    def add_audio(self, at_s: float, frames: int) -> None:
        """Notes that a piece of audio has arrived."""
        if self.first_s is None:
            self.first_s = at_s
        late_s = self._playback.add_audio(at_s, frames * FRAME_S)
        if late_s > ON_TIME_S:
            self.underruns += 1
            self.stalled_s += late_s
        self.ended_s = at_s

    @property
    def ttfa_s(self) -> float | None:
        """Seconds from arrival to the first piece of audio."""
        return None if self.first_s is None else self.first_s - self.arrival.at_s


@dataclass(frozen=True, slots=True, order=True)
class Stall:
    """A time in which all processes of the machine stand still. Its device continues."""

    start_s: float
    length_s: float


class _Machine:
    """The machine's processes, which stand still during stalls."""

    def __init__(self, stalls: Iterable[Stall] = ()) -> None:
        self._stalls = sorted(stalls)

    def awake_s(self, moment_s: float) -> float:
        """Returns the moment, or the end of the stall that contains it."""
        begun = bisect_right(self._stalls, moment_s, key=lambda stall: stall.start_s)
        if not begun:
            return moment_s
        last = self._stalls[begun - 1]
        return max(moment_s, last.start_s + last.length_s)


@dataclass
class _Clock:
    """Clock of the engine's host."""

    machine: _Machine = field(default_factory=_Machine)
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wait_until(self, moment_s: float) -> None:
        self.now_s = self.machine.awake_s(max(self.now_s, moment_s))


@dataclass
class _Front:
    """An HTTP process: one core, which does one thing at a time."""

    machine: _Machine
    open_requests: int = 0
    """Requests that the engine has not finished."""
    busy_s: float = 0.0
    _free_s: float = -math.inf

    @property
    def load(self) -> tuple[int, float]:
        """Open requests, and when the last work is done. The process with the least gets the next request."""
        return self.open_requests, self._free_s

    def done_s(self, at_s: float, takes_ms: float) -> float:
        """Adds work that arrives at `at_s`. Returns the time at which it is done."""
        self._free_s = self.machine.awake_s(max(at_s, self._free_s)) + takes_ms / 1000
        self.busy_s += takes_ms / 1000
        return self._free_s


@dataclass
class SimulatedRunner:
    """Runner that takes the recorded time of each step and ends each utterance after its number of frames.

    A device that is a step ahead of the host decodes beside the next frame, as in gpu/runner.py. So do the decoders of
    a CPU, where the thread that makes frames helps while it waits, as in cpu/native_runner.py.
    """

    times: StepTimes
    clock: _Clock
    info = FAKE_INFO
    text = FakeText(FAKE_INFO)
    lengths: dict[int, int] = field(default_factory=dict)
    _talker_free_s: float = 0.0
    _decoder_free_s: float = 0.0
    _helped_s: float = 0.0
    """Time by which the thread that makes frames has shortened the decoders' work."""

    @property
    def capacity(self) -> Capacity:
        if self.times.decoders:
            return CORES
        return replace(DEVICE, steps_ahead=self.times.steps_ahead) if self.times.steps_ahead else HOST

    def launch(self, plan: Plan) -> Step:
        self.clock.wait_until(self.clock.now_s + self.times.host_ms_of(plan) / 1000)
        if self.times.decoders:
            return self._launch_on_cores(plan)
        made_s = max(self.clock.now_s, self._talker_free_s) + self.times.talking_ms_of(plan) / 1000
        decoding_s = self.times.decoding_ms_of(plan) / 1000
        done_s = max(made_s, self._decoder_free_s) + decoding_s
        self._talker_free_s, self._decoder_free_s = made_s + self.times.decoding_slows * decoding_s, done_s
        outcome = self._outcome(plan)
        if not self.times.steps_ahead:
            outcome.decoding_s = decoding_s
        return Step(outcome, lambda: self.clock.wait_until(done_s))

    def _launch_on_cores(self, plan: Plan) -> Step:
        """The frames are made when this returns. The audio follows, in the order of the steps."""
        self.clock.wait_until(self.clock.now_s + self.times.talking_ms_of(plan) / 1000)
        outcome = self._outcome(plan)
        outcome.decoding_s = self.times.decoding_ms_of(plan) / 1000
        begins_s = max(self.clock.now_s + self._helped_s, self._decoder_free_s)
        done_s = self._decoder_free_s = begins_s + outcome.decoding_s / self.times.decoders

        def left_s() -> float:
            return max(0.0, done_s - self._helped_s - self.clock.now_s)

        def wait() -> None:
            left = left_s() * self.times.decoders / (1 + self.times.decoders)
            self._helped_s += left_s() - left
            self.clock.wait_until(self.clock.now_s + left)

        return Step(outcome, wait, lambda: left_s() <= ON_TIME_S)

    def _outcome(self, plan: Plan) -> Outcome:
        ended = {
            sequence.utterance_id: sequence.frames_made + 1 >= self.lengths[sequence.utterance_id]
            for sequence in plan.step
        }
        audio = {
            sequence.utterance_id: AudioChunk(NO_PCM, _codes(sequence.frames_vocoded, frames))
            for sequence, frames in plan.vocode
        }
        return Outcome(plan, ended, audio, {})


def _codes(first_frame: int, frames: int) -> NDArray[np.int16]:
    """Codes [frames, 1] that differ from frame to frame, because speech that repeats itself is broken off."""
    return np.arange(first_frame, first_frame + frames, dtype=np.int16)[:, None]


class Simulation:
    """One engine, for one run. `run` returns the listener of each arrival, in the order of arrival."""

    def __init__(
        self,
        times: StepTimes,
        config: EngineConfig,
        serving_s: float = 0.0,
        stalls: Iterable[Stall] = (),
        fronts: int = 1,
    ) -> None:
        self._config = config
        self._serving_s = serving_s
        machine = _Machine(stalls)
        self._clock = _Clock(machine)
        self._fronts, self._front_ms = [_Front(machine) for _ in range(fronts)], times.front_ms
        self._runner = SimulatedRunner(times, self._clock)
        self._admission = Admission(config, FRAME_S, self._clock)
        self._loop = EngineLoop(self._runner, config, self._admission, self._deliver, self._clock)
        self._accepted = Accepted()
        self._heard: list[SimulatedListener] = []
        self._waiting_arrivals: list[Arrival] = []
        self._taken_in: list[tuple[float, int]] = []
        """Requests that a front has accepted, as a heap: the time at which the engine has it, and the utterance."""
        self._next_frames: Iterator[int] = iter(())
        self._pause_s = 0.0

    @property
    def steps(self) -> int:
        return self._loop.state().steps

    @property
    def front_busy_s(self) -> float:
        """Seconds that the HTTP processes have worked, together."""
        return sum(front.busy_s for front in self._fronts)

    def run(self, arrivals: Iterable[Arrival]) -> list[SimulatedListener]:
        self._waiting_arrivals = list(arrivals)
        heapq.heapify(self._waiting_arrivals)
        while True:
            self._take_in()
            while self._taken_in and self._taken_in[0][0] <= self._clock.now_s:
                self.submit(self._heard[heapq.heappop(self._taken_in)[1]])
            if self._loop.step():
                continue
            if self._taken_in:
                self._clock.wait_until(self._taken_in[0][0])
            elif self._waiting_arrivals:
                self._clock.wait_until(self._waiting_arrivals[0].at_s)
            else:
                return self._heard

    def run_closed(self, frames: Iterable[int], listeners: int, pause_s: float = 0.0) -> list[SimulatedListener]:
        """Runs a closed loop: each listener asks for its next speech `pause_s` after the end of its last."""
        self._next_frames, self._pause_s = iter(frames), pause_s
        return self.run([Arrival(0.0, length) for length in itertools.islice(self._next_frames, listeners)])

    def _take_in(self) -> None:
        """Lets the fronts accept the requests that have arrived."""
        while self._waiting_arrivals and self._waiting_arrivals[0].at_s <= self._clock.now_s:
            arrival = heapq.heappop(self._waiting_arrivals)
            number = min(range(len(self._fronts)), key=lambda each: self._fronts[each].load)
            front = self._fronts[number]
            front.open_requests += 1
            done_s = front.done_s(arrival.at_s, self._front_ms.request)
            heapq.heappush(self._taken_in, (done_s, self.listener(arrival, number).utterance_id))

    def listener(self, arrival: Arrival, front: int = 0) -> SimulatedListener:
        """Adds the listener of a request at a front."""
        listener = SimulatedListener(len(self._heard), arrival, front=front)
        self._heard.append(listener)
        return listener

    def submit(self, listener: SimulatedListener) -> None:
        """Queues a request that the engine has received, or refuses it as the engine would."""
        arrival = listener.arrival
        length = arrival.frames
        tokens = max(1, round(length / FRAMES_PER_TOKEN))
        frames = self._admission.estimate_frames(tokens, self._runner.info.max_frames)
        try:
            self._admission.check(self.line, Waiting(arrival.client, frames))
        except Overloaded as overloaded:
            listener.refused_for_s = overloaded.retry_after_s
            self._fronts[listener.front].open_requests -= 1
            return
        self._runner.lengths[listener.utterance_id] = length
        request = SynthesisRequest("…", speaker=FAKE_INFO.speakers[0], client=arrival.client)
        prompt = Prompt((NO_ID,), (NO_ID,), (), tokens)
        trailing = TrailingText((), complete=True, text_tokens=tokens)
        pending = Pending(listener.utterance_id, request, prompt, 0, length, listener, trailing, frames)
        self._accepted.add(listener.utterance_id, Waiting(arrival.client, frames))
        self._loop.apply([Submit(pending)])

    @property
    def line(self) -> Line:
        """The queue."""
        return Line.of(self._accepted, self._loop.state(), self._config.rows)

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        self._take_in()  # requests that arrived before this report
        done_s: dict[int, float] = {}  # each front has a report of its own listeners alone
        for listener, event in deliveries:
            assert isinstance(listener, SimulatedListener)
            front = self._fronts[listener.front]
            if listener.front not in done_s:
                done_s[listener.front] = front.done_s(self._clock.now_s, self._front_ms.report)
            match event:
                case AudioChunk(frames=frames):
                    done_s[listener.front] = front.done_s(self._clock.now_s, self._front_ms.piece)
                    listener.add_audio(done_s[listener.front] + self._serving_s, frames)
                case Finished():
                    front.open_requests -= 1
                    for length in itertools.islice(self._next_frames, 1):
                        next_s = done_s[listener.front] + self._serving_s + self._pause_s
                        heapq.heappush(self._waiting_arrivals, Arrival(next_s, length))
