"""The heads of a talker: which of them follows the text, and by how much it is early or late, without a judge.

The score of a head is the mean log weight along its best monotone path through the text, in the layout where it is
worse. Of the heads above the threshold, the silences behind signs choose: a word begins where its silence ends. The
head whose words begin there with the least deviation is the best one, and its median deviation is its offset.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from vivavoce_engine.batching.text_paths import WINDOW, TextPath, feed
from vivavoce_engine.batching.word_times import BINS, Sound
from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.text.prompt import Prompt
from vivavoce_engine.text.words import TextWord

from vivavoce_eval.attention import Scores, Utterance

THRESHOLD = -0.7
"""Least score of a head that follows the text. The shipped voice has four heads from -0.2 to -0.5, and its next one has
-1.3. A voice whose training failed has no head above -1.7."""
LEAST_SILENCES = 5
SILENCE_S = 0.2
BEFORE_S, BEHIND_S = 0.1, 0.5
"""The silence between two words is looked for from before the end of the one until behind the start of the other."""


@dataclass(frozen=True, slots=True)
class Head:
    """One attention head: its score in both layouts, and how its words begin against the ends of silences.

    `offset_ms` is the median, and `spread_ms` the distance of the quartiles. Both are None below the threshold, and
    where `silences` are too few.
    """

    layer: int
    head: int
    whole: float
    streaming: float
    silences: int = 0
    offset_ms: int | None = None
    spread_ms: int | None = None

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.head}"

    @property
    def score(self) -> float:
        return min(self.whole, self.streaming)

    @property
    def deviation_ms(self) -> float:
        """The spread and half of the offset: a head that looks ahead crosses a silence too soon, now and then."""
        assert self.offset_ms is not None
        assert self.spread_ms is not None
        return self.spread_ms + abs(self.offset_ms) / 2


def choose(heads: Sequence[Head]) -> Head | None:
    """The head whose words begin nearest to where silences end, of those that follow the text."""
    known = [head for head in heads if head.score >= THRESHOLD and head.offset_ms is not None]
    return min(known, key=lambda head: head.deviation_ms, default=None)


def with_offset(head: Head, deviations_ms: Sequence[float]) -> Head:
    """The head with its offset, if it follows the text and the silences suffice."""
    measured = replace(head, silences=len(deviations_ms))
    if head.score < THRESHOLD or len(deviations_ms) < LEAST_SILENCES:
        return measured
    low, median, high = np.quantile(deviations_ms, [0.25, 0.5, 0.75])
    return replace(measured, offset_ms=round(median), spread_ms=round(high - low))


class Survey:
    """Measures all heads of a checkpoint. Of an utterance it keeps a score and a few deviations for each head."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._per_layer = checkpoint.talker.transformer.num_attention_heads
        heads = checkpoint.talker.transformer.num_hidden_layers * self._per_layer
        self._samples_per_frame = checkpoint.codec.samples_per_frame
        self._frame_s = self._samples_per_frame / checkpoint.codec.sample_rate
        self._scores: dict[bool, list[NDArray[np.float64]]] = {False: [], True: []}
        """By `streaming_text`: one item for each utterance, [heads]."""
        self._deviations_ms: list[list[float]] = [[] for _ in range(heads)]

    def add(self, utterance: Utterance, prompt: Prompt, scores: Scores) -> None:
        paths = follow(scores, prompt.text_tokens)
        score = np.array([np.mean(path.log_weights) for path in paths])
        self._scores[utterance.request.streaming_text].append(score)
        sound = Sound()
        sound.add(utterance.pcm, len(utterance.pcm) // self._samples_per_frame)
        for deviations_ms, path in zip(self._deviations_ms, paths, strict=True):
            starts_s = np.array(path.starts) * self._frame_s
            deviations_ms += deviations_of(prompt.words, starts_s, sound, self._frame_s / BINS)

    def ranked(self) -> list[Head]:
        """All heads, the best score first."""
        whole, streaming = (np.mean(self._scores[layout], axis=0) for layout in (False, True))
        heads = [
            with_offset(Head(*divmod(number, self._per_layer), float(whole[number]), float(streaming[number])), found)
            for number, found in enumerate(self._deviations_ms)
        ]
        return sorted(heads, key=lambda head: -head.score)


def follow(scores: Scores, text_tokens: int) -> list[TextPath]:
    """The paths of all heads through a text, by the engine's own search: each head is a row of it."""
    heads, frames, columns = scores.shape
    paths = [TextPath() for _ in range(heads)]
    padded = np.pad(scores, ((0, 0), (0, 0), (0, WINDOW)), constant_values=-np.inf)
    rows = np.arange(heads)[:, None]
    for frame in range(1, frames):
        firsts = np.array([path.window_from(path.frames) for path in paths])
        window = padded[rows, frame, firsts[:, None] + np.arange(WINDOW)]
        known = min(columns, int(np.isfinite(scores[0, frame]).sum()))
        feed(paths, window, [known] * heads)
    for path in paths:
        path.finish(text_tokens)
    return paths


def deviations_of(words: Sequence[TextWord], starts_s: NDArray[np.float64], sound: Sound, bin_s: float) -> list[float]:
    """Delays in ms of words behind a sign against the end of the silence before them, where there is one.

    `starts_s` are those of all tokens and of the end of the text; `bin_s` is the length of a part of the sound.
    """
    found = []
    for one, other in pairwise(words):
        if not one.sign:
            continue
        end_s, start_s = starts_s[one.end_token], starts_s[other.first_token]
        last = int((start_s + BEHIND_S) / bin_s)
        silences = [each for each in sound.silences(int((end_s - BEFORE_S) / bin_s), last) if each[1] < last]
        longest = max(silences, key=lambda each: each[1] - each[0], default=(0, 0))
        if (longest[1] - longest[0]) * bin_s >= SILENCE_S:
            found.append(1000 * float(start_s - longest[1] * bin_s))
    return found
