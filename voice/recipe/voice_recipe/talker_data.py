"""Documents for the talker: utterances of the shards with their texts and codes, and the packing into rows."""

from __future__ import annotations

import multiprocessing
import multiprocessing.queues
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from voice_recipe.config import (
    SPECIAL_IM_START,
    SPECIAL_TTS_BOS,
    SPECIAL_TTS_EOS,
    SPECIAL_TTS_PAD,
    TEXT_VOCAB_SIZE,
)
from voice_recipe.corpus import Corpus
from voice_recipe.prompts import (
    NO_DOCUMENT,
    Documents,
    IntArray,
    Packing,
    TextIds,
    document_length,
    spoken_frames,
)
from voice_recipe.text_tokenizer import DROPOUT, TextTokenizer
from voice_recipe.trim import STRESS_IDS
from voice_recipe.units import text_of

# Texts of a document: as written and as the server says it, each with its true tokens and with those of BPE dropout.
VARIANTS = ((False, None), (True, None), (False, DROPOUT), (True, DROPOUT))
SPOKEN_SHARE, TRUE_TOKENS_SHARE = 0.5, 0.75
STREAMING_SHARE, ENGLISH_SHARE = 0.5, 0.7
SHORT_FRAMES, SHORT_REPEATS, SHORT_STREAMING_SHARE = 20, 3, 0.65
"""Documents of up to 1.6 s come three times an epoch, and more often as streaming text, which is harder for them."""
LAST_SIGN_ID = 16
"""Phoneme ids up to this one are signs and the blank."""
SURE_SHARE, KNOWN_TEXTS = 0.95, 20
"""A first token leaves the sound open if fewer of its texts begin with one sound, or if it begins fewer texts."""
OPEN_ROWS = 32
ROW_DOCUMENTS = 40
"""Most documents of a row."""


def text_ids(tokenizer: TextTokenizer) -> TextIds:
    return TextIds(
        tokenizer.special(SPECIAL_IM_START),
        tokenizer.assistant,
        tokenizer.newline,
        tokenizer.special(SPECIAL_TTS_PAD),
        tokenizer.special(SPECIAL_TTS_BOS),
        tokenizer.special(SPECIAL_TTS_EOS),
    )


@dataclass(frozen=True)
class Tokens:
    """Tokens of every utterance in all VARIANTS."""

    flat: IntArray
    starts: IntArray  # [V, U]
    lengths: IntArray  # [V, U]

    @staticmethod
    def of(corpus: Corpus, utterances: list[list[int]], tokenizer_dir: Path) -> Tokens:
        tokens, starts, lengths, base = [], [], [], 0
        texts = {spoken: [text_of(corpus, records, spoken) for records in utterances] for spoken in (False, True)}
        for spoken, dropout in VARIANTS:
            ids, offsets = TextTokenizer(tokenizer_dir, dropout).encode(texts[spoken])
            tokens.append(ids.astype(np.int64))
            starts.append(offsets[:-1] + base)
            lengths.append(np.diff(offsets))
            base += len(ids)
        return Tokens(np.concatenate(tokens), np.stack(starts), np.stack(lengths))

    @property
    def first(self) -> IntArray:
        """[V, U]"""
        return np.asarray(self.flat[self.starts])


def first_sound(corpus: Corpus, record: int) -> int:
    """The first phoneme of a record, in the first accent."""
    row = corpus.phonemes_of(record)
    sounds = row[(row > LAST_SIGN_ID) & ~np.isin(row, STRESS_IDS)]
    return int(sounds[0]) if len(sounds) else 0


def open_tokens(first_tokens: IntArray, sounds: IntArray) -> npt.NDArray[np.bool_]:
    """first_tokens [V, U], sounds [U] -> [vocabulary]: true where a first token does not tell the first sound."""
    counts = np.zeros((TEXT_VOCAB_SIZE, int(sounds.max()) + 1), np.int64)
    for variant in first_tokens[:2]:  # the true tokens
        np.add.at(counts, (variant, sounds), 1)
    total = counts.sum(1)
    return np.asarray((total < KNOWN_TEXTS) | (counts.max(1) < SURE_SHARE * total))


