"""`vivavoce bench engine`: speed of the engine on this machine, and its time by stage.

Compare figures of the same run only. The last line of the output is one JSON document.
"""

import argparse
import asyncio
import json
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from vivavoce_engine.batching.runner import ImmediateRunner, Step
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.checkpoint.files import locate_checkpoint, read_checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.front.thread import Engine
from vivavoce_engine.request import SynthesisRequest

from vivavoce_bench.engine.machine import (
    TEXTS,
    add_engine_arguments,
    describe_machine,
    engine_settings,
    resident_mb,
    shipped_voice,
)

if TYPE_CHECKING:
    from vivavoce_engine.cpu.host_runner import HostRunner
    from vivavoce_engine.load import ModelRunner


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `vivavoce bench engine`. Entry point of the command line."""
    parser.description = "Measures frames per second, real-time factor, TTFA, and time by stage"
    parser.add_argument("--model", help="checkpoint folder or hub id (default: the shipped voice)")
    parser.add_argument(
        "--streams", type=int, nargs="+", default=[1, 2, 4], help="numbers of utterances at once; one run each"
    )
    parser.add_argument(
        "--profile", action="store_true", help="on a GPU: show the kernels of a frame by component, nothing else"
    )
    parser.add_argument("--utterances", type=int, default=4, help="utterances of each stream, one after the other")
    parser.add_argument(
        "--frames", type=int, help="end each utterance after this many frames, for random weights, which never end"
    )
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Runs `vivavoce bench engine`. Entry point of the command line."""
    import torch
    from vivavoce_engine.cpu.host_runner import HostRunner
    from vivavoce_engine.load import make_runner

    config = EngineConfig(max_streams=max(args.streams), **engine_settings(args))
    started_s = time.perf_counter()
    runner = make_runner("bench", read_checkpoint(locate_checkpoint(args.model or shipped_voice())), config)
    load_s = time.perf_counter() - started_s
    if args.profile:
        return show_profile(runner, args.streams)
    loaded_mb = resident_mb()
    # A card's step is CUDA graphs, whose parts cannot be timed one by one.
    clock = StageClock(runner if isinstance(runner, HostRunner) else None, runner.synchronize)
    engine = Engine(runner, runner.config)
    engine.start()
    try:
        asyncio.run(measure(engine, clock, Spoken(1, 1, args.frames)))  # warm-up
        runs = [
            asyncio.run(measure(engine, clock, Spoken(streams, args.utterances, args.frames)))
            for streams in args.streams
        ]
    finally:
        engine.stop()
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    machine = describe_machine(runner)
    print(f"{machine}; loaded in {load_s:.1f} s; memory {loaded_mb:.0f} MB when loaded, {rss_mb:.0f} MB at most")
    report(runs)
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    print(
        json.dumps(
            {
                "machine": machine,
                "versions": versions,
                "load_s": round(load_s, 2),
                "loaded_rss_mb": round(loaded_mb),
                "peak_rss_mb": round(rss_mb),
                "runs": [asdict(each) for each in runs],
            }
        )
    )
    return 0


def show_profile(runner: "ModelRunner", streams: Sequence[int]) -> int:
    """Prints the time by component of a frame, for each number of streams."""
    from vivavoce_bench.engine.profile import bandwidth_gb_per_s, profile, report

    if isinstance(runner, ImmediateRunner):
        print("--profile shows a GPU's kernels; on a CPU, `bench engine` shows the time by stage", file=sys.stderr)
        return 2
    from vivavoce_engine.gpu.runner import GraphRunner

    assert isinstance(runner, GraphRunner)
    gb_per_s = bandwidth_gb_per_s()
    for rows in streams:
        report(profile(runner, rows), rows, gb_per_s)
    return 0


@dataclass(frozen=True, slots=True)
class SpeedFigures:
    """Figures of a run with `streams` utterances at once. `rtf` is wall time over the audio time of one stream."""

    streams: int
    frames_per_s: float
    rtf: float
    ttfa_ms_median: float
    ttfa_ms_max: float
    frames_per_step: float
    share: dict[str, float]
    """Stage → share of the wall time. `host` is all the rest; it is missing where Code2Wav has threads of its own,
    whose share may be anything up to their number. Empty on a card, whose steps are graphs."""


