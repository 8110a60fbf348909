"""`vivavoce bench steps`: records how long the parts of an engine step take here, for `vivavoce bench plan`.

The runner is asked for one part at a time: prefill alone, a frame alone, Code2Wav alone. Each figure is a median.
"""

import argparse
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from vivavoce_engine.bench import TEXTS, describe_machine, shipped_voice
from vivavoce_engine.checkpoint import locate_checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.load import load_parts
from vivavoce_engine.request import SynthesisRequest
from vivavoce_engine.runner import Runner
from vivavoce_engine.scheduler import Plan
from vivavoce_engine.sequence import Pending, Sequence, TrailingText
from vivavoce_engine.simulation import Arrival, Heard, Simulation
from vivavoce_engine.step_times import NOTHING

CHUNK_FRAMES = (1, 2, 4, 8)
"""Frames of a Code2Wav call that are recorded: the ramp of chunks has these, and the last pieces of speech."""
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
    from vivavoce_engine.torch_runner import resolve_device

    config = EngineConfig(max_streams=max(args.rows), device=args.device, dtype=args.dtype)
    path = locate_checkpoint(args.model or shipped_voice())
    runner = load_parts(path, config, args.name).runner
    recorder = Recorder(runner, args.rounds)
    recorder.frames(1)  # warm-up
    recorded = {rows: recorder.frames(rows) for rows in args.rows}
    prefills = range(1, min(config.max_prefills_per_step, config.max_streams) + 1)
    document = {
        "machine": describe_machine(resolve_device(config.device)),
        "frame_ms": {args.name: {rows: frame_ms for rows, (frame_ms, _) in recorded.items()}},
        "prefill_ms": {args.name: {count: recorder.prefill_ms(count) for count in prefills}},
        "code2wav_us_per_frame": {
            f"{rows}x{frames}": us for rows, (_, calls) in recorded.items() for frames, us in calls.items()
        },
        "host_ms": {rows: host_ms(rows) for rows in args.rows},
        "steps_ahead": runner.steps_ahead,
    }
    text = json.dumps(document, ensure_ascii=False)
    args.output.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


class Recorder:
    """Times a runner's parts."""

    def __init__(self, runner: Runner, rounds: int) -> None:
        self._runner = runner
        self._rounds = rounds
        self._ids = itertools.count(1)
        self._ended: dict[int, bool] = {}

    def prefill_ms(self, count: int) -> float:
        """Of `count` prompts at once."""
        return _median(self._timed(Plan(self._utterances(count), (), ())) for _ in range(self._rounds))

    def frames(self, rows: int) -> tuple[float, dict[int, float]]:
        """ms of a frame of each of `rows`, and µs a frame of Code2Wav calls, by their length."""
        utterances: tuple[Sequence, ...] = ()
        frame_ms: list[float] = []
        us: defaultdict[int, list[float]] = defaultdict(list)
        for _, length in itertools.product(range(self._rounds), CHUNK_FRAMES):
            while len(took := self.make(utterances, length)) < length:
                utterances = self.started(rows)
            frame_ms += took
            took_ms = self._timed(Plan((), (), tuple((utterance, length) for utterance in utterances)))
            us[length].append(1000 * took_ms / (rows * length))
            for utterance in utterances:
                utterance.add_vocoded(length)
        return _median(frame_ms), {length: _median(values) for length, values in us.items()}

    def make(self, utterances: tuple[Sequence, ...], frames: int) -> list[float]:
        """ms of each of so many frames; fewer where one of the utterances has come to its end."""
        took: list[float] = []
        while utterances and len(took) < frames:
            took_ms = self._timed(Plan((), utterances, ()))
            if any(self._ended.values()):
                break
            took.append(took_ms)
            for utterance in utterances:
                utterance.add_frame()
        return took

    def started(self, rows: int) -> tuple[Sequence, ...]:
        """Utterances whose prompts have been run, one a row."""
        utterances = self._utterances(rows)
        self._timed(Plan(utterances, (), ()))
        return utterances

    def _utterances(self, count: int) -> tuple[Sequence, ...]:
        return tuple(self._utterance(row) for row in range(count))

    def _utterance(self, row: int) -> Sequence:
        info = self._runner.info
        speaker = info.speakers[row % len(info.speakers)] if info.speakers else ""
        instructions = "A calm voice." if info.task == "voice_design" else ""
        request = SynthesisRequest(TEXT, speaker=speaker, instructions=instructions, streaming_text=True)
        prompt = self._runner.text.prompt(request)
        trailing = TrailingText(prompt.trailing_ids, complete=True, text_tokens=prompt.text_tokens)
        number = next(self._ids)
        listener = Heard(number, Arrival(0.0, info.max_frames))
        return Sequence(Pending(number, request, prompt, number, info.max_frames, listener, trailing), row)

    def _timed(self, plan: Plan) -> float:
        """ms until all of it is done."""
        synchronize = _synchronize()
        synchronize()
        started_s = time.perf_counter()
        step = self._runner.launch(plan)
        step.wait()
        synchronize()
        took_s = time.perf_counter() - started_s
        for error in step.outcome.failed.values():
            raise error
        self._ended = step.outcome.ended
        return 1000 * took_s


def _synchronize() -> Callable[[], None]:
    import torch

    return torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 3)


def host_ms(rows: int) -> float:
    """What the engine's own loop takes for a step of so many rows, whatever its runner takes."""
    simulation = Simulation(NOTHING, EngineConfig(max_streams=rows, max_queue=rows, max_prefills_per_step=rows))
    arrivals = [Arrival(0.0, HOST_FRAMES)] * rows
    started_s = time.perf_counter()
    simulation.run(arrivals)
    return round(1000 * (time.perf_counter() - started_s) / simulation.steps, 4)