def load_documents(shards: list[Path], corpus: Corpus, tokenizer_dir: Path, device: str) -> Documents:
    """Load the codes of all shards with their texts."""

    def joined(name: str) -> IntArray:
        parts: list[IntArray] = [np.load(shard / f"{name}.npy") for shard in shards]
        return np.concatenate(parts).astype(np.int64)

    codes = np.concatenate([np.load(shard / "codes.npy") for shard in shards])
    counts, speaker, frames = joined("counts"), joined("speaker"), joined("frames")
    utterances = [part.tolist() for part in np.split(joined("records"), np.cumsum(counts)[:-1])]
    tokens = Tokens.of(corpus, utterances, tokenizer_dir)
    sounds = np.array([first_sound(corpus, records[0]) for records in utterances])
    waits = open_tokens(tokens.first, sounds)[tokens.first]

    def put(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Documents(
        put(tokens.flat.astype(np.int32)),
        put(tokens.starts),
        put(tokens.lengths),
        put(waits),
        put(codes),
        put(np.cumsum(frames) - frames),
        put(frames),
        put(speaker),
    )


Arrays = tuple[npt.NDArray[np.generic], ...]


@dataclass(frozen=True)
class Packer:
    """Packs documents into batches of rows."""

    text_length: IntArray  # [V, U]
    frames: IntArray  # [U]
    waits: npt.NDArray[np.bool_]  # [V, U]
    chosen: IntArray
    rows: int
    row_length: int

    @staticmethod
    def of(docs: Documents, chosen: IntArray, rows: int, row_length: int) -> Packer:
        arrays = (docs.text_length.cpu().numpy(), docs.frames.cpu().numpy(), docs.waits.cpu().numpy())
        return Packer(*arrays, chosen, rows, row_length)

    def epoch(self, rng: np.random.Generator) -> Iterator[Packing]:
        """Pack all chosen documents once, in random order, with random modes and tokens."""
        for arrays in self._epoch(rng):
            yield Packing(*map(torch.from_numpy, arrays))

    def endless(self, seed: int) -> Iterator[Packing]:
        """Pack epochs in a process of its own, because the training's thread has no time for it."""
        context = multiprocessing.get_context("spawn")
        queue: multiprocessing.queues.Queue[Arrays] = context.Queue(maxsize=64)
        context.Process(target=_pack, args=(self, seed, queue), daemon=True).start()
        while True:
            yield Packing(*map(torch.from_numpy, queue.get()))

    def _epoch(self, rng: np.random.Generator) -> Iterator[Arrays]:
        short = self.frames[self.chosen] <= SHORT_FRAMES
        order = rng.permutation(np.repeat(self.chosen, np.where(short, SHORT_REPEATS, 1)))
        count = len(order)
        variant = (rng.random(count) < SPOKEN_SHARE) + 2 * (rng.random(count) >= TRUE_TOKENS_SHARE)
        english = rng.random(count) < ENGLISH_SHARE
        text, frames = self.text_length[variant, order], self.frames[order]
        share = np.where(frames <= SHORT_FRAMES, SHORT_STREAMING_SHARE, STREAMING_SHARE)
        streaming = (rng.random(count) < share) & (frames > text + 1)
        spoken = spoken_frames(frames, streaming, self.waits[variant, order])
        lengths = document_length(text, spoken, streaming, english)
        full: list[list[int]] = []
        for row in fill_rows(lengths, self.row_length):
            full.append(row)
            if len(full) == self.rows:
                yield self._batch(full, (order, variant, streaming, english), lengths)
                full = []

    def _batch(self, rows: list[list[int]], columns: Arrays, lengths: IntArray) -> Arrays:
        picked = np.array([i for row in rows for i in row])
        capacity = self.rows * ROW_DOCUMENTS
        start = np.full(capacity, NO_DOCUMENT, np.int64)
        place = 0
        for number, row in enumerate(rows):
            start[place : place + len(row)] = number * self.row_length + np.cumsum(lengths[row]) - lengths[row]
            place += len(row)

        def fixed(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
            out = np.zeros(capacity, values.dtype)
            out[: len(picked)] = values[picked]
            return out

        return (start, *map(fixed, columns))


def fill_rows(lengths: IntArray, row_length: int) -> Iterator[list[int]]:
    """Fill rows with documents in their order -> indices in each row, as it is closed.

    A document goes to the fullest open row that has room for it. Documents longer than a row are left out.
    """
    rows: list[tuple[int, list[int]]] = []  # used positions, documents
    for i, length in enumerate(lengths.tolist()):
        if length > row_length:
            continue
        room = row_length - length
        best = max((n for n, (used, _) in enumerate(rows) if used <= room), key=lambda n: rows[n][0], default=-1)
        if best < 0:
            if len(rows) == OPEN_ROWS:
                yield rows.pop(max(range(len(rows)), key=lambda n: rows[n][0]))[1]
            rows.append((length, [i]))
            continue
        used, inside = rows[best]
        inside.append(i)
        rows[best] = (used + length, inside)
        if len(inside) == ROW_DOCUMENTS:
            yield rows.pop(best)[1]
    yield from (inside for _, inside in rows)


def _pack(packer: Packer, seed: int, queue: multiprocessing.queues.Queue[Arrays]) -> None:
    rng = np.random.default_rng(seed)
    while True:
        for arrays in packer._epoch(rng):
            queue.put(arrays)
