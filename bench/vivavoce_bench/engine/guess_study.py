"""A study of guesses on a checkpoint's own speech: it speaks by Gumbel-max, and its frames are judged afterwards.

Linear drafts are fitted to most of the utterances, and all figures are of the others.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.checkpoint.networks import TalkerConfig
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.front.thread import Engine
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.request import Sampling, SynthesisRequest

from vivavoce_bench.engine.drafts import (
    Draft,
    Frames,
    LaterHeads,
    LinearDraft,
    engine_draws,
    gumbel_draws,
    rates,
    replay,
    right_guesses,
)
from vivavoce_bench.planning.speculation import ROWS, Flags, count_passes

HELD_OUT = 4
"""Utterances of which one is held out from the fitting of drafts."""
AT_ONCE = 4
"""Utterances that are spoken at the same time."""
PARAMS = Sampling().predictor


class Recorder(TorchRunner):
    """A runner that draws all codes but the first of a frame by Gumbel-max, and records its frames."""

    def __init__(self, name: str, checkpoint: Checkpoint, config: EngineConfig) -> None:
        super().__init__(name, checkpoint, config)
        self._recorded: list[Frames] = []

    def recorded(self) -> tuple[CodePredictor, Frames]:
        """Returns the code predictor, and all frames that it has made, in the order of seeds and of frames."""
        parts = self._recorded
        columns = [[part.hidden, part.codes, part.seed, part.frame] for part in parts]
        frames = Frames(*(torch.cat(column) for column in zip(*columns, strict=True)))
        return self._predictor, frames.part(torch.argsort(frames.seed * self.config.max_context + frames.frame))

    def _predict(self, rows: list[int], index: Tensor, frame: Tensor, hidden: Tensor, code_0: Tensor) -> Tensor:
        seed = self._seed[index]
        codes: Tensor = self._predictor(hidden, code_0, self._frame_cache, gumbel_draws(seed, frame, PARAMS))
        self._recorded.append(Frames(hidden.clone(), codes.clone(), seed, frame))
        return codes


def speak(runner: Recorder, texts: Sequence[str], max_frames: int | None) -> None:
    """Speaks each text, with its number as the seed. Raises Rejected if the checkpoint has no voice of its own, or
    speaks no texts."""
    engine = Engine(runner, runner.config)
    speakers = engine.info.speakers or ("",)
    instructions = "A calm voice." if engine.info.task == "voice_design" else ""

    async def say(number: int, turn: asyncio.Semaphore) -> None:
        voice = speakers[number % len(speakers)]
        request = SynthesisRequest(
            texts[number], speaker=voice, instructions=instructions, seed=number, max_frames=max_frames
        )
        async with turn:
            async for _ in engine.submit(request):
                pass

    async def say_all() -> None:
        turn = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(say(number, turn) for number in range(len(texts))))

    engine.start()
    try:
        asyncio.run(say_all())
    finally:
        engine.stop()


def study(predictor: CodePredictor, config: TalkerConfig, frames: Frames, guesses: int) -> dict[str, Any]:
    """Measures both kinds of guesses on the utterances whose seed is a multiple of HELD_OUT. The drafts are fitted to
    the others.

    Raises:
        ValueError: no utterance is held out, or none is left for the drafts.
    """
    held = frames.seed % HELD_OUT == 0
    if held.all() or not held.any():
        raise ValueError(f"at least {HELD_OUT} utterances are needed")
    fitted, judged = (replay(predictor, config, frames.part(chosen)) for chosen in (~held, held))
    told = judged.frames
    drafts: dict[str, Draft] = {
        "later heads": LaterHeads(predictor),
        "linear draft": LinearDraft(predictor, fitted, guesses),
    }
    found = {}
    for kind, draft in drafts.items():
        draws = (make(told.seed, told.frame, PARAMS) for make in (gumbel_draws, engine_draws))
        right, by_engine = (right_guesses(draft, predictor, judged, draw, guesses) for draw in draws)
        found[kind] = figures(right) | {"rates_of_engine_draws": rates(by_engine)}
    return {
        "frames": {"fitted": len(fitted.frames), "held_out": len(told)},
        "codes": predictor.groups - 1,
        "sampling": asdict(PARAMS),
        "guesses": found,
    }


def figures(right: Flags) -> dict[str, Any]:
    """Figures of guesses `right` [frames, codes, guesses]: rates by guess and code, and passes a frame."""
    _, codes, guesses = right.shape
    return {
        "rates": rates(right),
        "by_code": [
            {str(last + 1 + ahead): round(float(right[:, last, ahead].mean()), 3) for last in range(codes - ahead)}
            for ahead in range(guesses)
        ],
        "passes": [
            {
                str(rows): round(float(slowest(count_passes(right[..., : k + 1]), rows).mean()), 2)
                for rows in ROWS
                if rows <= len(right)
            }
            for k in range(guesses)
        ],
    }


def slowest(passes: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Most passes of each group of `rows` frames, which are taken from all over the speech: [frames] → [groups]."""
    groups = len(passes) // rows
    most: NDArray[np.int64] = passes[: groups * rows].reshape(rows, groups).max(0)
    return most
