"""`vivavoce bench steps`: records how long the parts of an engine step take here, for `vivavoce bench plan`.

Steps are run one after the other as the loop runs them, `steps_ahead` of them begun before the oldest is waited for.
What a part takes is how much later a step ends for it: the host's work and the waiting are in that only as far as the
loop does not hide them. Each figure is a median.
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
from vivavoce_engine.batching.runner import Runner, Step
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.checkpoint.files import locate_checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.load import load_parts
from vivavoce_engine.pages import pages_of
from vivavoce_engine.request import SynthesisRequest

from vivavoce_bench.engine.machine import TEXTS, describe_machine, shipped_voice
from vivavoce_bench.planning.simulation import Arrival, SimulatedListener, Simulation
from vivavoce_bench.planning.step_times import TAKES_NO_TIME

CHUNK_FRAMES = (1, 2, 4, 8)
"""Frames of a Code2Wav call that are recorded: the ramp of chunks has these, and the last pieces of speech."""
FEWEST_FRAMES = 3
"""From one Code2Wav call to the next: the first runs beside the last call, the second beside nothing."""
HOST_FRAMES = 200
TEXT = " ".join(TEXTS)
"""Long, so that its speech seldom ends while it is timed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Entry point of the command line: what `vivavoce bench steps` takes."""
    defaults = EngineConfig()
    parser.add_argument("--model", help="checkpoint folder or hub id (default: the voice that ships)")
    parser.add_argument("--name", default="shipped", help="the model's name in the file [%(default)s]")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8], help="batch sizes to record")
    parser.add_argument("--rounds", type=int, default=6, help="how often each part is timed [%(default)s]")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write, such as engine-h100.json")
    parser.add_argument("--device", default=defaults.device)
    parser.add_argument("--dtype", default=defaults.dtype)


def run(args: argparse.Namespace) -> int:
    """Entry point of the command line: `vivavoce bench steps`."""
    from vivavoce_engine.device import resolve_device

    config = EngineConfig(max_streams=max(args.rows), device=args.device, dtype=args.dtype)
    path = locate_checkpoint(args.model or shipped_voice())
    runner = load_parts(path, config, args.name).runner
    recorder = Recorder(runner, args.rounds)
    recorder.frames(1)  # warm-up
    recorded = {rows: recorder.frames(rows) for rows in args.rows}
    prefills = range(1, min(config.max_prefills_per_step, config.max_streams) + 1)
    starts = {count: recorder.starts(count) for count in prefills}
    document = {
        "machine": describe_machine(resolve_device(config.device)),
        "frame_ms": {args.name: {rows: times.frame_ms for rows, times in recorded.items()}},
        "prefill_ms": {args.name: {count: times.prefill_ms for count, times in starts.items()}},
        "code2wav_us_per_frame": {
            f"{rows}x{frames}": round(1000 * ms / (rows * frames), 3)
            for rows, times in recorded.items()
            for frames, ms in times.decoding_ms.items()
        },
        "host_ms": {rows: host_ms(rows, runner.steps_ahead) for rows in args.rows},
        "start_host_ms": {args.name: {count: times.host_ms for count, times in starts.items()}},
        "steps_ahead": runner.steps_ahead,
        "decoding_slows": decoding_slows(recorded.values()) if runner.steps_ahead else 0.0,
    }
    text = json.dumps(document, ensure_ascii=False)
    args.output.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """Of so many rows, in ms."""

    frame_ms: float
    decoding_ms: dict[int, float]
    """Of a Code2Wav call, by its length in frames; the next frame runs beside it where the device does that."""
    slowed_ms: dict[int, float]
    """How much longer the frame takes that comes next, by the length of the call."""


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Of so many prompts at once, in ms."""

    prefill_ms: float
    """How much longer a step takes that starts them."""
    host_ms: float
    """By how much the first audio of an idle engine comes later than prefill, a frame and Code2Wav add up to."""


def decoding_slows(recorded: Iterable[FrameTimes]) -> float:
    """The part of its time by which Code2Wav slows the next frame, all calls together.

    Calls longer than a frame are not counted: the host waits for them, and only then looks for the frame's end.
    """
    slowed_ms = decoding_ms = 0.0
    for times in recorded:
        for length, ms in times.slowed_ms.items():
            if times.decoding_ms[length] < times.frame_ms:
                slowed_ms += ms
                decoding_ms += times.decoding_ms[length]
    return round(max(0.0, slowed_ms / decoding_ms), 3) if decoding_ms else 0.0