STAGES = {"prompts": "_start", "code predictor and talker": "_step"}
"""Stage → the method of HostRunner that is it."""
DECODING = "Code2Wav"
"""The stage that a step's outcome tells of."""


class StageClock:
    """Counts the seconds of each stage of a runner's steps since the last reset. Without a runner it has no stages."""

    def __init__(self, runner: "HostRunner | None", synchronize: Callable[[], None]) -> None:
        self.seconds = {} if runner is None else dict.fromkeys((*STAGES, DECODING), 0.0)
        self.overlap = runner is not None and runner.capacity.steps_ahead > 0
        if runner is None:
            return
        for name, method in STAGES.items():
            setattr(runner, method, partial(self._timed, name, getattr(runner, method), synchronize))
        runner.launch = partial(self._launched, runner.launch)  # type: ignore[method-assign]

    def reset(self) -> None:
        self.seconds = dict.fromkeys(self.seconds, 0.0)

    def _launched(self, launch: Callable[[Plan], Step], plan: Plan) -> Step:
        step = launch(plan)

        def wait() -> None:
            step.wait()
            self.seconds[DECODING] += step.outcome.decoding_s

        return replace(step, wait=wait)

    def _timed(self, name: str, stage: Callable[..., None], synchronize: Callable[[], None], *args: object) -> None:
        started_s = time.perf_counter()
        try:
            stage(*args)
        finally:
            synchronize()
            self.seconds[name] += time.perf_counter() - started_s


@dataclass(frozen=True, slots=True)
class Spoken:
    """Speech of a run: `utterances`, one after the other, to each of `streams` listeners."""

    streams: int
    utterances: int
    max_frames: int | None = None


async def measure(engine: Engine, clock: StageClock, spoken: Spoken) -> SpeedFigures:
    """Measures a run."""
    clock.reset()
    before, streams = engine.stats(), spoken.streams
    started_s = time.perf_counter()
    results = await asyncio.gather(*(listen(engine, number, spoken) for number in range(streams)))
    wall_s = time.perf_counter() - started_s
    after = engine.stats()
    frames = sum(frames for frames, _ in results)
    ttfa_ms = [value for _, values in results for value in values]
    share = {name: round(seconds / wall_s, 3) for name, seconds in clock.seconds.items()}
    if share and not clock.overlap:
        share["host"] = round(1 - sum(share.values()), 3)
    return SpeedFigures(
        streams=streams,
        frames_per_s=round(frames / wall_s, 1),
        rtf=round(wall_s / (frames / streams * engine.info.frame_s), 3),
        ttfa_ms_median=round(statistics.median(ttfa_ms), 1),
        ttfa_ms_max=round(max(ttfa_ms), 1),
        frames_per_step=round((after.frames - before.frames) / (after.steps - before.steps), 2),
        share=share,
    )


async def listen(engine: Engine, number: int, spoken: Spoken) -> tuple[int, list[float]]:
    """Number of frames that one listener heard, and the time to first audio of each utterance in ms."""
    speakers = engine.info.speakers or ("",)
    frames, ttfa_ms = 0, []
    for index in range(spoken.utterances):
        request = SynthesisRequest(
            TEXTS[(number + index) % len(TEXTS)],
            speaker=speakers[number % len(speakers)],
            instructions="A calm voice." if engine.info.task == "voice_design" else "",
            seed=1000 * number + index,
            max_frames=spoken.max_frames,
        )
        submitted_s = time.perf_counter()
        first = True
        async for chunk in engine.submit(request):
            if first:
                ttfa_ms.append(1000 * (time.perf_counter() - submitted_s))
                first = False
            frames += chunk.frames
    return frames, ttfa_ms


def report(runs: Sequence[SpeedFigures]) -> None:
    print("streams  frames/s  rows/step  real-time factor  TTFA median / max ms  time in")
    for each in runs:
        share = ", ".join(f"{name} {part:.0%}" for name, part in each.share.items())
        print(
            f"{each.streams:7d}  {each.frames_per_s:8.1f}  {each.frames_per_step:9.2f}  {each.rtf:16.3f}  "
            f"{each.ttfa_ms_median:9.0f} / {each.ttfa_ms_max:<8.0f}  {share}"
        )


def main() -> int:
    """Runs the command from a checkout that is not installed, such as a machine with a GPU."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
