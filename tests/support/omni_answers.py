"""The requests of tests/golden/omni_tiny as answers for the engine, and what the reference made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vivavoce_engine import AudioChunk, Engine, Finished, ThinkerMedia, ThinkerPrompt, UtteranceOptions
from vivavoce_engine.text.answer import AnswerFrontend

from tests.support.golden import load_golden
from tests.support.speaking import GREEDY

MERGED = 2
"""Sides of a square of patches that is one token."""


@dataclass(frozen=True, eq=False)
class OmniCase:
    """One request of the golden file. `spoken` are the answer's ids that the reference speaks."""

    name: str
    prompt: ThinkerPrompt
    speaker: str
    answer: tuple[int, ...]
    frames: int
    ended: bool

    @property
    def spoken(self) -> tuple[int, ...]:
        """All but the last: <|im_end|>, or the token at which the reference's limit cut the answer."""
        return self.answer[:-1]

    def tensor(self, name: str) -> NDArray[Any]:
        return load_golden("omni_tiny").tensors[f"{self.name}.{name}"]

    @property
    def codes(self) -> NDArray[np.int16]:
        """[frames, code groups]"""
        return self.tensor("codes").T

    def options(self, seed: int = 0, frames: int = 40) -> UtteranceOptions:
        return UtteranceOptions(speaker=self.speaker, sampling=GREEDY, seed=seed, max_frames=frames)


@cache
def omni_case(name: str, text: AnswerFrontend) -> OmniCase:
    golden = load_golden("omni_tiny")
    case, tokens = golden.info["cases"][name], text.tokens
    ids = golden.tensors[f"{name}.input_ids"]
    at = np.flatnonzero((ids == tokens.audio) | (ids == tokens.image))
    media = None
    if len(at):
        grids = golden.tensors.get(f"{name}.image_grid", np.zeros((0, 3), np.int64))
        pictures = tuple((int(rows) // MERGED, int(columns) // MERGED) for _, rows, columns in grids)
        media = ThinkerMedia(at, golden.tensors[f"{name}.thinker_hidden"][at], pictures)
    answer = tuple(golden.tensors[f"{name}.thinker_ids"].tolist())
    return OmniCase(
        name, ThinkerPrompt(tuple(ids.tolist()), media), case["speaker"], answer, case["frames"], case["ended"]
    )


def case_of(engine: Engine, name: str) -> OmniCase:
    assert isinstance(engine.text, AnswerFrontend)
    return omni_case(name, engine.text)


@dataclass(frozen=True)
class SpokenCase:
    """An answer's speech: codes [frames, code groups], audio [samples], and its end."""

    codes: NDArray[np.int16]
    pcm: NDArray[np.float32]
    finished: Finished


def joined(chunks: Sequence[AudioChunk], finished: Finished) -> SpokenCase:
    codes = [chunk.codes for chunk in chunks] or [np.zeros((0, 16), np.int16)]
    pcm = [chunk.pcm for chunk in chunks] or [np.zeros(0, np.float32)]
    return SpokenCase(np.concatenate(codes), np.concatenate(pcm), finished)
