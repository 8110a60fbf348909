"""`vivavoce bench steps`: records the time of each part of an engine step on this machine, for `vivavoce bench plan`.

Steps run one after the other as in the engine's loop, which begins `steps_ahead` of them before it waits for the
oldest. The time of a part is the time by which it delays the end of a step. Work and waiting of the host are in that
only if the loop does not hide them. Each figure is a median.
"""

import argparse
import itertools
import json
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from vivavoce_engine.batching.pending import Pending, TrailingText
from vivavoce_engine.batching.runner import Runner, Step, builder_of
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.checkpoint.files import locate_checkpoint, read_checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.load import make_runner
from vivavoce_engine.pages import pages_of
from vivavoce_engine.request import SynthesisRequest

from vivavoce_bench.engine.machine import TEXTS, add_engine_arguments, describe_machine, engine_settings, shipped_voice
from vivavoce_bench.planning.simulation import Arrival, SimulatedListener, Simulation
from vivavoce_bench.planning.step_times import TAKES_NO_TIME

CHUNK_FRAMES = (1, 2, 4, 8)
"""Recorded lengths of Code2Wav calls, in frames: those of the ramp of chunks."""
FEWEST_FRAMES = 3
"""Least frames from one Code2Wav call to the next. The first runs beside the last call, the second beside none."""
HOST_FRAMES = 200
TEXT = " ".join(TEXTS)
"""A long text, whose speech seldom ends while it is timed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `vivavoce bench steps`. Entry point of the command line."""
    parser.add_argument("--model", help="checkpoint folder or hub id (default: the shipped voice)")
    parser.add_argument("--name", default="shipped", help="the model's name in the file [%(default)s]")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8], help="batch sizes to record")
    parser.add_argument("--rounds", type=int, default=6, help="number of times that each part is timed [%(default)s]")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write, such as engine-h100.json")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Runs `vivavoce bench steps`. Entry point of the command line."""
    config = EngineConfig(max_streams=max(args.rows), **engine_settings(args))
    path = locate_checkpoint(args.model or shipped_voice())
    runner = make_runner(args.name, read_checkpoint(path), config)
    decoders = runner.config.threads - 1 if runner.capacity.frames_at_once and runner.config.threads != "auto" else 0
    if decoders:  # the parts are timed one after the other
        runner = make_runner(args.name, read_checkpoint(path), replace(config, threads=1))
    recorder = Recorder(runner, args.rounds)
    recorder.frames(1)  # warm-up
    recorded = {rows: recorder.frames(rows) for rows in args.rows}
    prefills = range(1, min(config.max_prefills_per_step, config.rows) + 1)
    starts = {count: recorder.starts(count) for count in prefills}
    document = {
        "machine": describe_machine(runner),
        "frame_ms": {args.name: {rows: times.frame_ms for rows, times in recorded.items()}},
        "prefill_ms": {args.name: {count: times.prefill_ms for count, times in starts.items()}},
        "code2wav_us_per_frame": {
            f"{rows}x{frames}": round(1000 * ms / (rows * frames), 3)
            for rows, times in recorded.items()
            for frames, ms in times.decoding_ms.items()
        },
        "host_ms": {rows: host_ms(rows, runner.capacity.steps_ahead) for rows in args.rows},
        "start_host_ms": {args.name: {count: times.host_ms for count, times in starts.items()}},
        "steps_ahead": runner.capacity.steps_ahead,
        "decoding_slows": decoding_slows(recorded.values()) if runner.capacity.steps_ahead else 0.0,
        "decoders": decoders,
    }
    text = json.dumps(document, ensure_ascii=False)
    args.output.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """Times of a batch of rows, in ms."""

    frame_ms: float
    decoding_ms: dict[int, float]
    """Time of a Code2Wav call by its length in frames. The next frame runs beside it if the device does that."""
    slowed_ms: dict[int, float]
    """Delay of the frame after a Code2Wav call, by the length of the call in frames."""


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Times of a number of prompts that start together, in ms."""

    prefill_ms: float
    """Time that starting them adds to a step."""
    host_ms: float
    """Delay of an idle engine's first audio beyond the sum of prefill, one frame and Code2Wav."""


