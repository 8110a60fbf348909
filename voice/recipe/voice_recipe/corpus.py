"""The corpus file: sentences with their phonemes, small enough to travel to a GPU machine."""

from __future__ import annotations

import io
import lzma
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Corpus:
    """Sentence i has the text `texts[i]` and the phoneme ids `phonemes[offsets[i]:offsets[i + 1]]`."""

    texts: list[str]
    phonemes: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    def phonemes_of(self, index: int) -> npt.NDArray[np.uint8]:
        return self.phonemes[self.offsets[index] : self.offsets[index + 1]]

    def save(self, path: Path) -> None:
        """Uncompressed npz inside xz: half the size of a compressed npz."""
        buffer = io.BytesIO()
        text = np.frombuffer("\n".join(self.texts).encode(), dtype=np.uint8)
        np.savez(buffer, text=text, phonemes=self.phonemes, lengths=np.diff(self.offsets).astype(np.uint8))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(buffer.getvalue(), preset=9))

    @staticmethod
    def load(path: Path) -> Corpus:
        arrays = np.load(io.BytesIO(lzma.decompress(path.read_bytes())))
        offsets = np.concatenate([[0], np.cumsum(arrays["lengths"].astype(np.int64))])
        return Corpus(arrays["text"].tobytes().decode().split("\n"), arrays["phonemes"], offsets)
