"""Documents for the talker: sentences and runs of sentences, their codes, and the packing into rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import numpy as np
import numpy.typing as npt
import torch

from voice_recipe.config import SPEAKERS, SPECIAL_IM_START, SPECIAL_TTS_BOS, SPECIAL_TTS_EOS, SPECIAL_TTS_PAD
from voice_recipe.prompts import NO_DOCUMENT, Documents, IntArray, Packing, TextIds, document_length
from voice_recipe.text_tokenizer import DROPOUT, TextTokenizer

VARIANTS = 3  # tokenisations of a text: the true one and two with BPE dropout
STREAMING_SHARE, ENGLISH_SHARE, TRUE_TOKENS_SHARE = 0.5, 0.7, 0.7
JOINED_SHARE, MAX_DOCUMENT_FRAMES = 0.12, 330


def text_ids(tokenizer: TextTokenizer) -> TextIds:
    return TextIds(
        tokenizer.special(SPECIAL_IM_START),
        tokenizer.assistant,
        tokenizer.newline,
        tokenizer.special(SPECIAL_TTS_PAD),
        tokenizer.special(SPECIAL_TTS_BOS),
        tokenizer.special(SPECIAL_TTS_EOS),
    )


def ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """Concatenation of start..start+length of every entry."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths) + np.repeat(starts, lengths)