def decoding_slows(recorded: Iterable[FrameTimes]) -> float:
    """Time by which Code2Wav delays the next frame, as a share of its own time, over all calls.

    Calls longer than a frame are not counted, because the host waits for them before it looks for the frame's end.
    """
    slowed_ms = decoding_ms = 0.0
    for times in recorded:
        for length, ms in times.slowed_ms.items():
            if times.decoding_ms[length] < times.frame_ms:
                slowed_ms += ms
                decoding_ms += times.decoding_ms[length]
    return round(max(0.0, slowed_ms / decoding_ms), 3) if decoding_ms else 0.0


class Recorder:
    """Times the parts of a runner's steps."""

    def __init__(self, runner: Runner, rounds: int) -> None:
        self._runner = runner
        self._rounds = rounds
        self._ids = itertools.count(1)
        self._ended: set[int] = set()
        """Ids of utterances whose end is known."""

    def frames(self, rows: int) -> FrameTimes:
        """Times a series of frames of `rows` rows, with Code2Wav calls of all lengths in between."""
        alone_ms: list[float] = []
        calls_ms: defaultdict[int, list[float]] = defaultdict(list)
        two_ms: defaultdict[int, list[float]] = defaultdict(list)
        took_ms, called = 0.0, 0  # time of the last step, and length of its Code2Wav call
        for plan, step_ms in self._series(self._plans_with_decoding(rows)):
            length = plan.vocode[0][1] if plan.vocode else 0
            if plan.step and length:
                calls_ms[length].append(step_ms)
            elif plan.step and called:
                two_ms[called].append(took_ms + step_ms)
            elif plan.step:
                alone_ms.append(step_ms)
            took_ms, called = step_ms, length
        frame_ms = _median(alone_ms)
        return FrameTimes(
            frame_ms,
            {length: max(0.0, round(_median(values) - frame_ms, 3)) for length, values in calls_ms.items()},
            {length: round(_median(values) - 2 * frame_ms, 3) for length, values in two_ms.items()},
        )

    def starts(self, count: int) -> StartTimes:
        """Times `count` prompts that start together, within a series of frames and on an idle engine."""
        frame_ms: list[float] = []
        start_ms: list[float] = []
        first_audio_ms: list[float] = []
        called = False
        for plan, step_ms in self._series(self._plans_with_starts(count)):
            if plan.start and plan.step:
                (first_audio_ms if plan.vocode else start_ms).append(step_ms)
            elif plan.step and not called:
                frame_ms.append(step_ms)
            called = bool(plan.vocode)
        prefill_ms = round(max(0.0, _median(start_ms) - _median(frame_ms)), 3)
        if not self._runner.capacity.steps_ahead:  # a host that waits for each step hides nothing in the series
            return StartTimes(prefill_ms, 0.0)
        idle_ms: list[float] = []
        for _ in range(self._rounds):
            idle_ms += [ms for _, ms in self._series(_first_frame(self._new_utterances(count, TEXTS), heard=True))]
        return StartTimes(prefill_ms, round(max(0.0, _median(idle_ms) - _median(first_audio_ms)), 3))

    def start_utterances(self, rows: int) -> tuple[Sequence, ...]:
        """Prefills new utterances, one in each of `rows` rows, and returns them."""
        utterances = self._new_utterances(rows, [TEXT], streaming_text=True)
        self._run([Plan(utterances, (), ())])
        return utterances

    def run_frames(self, utterances: tuple[Sequence, ...], frames: int) -> None:
        """Runs this number of frames of each utterance."""
        self._run(_frames(utterances, frames))

    def _plans_with_decoding(self, rows: int) -> Iterator[Plan]:
        """In each round, a Code2Wav call of each length, in a step with a frame as in the engine's loop.

        Frames that a call does not take are never decoded.
        """
        utterances: tuple[Sequence, ...] = ()
        for _, length in itertools.product(range(self._rounds), CHUNK_FRAMES):
            while not (yield from self._frames_until_end(utterances, max(FEWEST_FRAMES, length) - 1)):
                utterances = self._new_utterances(rows, [TEXT], streaming_text=True)
                yield Plan(utterances, (), ())
            for utterance in utterances:
                utterance.drop_waiting(keep=length - 1)
            yield from _step(Plan((), utterances, tuple((utterance, length) for utterance in utterances)))

    def _frames_until_end(self, utterances: tuple[Sequence, ...], frames: int) -> Generator[Plan, None, bool]:
        """Yields this number of frames of each utterance. Stops and returns False once new utterances are needed."""
        for plan in _frames(utterances, frames):
            if self._need_restart(utterances):
                break
            yield plan
        return not self._need_restart(utterances)

    def _need_restart(self, utterances: tuple[Sequence, ...]) -> bool:
        return not utterances or any(utterance.utterance_id in self._ended for utterance in utterances)

    def _plans_with_starts(self, count: int) -> Iterator[Plan]:
        """Starts prompts with their first frame, by turns without and with its audio. Frames follow each start."""
        asked = [
            self._new_utterances(count, TEXTS) for _ in range(2 * self._rounds + 1)
        ]  # made before anything is timed
        yield Plan(asked[0], (), ())
        yield from _frames(asked[0], FEWEST_FRAMES)
        for utterances, heard in zip(asked[1:], itertools.cycle((False, True)), strict=False):
            yield from _first_frame(utterances, heard)
            yield from _frames(utterances, FEWEST_FRAMES)

    def _new_utterances(self, count: int, texts: Iterable[str], streaming_text: bool = False) -> tuple[Sequence, ...]:
        """Creates utterances in the first `count` rows, with the texts in turn."""
        pages = itertools.count()
        info = self._runner.info
        asked = []
        for row, text in zip(range(count), itertools.cycle(texts), strict=False):
            speaker = info.speakers[row % len(info.speakers)] if info.speakers else ""
            instructions = "A calm voice." if info.task == "voice_design" else ""
            request = SynthesisRequest(text, speaker=speaker, instructions=instructions, streaming_text=streaming_text)
            asked.append(self._utterance(request, row, pages))
        return tuple(asked)

    def _utterance(self, request: SynthesisRequest, row: int, pages: Iterator[int]) -> Sequence:
        """Creates an utterance that owns enough of `pages` for all recorded frames."""
        prompt = builder_of(self._runner.text).prompt(request)
        trailing = TrailingText(prompt.trailing_ids, complete=True, text_tokens=prompt.text_tokens)
        number = next(self._ids)
        max_frames = self._runner.info.max_frames
        listener = SimulatedListener(number, Arrival(0.0, max_frames))
        sequence = Sequence(Pending(number, request, prompt, number, max_frames, listener, trailing), row)
        positions = prompt.prefill_tokens + self._rounds * sum(max(FEWEST_FRAMES, length) for length in CHUNK_FRAMES)
        sequence.pages = list(itertools.islice(pages, pages_of(positions)))
        return sequence

    def _run(self, plans: Iterable[Plan]) -> None:
        for _ in self._series(plans):
            pass

    def _series(self, plans: Iterable[Plan]) -> Iterator[tuple[Plan, float]]:
        """Runs plans as the engine's loop does. Yields each with its time in ms since the end of the one before."""
        underway: deque[Step] = deque()
        last_s = time.perf_counter()

        def end() -> tuple[Plan, float]:
            nonlocal last_s
            step = underway.popleft()
            step.wait()
            begun_s, last_s = last_s, time.perf_counter()
            outcome = step.outcome
            for error in outcome.failed.values():
                raise error
            self._ended |= {utterance_id for utterance_id, ended in outcome.ended.items() if ended}
            return outcome.plan, 1000 * (last_s - begun_s)

        for plan in plans:
            underway.append(self._runner.launch(plan))
            if len(underway) > self._runner.capacity.steps_ahead:
                yield end()
        while underway:
            yield end()


def _step(plan: Plan) -> Iterator[Plan]:
    """Yields the plan, and counts its frames once it has begun."""
    yield plan
    plan.count_begun()


def _frames(utterances: tuple[Sequence, ...], count: int) -> Iterator[Plan]:
    for _ in range(count):
        yield from _step(Plan((), utterances, ()))


def _first_frame(utterances: tuple[Sequence, ...], heard: bool) -> Iterator[Plan]:
    """Plans prompts with their first frames, as the scheduler does. Decodes their audio if `heard`."""
    return _step(Plan(utterances, utterances, tuple((utterance, 1) for utterance in utterances) if heard else ()))


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 3)


def host_ms(rows: int, steps_ahead: int) -> float:
    """Time of the engine's own loop for a step of `rows` rows, without its runner, in ms."""
    times = replace(TAKES_NO_TIME, steps_ahead=steps_ahead)
    simulation = Simulation(times, EngineConfig(max_streams=rows, max_queue=rows, max_prefills_per_step=rows))
    arrivals = [Arrival(0.0, HOST_FRAMES)] * rows
    started_s = time.perf_counter()
    simulation.run(arrivals)
    return round(1000 * (time.perf_counter() - started_s) / simulation.steps, 4)