class Recorder:
    """Times a runner's parts."""

    def __init__(self, runner: Runner, rounds: int) -> None:
        self._runner = runner
        self._rounds = rounds
        self._ids = itertools.count(1)
        self._ended: set[int] = set()
        """Utterances known to have come to their end."""

    def frames(self, rows: int) -> FrameTimes:
        """Of a series of frames of each of `rows`, with Code2Wav calls of all lengths in between."""
        alone_ms: list[float] = []
        calls_ms: defaultdict[int, list[float]] = defaultdict(list)
        two_ms: defaultdict[int, list[float]] = defaultdict(list)
        took_ms, called = 0.0, 0  # the last step: its time, and the length of its call
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
        """Of `count` prompts that are started at once, in a series of frames and when there is nothing else to do."""
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
        if not self._runner.steps_ahead:  # a host that waits for every step has nothing that the series hides
            return StartTimes(prefill_ms, 0.0)
        idle_ms: list[float] = []
        for _ in range(self._rounds):
            idle_ms += [ms for _, ms in self._series(_first_frame(self._new_utterances(count, TEXTS), heard=True))]
        return StartTimes(prefill_ms, round(max(0.0, _median(idle_ms) - _median(first_audio_ms)), 3))

    def start_utterances(self, rows: int) -> tuple[Sequence, ...]:
        """Utterances whose prompts have been run, one a row."""
        utterances = self._new_utterances(rows, [TEXT], streaming_text=True)
        self._run([Plan(utterances, (), ())])
        return utterances

    def run_frames(self, utterances: tuple[Sequence, ...], frames: int) -> None:
        """So many frames of each."""
        self._run(_frames(utterances, frames))

    def _plans_with_decoding(self, rows: int) -> Iterator[Plan]:
        """A Code2Wav call of each length a round, beside a frame as in the loop; frames that are too many for it are
        passed over."""
        utterances: tuple[Sequence, ...] = ()
        for _, length in itertools.product(range(self._rounds), CHUNK_FRAMES):
            while not (yield from self._frames_until_end(utterances, max(FEWEST_FRAMES, length) - 1)):
                utterances = self._new_utterances(rows, [TEXT], streaming_text=True)
                yield Plan(utterances, (), ())
            for utterance in utterances:
                utterance.frames_vocoded = utterance.frames_made + 1 - length
            yield from _step(Plan((), utterances, tuple((utterance, length) for utterance in utterances)))

    def _frames_until_end(self, utterances: tuple[Sequence, ...], frames: int) -> Generator[Plan, None, bool]:
        """So many frames of each; False, and fewer, where there are none or one is known to have come to its end."""
        for plan in _frames(utterances, frames):
            if self._need_restart(utterances):
                break
            yield plan
        return not self._need_restart(utterances)

    def _need_restart(self, utterances: tuple[Sequence, ...]) -> bool:
        return not utterances or any(utterance.utterance_id in self._ended for utterance in utterances)

    def _plans_with_starts(self, count: int) -> Iterator[Plan]:
        """Prompts with their first frame, without and with its audio, and frames after each."""
        asked = [self._new_utterances(count, TEXTS) for _ in range(2 * self._rounds + 1)]  # before anything is timed
        yield Plan(asked[0], (), ())
        yield from _frames(asked[0], FEWEST_FRAMES)
        for utterances, heard in zip(asked[1:], itertools.cycle((False, True)), strict=False):
            yield from _first_frame(utterances, heard)
            yield from _frames(utterances, FEWEST_FRAMES)

    def _new_utterances(self, count: int, texts: Iterable[str], streaming_text: bool = False) -> tuple[Sequence, ...]:
        """New utterances in the first rows, with the texts in turn."""
        pages = itertools.count()
        info = self._runner.info
        asked = []
        for row, text in zip(range(count), itertools.cycle(texts), strict=False):
            speaker = info.speakers[row % len(info.speakers)] if info.speakers else ""
            instructions = "A calm voice." if info.task == "voice_design" else ""
            request = SynthesisRequest(text, speaker, instructions=instructions, streaming_text=streaming_text)
            asked.append(self._utterance(request, row, pages))
        return tuple(asked)

    def _utterance(self, request: SynthesisRequest, row: int, pages: Iterator[int]) -> Sequence:
        """With pages for all frames that are recorded, the next of `pages`."""
        prompt = self._runner.text.prompt(request)
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
        """Runs plans as the loop does. Each comes with its ms, from the end of the one before it or else its begin."""
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
            if len(underway) > self._runner.steps_ahead:
                yield end()
        while underway:
            yield end()


def _step(plan: Plan) -> Iterator[Plan]:
    """The plan; once it has begun, its frames are counted."""
    yield plan
    for utterance in plan.step:
        utterance.add_frame()
    for utterance, frames in plan.vocode:
        utterance.add_vocoded(frames)


def _frames(utterances: tuple[Sequence, ...], count: int) -> Iterator[Plan]:
    for _ in range(count):
        yield from _step(Plan((), utterances, ()))


def _first_frame(utterances: tuple[Sequence, ...], heard: bool) -> Iterator[Plan]:
    """Prompts and first frames, as the scheduler starts them, and if they are `heard` their audio."""
    return _step(Plan(utterances, utterances, tuple((utterance, 1) for utterance in utterances) if heard else ()))


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 3)


def host_ms(rows: int, steps_ahead: int) -> float:
    """What the engine's own loop takes for a step of so many rows, whatever its runner takes."""
    times = replace(TAKES_NO_TIME, steps_ahead=steps_ahead)
    simulation = Simulation(times, EngineConfig(max_streams=rows, max_queue=rows, max_prefills_per_step=rows))
    arrivals = [Arrival(0.0, HOST_FRAMES)] * rows
    started_s = time.perf_counter()
    simulation.run(arrivals)
    return round(1000 * (time.perf_counter() - started_s) / simulation.steps, 4)