def joined_documents(speaker: IntArray, frames: IntArray, rng: np.random.Generator) -> list[list[int]]:
    """Join runs of two or three utterances of one speaker, so that the talker sees longer texts."""
    runs = []
    for s in range(len(SPEAKERS)):
        order = rng.permutation(np.flatnonzero(speaker == s)).tolist()
        for at in range(0, int(len(order) * JOINED_SHARE) // 2 * 2, 2):
            run = order[at : at + (3 if rng.random() < 0.3 else 2)]
            if frames[run].sum() <= MAX_DOCUMENT_FRAMES:
                runs.append(run)
    return runs


@dataclass(frozen=True)
class Tokens:
    """Tokenisations of every sentence. The last variant is that of " text", for sentences after another one."""

    flat: IntArray
    starts: list[IntArray]
    lengths: list[IntArray]

    @staticmethod
    def of(texts: list[str], tokenizer_dir: Path) -> Tokens:
        tokens, starts, lengths, base = [], [], [], 0
        for variant in range(VARIANTS + 1):
            plain = variant in (0, VARIANTS)
            shown = [f" {text}" for text in texts] if variant == VARIANTS else texts
            ids, offsets = TextTokenizer(tokenizer_dir, None if plain else DROPOUT).encode(shown)
            tokens.append(ids.astype(np.int64))
            starts.append(offsets[:-1] + base)
            lengths.append(np.diff(offsets))
            base += len(ids)
        return Tokens(np.concatenate(tokens), starts, lengths)


def load_documents(shards: list[Path], tokens: Tokens, device: str) -> Documents:
    """Load the codes of all shards with their texts."""

    def join(name: str) -> IntArray:
        parts: list[IntArray] = [np.load(shard / f"{name}.npy") for shard in shards]
        joined: IntArray = np.concatenate(parts).astype(np.int64)
        return joined

    codes = np.concatenate([np.load(shard / "codes.npy") for shard in shards])
    utterance, speaker, frames = join("utterance"), join("speaker"), join("frames")
    code_start = np.cumsum(frames) - frames
    flat, starts = tokens.flat, [s[utterance] for s in tokens.starts]
    lengths = [n[utterance] for n in tokens.lengths]
    runs = joined_documents(speaker, frames, np.random.default_rng(3))
    members = np.array([u for run in runs for u in run], np.int64)
    sizes = np.array([len(run) for run in runs], np.int64)
    if len(runs):
        first = np.zeros(len(members), bool)
        first[np.cumsum(sizes) - sizes] = True
        run_start = np.where(first, starts[0][members], starts[VARIANTS][members])
        run_length = np.where(first, lengths[0][members], lengths[VARIANTS][members])
        run_of = np.repeat(np.arange(len(runs)), sizes)
        joined_length = np.bincount(run_of, run_length, len(runs)).astype(np.int64)
        joined_start = len(flat) + np.cumsum(joined_length) - joined_length
        flat = np.concatenate([flat, flat[ranges(run_start, run_length)]])
        joined_frames = np.bincount(run_of, frames[members], len(runs)).astype(np.int64)
        joined_codes = codes[ranges(code_start[members], frames[members])]
        code_start = np.concatenate([code_start, len(codes) + np.cumsum(joined_frames) - joined_frames])
        codes = np.concatenate([codes, joined_codes])
        frames = np.concatenate([frames, joined_frames])
        speaker = np.concatenate([speaker, speaker[members[first]]])
        starts = [np.concatenate([s, joined_start]) for s in starts[:VARIANTS]]
        lengths = [np.concatenate([n, joined_length]) for n in lengths[:VARIANTS]]

    def put(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Documents(
        put(flat.astype(np.int32)),
        put(np.stack(starts[:VARIANTS])),
        put(np.stack(lengths[:VARIANTS])),
        put(codes),
        put(code_start),
        put(frames),
        put(speaker),
    )


class Packer:
    """Packs documents into batches of rows, endlessly, on a thread of its own."""

    def __init__(self, docs: Documents, chosen: IntArray, rows: int, row_length: int, seed: int) -> None:
        self.text_length, self.frames = docs.text_length.cpu().numpy(), docs.frames.cpu().numpy()
        self.chosen, self.rows, self.row_length = chosen, rows, row_length
        self.capacity = rows * 16
        self.rng = np.random.default_rng(seed)
        self.queue: Queue[Packing] = Queue(maxsize=64)

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            for packing in self.epoch():
                self.queue.put(packing)

    def epoch(self) -> Iterator[Packing]:
        """Pack all chosen documents once, in random order, with random modes and tokenisations."""
        order = self.rng.permutation(self.chosen)
        count = len(order)
        variant = np.where(self.rng.random(count) < TRUE_TOKENS_SHARE, 0, self.rng.integers(1, VARIANTS, count))
        english = self.rng.random(count) < ENGLISH_SHARE
        text, frames = self.text_length[variant, order], self.frames[order]
        streaming = (self.rng.random(count) < STREAMING_SHARE) & (frames > text)
        lengths = document_length(text, frames, streaming, english)
        rows: list[list[int]] = [[]]
        used, open_rows = [0], [0]
        for i, length in enumerate(lengths.tolist()):
            if length > self.row_length:
                continue
            row = next((r for r in open_rows if used[r] + length <= self.row_length and len(rows[r]) < 15), None)
            if row is None:
                rows.append([])
                used.append(0)
                row = len(rows) - 1
                open_rows.append(row)
                if len(open_rows) > 24:
                    open_rows.pop(0)
            rows[row].append(i)
            used[row] += length
        for first in range(0, len(rows) - self.rows + 1, self.rows):
            yield self._packing(rows[first : first + self.rows], order, variant, streaming, english, lengths)

    def _packing(
        self,
        rows: list[list[int]],
        order: IntArray,
        variant: IntArray,
        streaming: npt.NDArray[np.bool_],
        english: npt.NDArray[np.bool_],
        lengths: IntArray,
    ) -> Packing:
        picked = np.array([i for row in rows for i in row])
        start = np.full(self.capacity, NO_DOCUMENT, np.int64)
        place = 0
        for number, row in enumerate(rows):
            inside = np.cumsum(lengths[row]) - lengths[row]
            start[place : place + len(row)] = number * self.row_length + inside
            place += len(row)

        def fixed(values: npt.NDArray[np.generic]) -> torch.Tensor:
            out = np.zeros(self.capacity, values.dtype)
            out[: len(picked)] = values[picked]
            return torch.from_numpy(out)

        return Packing(torch.from_numpy(start), fixed(order), fixed(variant), fixed(streaming), fixed(english))
