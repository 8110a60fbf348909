"""The whole engine on a GPU: seconds of audio per second by streams, underruns, and the first audio of an idle engine.

    python -m vivavoce_bench.cards.engine --model FOLDER --out FILE [--streams 1 64 256] [--frames 250]

Each listener is a virtual player that starts with its first piece. It runs dry when the next piece comes too late.
"""

import argparse
import asyncio
import json
import logging
import math
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from vivavoce_engine import Engine, EngineConfig, SynthesisRequest
from vivavoce_engine.batching.listener import Playback
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.gpu.runner import GraphRunner
from vivavoce_engine.load import make_runner

from vivavoce_bench.listener.report import versions

TEXT = "The train to the coast leaves at nine, and the second one at half past ten."
FIRST_AUDIO_REQUESTS = 30
DRY_S = 0.001
BURST_TEXT = " ".join([TEXT] * 3)
BURST_RUNNING, BURST_REQUESTS, BURST_AFTER_S = 64, 8, 0.8


@dataclass(frozen=True, slots=True)
class Player:
    """One listener's request and pieces: the times of arrival in seconds, and the frames of each piece."""

    asked_s: float
    arrived_s: list[float]
    frames: list[int]

    @property
    def first_audio_ms(self) -> float:
        return 1000 * (self.arrived_s[0] - self.asked_s)

    def dry_s(self, frame_s: float) -> float:
        """Seconds without sound because audio was late, after the player had started."""
        playback, heard = Playback(), zip(self.arrived_s, self.frames, strict=True)
        return math.fsum(playback.add_audio(arrived_s, frames * frame_s) for arrived_s, frames in heard)


@dataclass(frozen=True, slots=True)
class Result:
    streams: int
    audio_s_per_s: float
    """Seconds of audio per second while all streams spoke."""
    first_audio_ms_median: float
    first_audio_ms_max: float
    dry_streams: int
    dry_s_max: float


async def listen(engine: Engine, number: int, frames: int, text: str = TEXT) -> Player:
    speakers = engine.info.speakers
    request = SynthesisRequest(text, speaker=speakers[number % len(speakers)], seed=number, max_frames=frames)
    player = Player(time.perf_counter(), [], [])
    async for chunk in engine.submit(request):
        player.arrived_s.append(time.perf_counter())
        player.frames.append(chunk.frames)
    return player


async def measure(engine: Engine, streams: int, frames: int) -> Result:
    players = await asyncio.gather(*(listen(engine, number, frames) for number in range(streams)))
    frame_s = engine.info.frame_s
    begin_s = max(player.arrived_s[0] for player in players)
    end_s = min(player.arrived_s[-1] for player in players)
    between = sum(
        frames
        for player in players
        for arrived_s, frames in zip(player.arrived_s, player.frames, strict=True)
        if begin_s < arrived_s <= end_s
    )
    first_ms = [player.first_audio_ms for player in players]
    dry_s = [player.dry_s(frame_s) for player in players]
    return Result(
        streams,
        round(between * frame_s / (end_s - begin_s), 1),
        round(statistics.median(first_ms), 2),
        round(max(first_ms), 2),
        sum(silence_s > DRY_S for silence_s in dry_s),
        round(max(dry_s), 4),
    )


async def burst(engine: Engine, frames: int) -> dict[str, float]:
    """Submits several long texts at once while others are spoken.

    Reports the first audio of the new texts, and the number of running streams that ran dry.
    """
    running = [asyncio.create_task(listen(engine, number, frames)) for number in range(BURST_RUNNING)]
    await asyncio.sleep(BURST_AFTER_S)
    new = await asyncio.gather(*(listen(engine, number, 4, BURST_TEXT) for number in range(BURST_REQUESTS)))
    others = await asyncio.gather(*running)
    first_ms = [player.first_audio_ms for player in new]
    return {
        "running": BURST_RUNNING,
        "requests": BURST_REQUESTS,
        "first_audio_ms_mean": round(statistics.fmean(first_ms), 2),
        "first_audio_ms_max": round(max(first_ms), 2),
        "dry_streams": sum(player.dry_s(engine.info.frame_s) > DRY_S for player in others),
    }


async def first_audio_ms(engine: Engine) -> list[float]:
    """Milliseconds to the first audio of requests sent one after the other to an otherwise idle engine."""
    times = []
    for number in range(FIRST_AUDIO_REQUESTS):
        player = await listen(engine, number, 4)
        times.append(round(player.first_audio_ms, 3))
    return times


def measure_engine(model: Path, streams: Sequence[int], frames: int, steps_ahead: int = 1) -> dict[str, Any]:
    """Loads a checkpoint and measures it with each number of streams. All memory is on the card for the largest one."""
    config = EngineConfig(
        max_streams=max(streams), max_context=1024, max_queue=1000, max_queue_s=1e6, max_prefills_per_step=8,
        device="cuda", runner="triton",
    )  # fmt: skip
    started_s = time.perf_counter()
    runner = make_runner("bench", read_checkpoint(model), config)
    assert isinstance(runner, GraphRunner)
    runner.capacity = replace(runner.capacity, steps_ahead=steps_ahead)
    load_s = time.perf_counter() - started_s
    free, total = torch.cuda.mem_get_info()
    engine = Engine(runner, runner.config)
    engine.start()
    try:
        asyncio.run(first_audio_ms(engine))  # warm-up
        first_ms = asyncio.run(first_audio_ms(engine))
        results = []
        for count in streams:
            results.append(asdict(asyncio.run(measure(engine, count, frames))))
            print(results[-1], flush=True)
        bursts = asyncio.run(burst(engine, frames)) if max(streams) > BURST_RUNNING else None
    finally:
        engine.stop()
    return {
        "card": torch.cuda.get_device_name(),
        "model": model.name,
        "steps_ahead": steps_ahead,
        "load_s": round(load_s, 1),
        "gpu_gb": round((total - free) / 1e9, 2),
        "first_pcm_ms": statistics.median(first_ms),
        "first_pcm_ms_worst": max(first_ms),
        "runs": results,
        "burst": bursts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64, 128, 256])
    parser.add_argument("--frames", type=int, default=250)
    parser.add_argument(
        "--steps-ahead", type=int, choices=(0, 1), default=1, help="0 makes the host wait for every step"
    )
    args = parser.parse_args()
    logging.basicConfig(level="INFO")
    document = {
        **measure_engine(args.model, args.streams, args.frames, args.steps_ahead),
        "versions": versions("torch", "triton"),
        "command": shlex.join(["python", "-m", "vivavoce_bench.cards.engine", *sys.argv[1:]]),
    }
    print(json.dumps(document), flush=True)
    args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
