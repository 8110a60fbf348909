"""The file of a phrase: head, then records of samples and of utterances' ends, then a digest of all before it.

Samples are float32, as the engine made them, and in its pieces, with their words: the answers have the same bytes
again.

    head    MAGIC, the phrase's key
    words   WORDS, number of words (uint32 each), then the words of the piece that follows: start, end (uint32 each),
            and two times (float64 each), which are NaN if they are unknown
    piece   frames, samples (uint32 each), then the samples (float32)
    end     END, 8 (uint32 each), then text tokens and frames (uint32 each) of an utterance that ended by itself
    digest  BLAKE2b, 32 bytes
All numbers are little-endian.
"""

import hashlib
import math
import struct
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from vivavoce_engine import AudioChunk, Finished, WordTime

from vivavoce_server.phrases.keys import DIGEST_BYTES

MAGIC = b"vivavoce phrase 2\n"
HEAD_BYTES = len(MAGIC) + DIGEST_BYTES
RECORD = struct.Struct("<II")
END, WORDS = 0xFFFFFFFF, 0xFFFFFFFE
WORD = struct.Struct("<IIdd")
SAMPLE_BYTES = 4
BLOCK_BYTES = 2**18
"""Bytes of a file that are read, or collected before they are written, at once: 2.7 s of speech at 24 kHz."""


class Damaged(Exception):
    """A file is no entry of its key, or not all of one."""


class EntryWriter:
    """Makes the bytes of a file."""

    def __init__(self, key: bytes) -> None:
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._waiting = [MAGIC + key]
        self.waiting_bytes = HEAD_BYTES

    def add(self, chunk: AudioChunk) -> None:
        if chunk.words:
            words = b"".join(_packed(word) for word in chunk.words)
            self._append(RECORD.pack(WORDS, len(chunk.words)) + words)
        samples = np.ascontiguousarray(chunk.pcm, "<f4").tobytes()
        self._append(RECORD.pack(chunk.frames, len(samples) // SAMPLE_BYTES) + samples)

    def end_utterance(self, finished: Finished) -> None:
        self._append(RECORD.pack(END, RECORD.size) + RECORD.pack(finished.text_tokens, finished.frames))

    def take(self, *, last: bool = False) -> bytes:
        """The bytes since the last call; the `last` ones have the digest behind them."""
        content = b"".join(self._waiting)
        self._waiting, self.waiting_bytes = [], 0
        self._digest.update(content)
        return content + self._digest.digest() if last else content

    def _append(self, content: bytes) -> None:
        self._waiting.append(content)
        self.waiting_bytes += len(content)


def check_entry(file: BinaryIO, key: bytes, size: int) -> None:
    """Reads a file of this size to its end, and then goes back to its first record.

    Raises:
        Damaged: it is not the whole entry of this key.
        OSError: it cannot be read.
    """
    head = file.read(HEAD_BYTES)
    if head != MAGIC + key or size < HEAD_BYTES + DIGEST_BYTES:
        raise Damaged("it begins like no entry of its name")
    digest = hashlib.blake2b(head, digest_size=DIGEST_BYTES)
    left = size - HEAD_BYTES - DIGEST_BYTES
    while left and (block := file.read(min(BLOCK_BYTES, left))):
        digest.update(block)
        left -= len(block)
    if left or file.read(DIGEST_BYTES + 1) != digest.digest():
        raise Damaged("its digest is that of other bytes")
    file.seek(HEAD_BYTES)


def read_records(file: BinaryIO) -> Iterator[AudioChunk | Finished]:
    """The records from the file's place on, those of about BLOCK_BYTES. The chunks carry no codes, only their number.

    Raises:
        Damaged: the file ends within a record: somebody has cut it since it was checked.
        OSError: it cannot be read.
    """
    taken = 0
    words: tuple[WordTime, ...] = ()
    while taken < BLOCK_BYTES:
        frames, length = RECORD.unpack(_exactly(file, RECORD.size))
        if frames == END:
            text_tokens, made = RECORD.unpack(_exactly(file, RECORD.size))
            yield Finished(text_tokens, made, "stop")
            return
        if frames == WORDS:
            words = tuple(_unpacked(_exactly(file, WORD.size)) for _ in range(length))
            continue
        content = _exactly(file, length * SAMPLE_BYTES)
        yield AudioChunk(np.frombuffer(content, "<f4"), np.zeros((frames, 0), np.int16), words)
        words = ()
        taken += len(content)


def _packed(word: WordTime) -> bytes:
    start_s, end_s = (math.nan if seconds is None else seconds for seconds in (word.start_s, word.end_s))
    return WORD.pack(word.start, word.end, start_s, end_s)


def _unpacked(content: bytes) -> WordTime:
    start, end, start_s, end_s = WORD.unpack(content)
    is_known = not math.isnan(start_s)
    return WordTime(start, end, start_s if is_known else None, end_s if is_known else None)


def _exactly(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise Damaged("it ends within a record")
    return content
