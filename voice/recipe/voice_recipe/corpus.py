"""The corpus file: texts with their phonemes in two accents, small enough to travel to a GPU machine."""

from __future__ import annotations

import io
import lzma
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

ACCENTS = ("american", "british")
ALONE = -1
"""The document of a record that belongs to none."""
KINDS = (
    "prose", "plain", "word", "name", "name_sentence", "question", "exclamation", "dialogue",
    "number", "date", "time", "money", "ordinal", "fraction", "units", "phone", "year", "version", "code",
    "roman", "acronym", "capitals", "initials", "abbreviation", "address", "quotes", "dashes", "brackets",
    "signs", "emoji", "repeated", "countdown", "list",
)  # fmt: skip
"""Kinds of text. A record's kind is its index here."""
SEPARATOR = "\0"
WORD_END = 16
"""The teacher's symbol for a blank."""

Phonemes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Record:
    """A text that the teacher speaks in one go, at most 200 phonemes.

    `text` is what people write, with all its signs. `spoken` is what the server's normalisation makes of it for this
    voice, in ASCII words. `phonemes` has one row for each accent. Records with the same `document` ≥ 0 follow each
    other, and `glue` is what stands between the record and the one before it in its document.
    """

    text: str
    spoken: str
    kind: int
    phonemes: tuple[Phonemes, Phonemes]
    document: int = ALONE
    glue: str = ""


@dataclass(frozen=True)
class Corpus:
    """Records in columns. `spoken[i]` is None where it equals `texts[i]`."""

    texts: list[str]
    spoken: list[str | None]
    kinds: npt.NDArray[np.uint8]  # [n] index in KINDS
    documents: npt.NDArray[np.int32]  # [n] ALONE, or the number of the document
    glue: list[str]
    phonemes: tuple[Phonemes, Phonemes]  # all rows of an accent, one after the other
    offsets: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # [n + 1] for each accent

    @staticmethod
    def of(records: Iterable[Record]) -> Corpus:
        records = list(records)
        flat, offsets = [], []
        for accent in range(len(ACCENTS)):
            rows = [record.phonemes[accent] for record in records]
            flat.append(np.concatenate(rows).astype(np.uint8) if rows else np.zeros(0, np.uint8))
            offsets.append(np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64))
        return Corpus(
            [record.text for record in records],
            [None if record.spoken == record.text else record.spoken for record in records],
            np.array([record.kind for record in records], np.uint8),
            np.array([record.document for record in records], np.int32),
            [record.glue for record in records],
            (flat[0], flat[1]),
            (offsets[0], offsets[1]),
        )

    def phonemes_of(self, index: int, accent: int = 0) -> Phonemes:
        """Symbols of a record for the teacher, without the boundary symbol at both ends."""
        offsets = self.offsets[accent]
        return self.phonemes[accent][offsets[index] : offsets[index + 1]]

    def document_runs(self) -> list[range]:
        """Records of every document, in the document's order. Records that stand alone are in none."""
        changes = np.flatnonzero(np.diff(self.documents)) + 1
        edges = [0, *changes.tolist(), len(self.documents)]
        return [range(a, b) for a, b in pairwise(edges) if b > a and self.documents[a] != ALONE]

    def save(self, path: Path) -> None:
        """Write an uncompressed npz inside xz: half the size of a compressed npz.

        Words with the same phonemes in both accents are stored once. A record is a row of such words.
        """
        pieces = [_pieces(self.phonemes_of(i, 0), self.phonemes_of(i, 1)) for i in range(len(self.texts))]
        ranks = {piece: rank for rank, (piece, _) in enumerate(Counter(p for row in pieces for p in row).most_common())}
        ids = np.array([ranks[piece] for row in pieces for piece in row], np.uint32)
        table = [[piece[accent] for piece in ranks] for accent in range(len(ACCENTS))]
        buffer = io.BytesIO()
        np.savez(
            buffer,
            texts=_text(SEPARATOR.join(self.texts)),
            spoken=_text(SEPARATOR.join(text or "" for text in self.spoken)),
            kinds=self.kinds,
            documents=np.diff(self.documents, prepend=np.int32(0)).astype(np.int32),
            glue=_text(SEPARATOR.join(self.glue)),
            words=np.frombuffer(b"".join(word for words in table for word in words), np.uint8),
            word_lengths=np.array([[len(word) for word in words] for words in table], np.uint8),
            word_counts=np.array([len(row) for row in pieces], np.uint8),
            low=(ids & 255).astype(np.uint8),
            high=(ids >> 8).astype(np.uint16),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))

    @staticmethod
    def load(path: Path) -> Corpus:
        arrays = np.load(io.BytesIO(lzma.decompress(path.read_bytes())))
        ids = arrays["low"].astype(np.int64) | arrays["high"].astype(np.int64) << 8
        symbols = arrays["words"].tobytes()
        lengths = arrays["word_lengths"].astype(np.int64)
        ends = np.cumsum(lengths.reshape(-1)).reshape(lengths.shape)
        counts = arrays["word_counts"].astype(np.int64)
        flat, offsets = [], []
        for accent in range(len(ACCENTS)):
            bounds = zip((ends[accent] - lengths[accent]).tolist(), ends[accent].tolist(), strict=True)
            row, starts = _join([symbols[begin:end] for begin, end in bounds], ids, counts)
            flat.append(row)
            offsets.append(starts)
        return Corpus(
            _read(arrays["texts"]).split(SEPARATOR),
            [text or None for text in _read(arrays["spoken"]).split(SEPARATOR)],
            arrays["kinds"],
            np.cumsum(arrays["documents"], dtype=np.int32),
            _read(arrays["glue"]).split(SEPARATOR),
            (flat[0], flat[1]),
            (offsets[0], offsets[1]),
        )


def _text(text: str) -> Phonemes:
    return np.frombuffer(text.encode(), np.uint8)


def _read(array: Phonemes) -> str:
    return array.tobytes().decode()


def _pieces(american: Phonemes, british: Phonemes) -> list[tuple[bytes, bytes]]:
    """The words of a record in both accents; one piece if the accents do not have equally many."""
    blank = bytes([WORD_END])
    left, right = american.tobytes().split(blank), british.tobytes().split(blank)
    if len(left) != len(right):
        return [(american.tobytes(), british.tobytes())]
    return list(zip(left, right, strict=True))


def _join(
    words: list[bytes], ids: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> tuple[Phonemes, npt.NDArray[np.int64]]:
    """Symbols of all records in a row, and where each begins. Blanks stand between the words of a record."""
    rows, at = [], 0
    listed = ids.tolist()
    blank = bytes([WORD_END])
    for count in counts.tolist():
        rows.append(blank.join([words[i] for i in listed[at : at + count]]))
        at += count
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return np.frombuffer(b"".join(rows), np.uint8), offsets
