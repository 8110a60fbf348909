"""Stored voices on disk: one safetensors file per voice, with name, consent and text in its metadata. Torch-free.

Several servers may share the folder. Each lookup therefore checks the disk, and sees at once if another server added,
replaced or deleted a voice. The cache only saves reading files. Files appear whole or not at all.
"""

import logging
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from vivavoce_engine.errors import Rejected, StoreFailed, StoreFull
from vivavoce_engine.request import VoiceReference
from vivavoce_engine.text.prompt import check_characters
from vivavoce_engine.voices.lru import ByteLimitedCache

log = logging.getLogger(__name__)

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
SUFFIX, PARTIAL_SUFFIX = ".safetensors", ".partial"
MAX_TEXT_CHARS = 4096
MAX_FILE_BYTES = 2**20
STALE_S = 3600.0
"""A partial file older than this was left by a server that died while writing it."""
FORMAT = "vivavoce-voice-1"

Version: TypeAlias = tuple[int, int, int]
"""Inode, modification time in ns, and size in bytes. A new file under the same name has another version."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredVoice:
    """A voice that clients refer to by name.

    `consent` is the speaker's permission, in the speaker's words. `created_at_s` is in seconds since 1970.
    """

    name: str
    created_at_s: int
    consent: str
    reference: VoiceReference

    @property
    def nbytes(self) -> int:
        return self.reference.nbytes + len(self.consent.encode())


class VoiceStore:
    """The voices in one folder. Any thread may call any method, and each call reads the disk."""

    def __init__(self, folder: Path, max_voices: int = 1000, cache_bytes: int = 64 * 2**20) -> None:
        assert max_voices >= 0
        self._folder = folder
        self._max_voices = max_voices
        self._cache: ByteLimitedCache[tuple[str, Version], StoredVoice] = ByteLimitedCache(cache_bytes)
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def cached_bytes(self) -> int:
        """Bytes of the voices in the cache, at most `cache_bytes`."""
        return self._cache.nbytes

    def names(self) -> list[str]:
        """Names of all voices, in alphabetical order."""
        found = (entry.name.removesuffix(SUFFIX) for entry in self._entries() if entry.name.endswith(SUFFIX))
        return sorted(name for name in found if NAME.fullmatch(name))

    def all(self) -> list[StoredVoice]:
        """All voices, in alphabetical order. Files that cannot be read are logged and left out."""
        voices = []
        for name in self.names():
            try:
                voice = self.get(name)
            except Rejected as error:
                log.warning("%s", error)
                continue
            if voice is not None:
                voices.append(voice)
        return voices

    def get(self, name: str) -> StoredVoice | None:
        """The voice of that name, in any letter case, or None.

        Raises:
            Rejected: the voice's file is broken.
        """
        name = name.casefold()
        if not NAME.fullmatch(name):
            return None
        path = self._path(name)
        try:
            version = version_of(path)
        except FileNotFoundError:
            return None
        voice = self._cache.get((name, version))
        if voice is None:
            voice = read_voice(path)
            if voice is not None:
                self._cache.put((name, version), voice)
        return voice

    def add(self, voice: StoredVoice) -> StoredVoice:
        """Writes a new voice to the disk.

        Raises:
            Rejected: the name is taken or invalid, or a text is missing or too long.
            StoreFull: the store has no room for another voice.
            StoreFailed: the disk is full or cannot be written to.
        """
        check_voice(voice)
        path, partial = self._path(voice.name), self._folder / f".{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
        try:
            for left in self.stale():
                left.unlink(missing_ok=True)
            if len(self.names()) >= self._max_voices:
                raise StoreFull(f"{self._max_voices} voices are stored, which is the most; delete one first")
            write_synced(partial, serialize_voice(voice))
            os.link(partial, path)  # fails, unlike a rename, if another server has just stored that name
        except FileExistsError:
            raise Rejected("name", f"there is a voice {voice.name!r} already") from None
        except OSError as error:
            raise StoreFailed(f"the voice cannot be stored: {error.strerror or error}") from error
        finally:
            partial.unlink(missing_ok=True)
        return voice

    def delete(self, name: str) -> bool:
        """Deletes a voice. Returns False if it did not exist. Raises StoreFailed if its file cannot be deleted."""
        name = name.casefold()
        if not NAME.fullmatch(name):
            return False
        path = self._path(name)
        try:
            version = version_of(path)
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreFailed(f"the voice cannot be deleted: {error.strerror or error}") from error
        self._cache.forget((name, version))
        return True

    def _path(self, name: str) -> Path:
        assert NAME.fullmatch(name), "names are checked before they become paths"
        return self._folder / f"{name}{SUFFIX}"

    def _entries(self) -> "Iterator[os.DirEntry[str]]":
        with os.scandir(self._folder) as entries:
            yield from entries

    def stale(self) -> list[Path]:
        """Partial files that a server which died has left. `add` deletes them."""
        found = []
        for entry in self._entries():
            if entry.name.endswith(PARTIAL_SUFFIX) and entry.name.startswith("."):
                with suppress(FileNotFoundError):
                    if time.time() - entry.stat().st_mtime > STALE_S:
                        found.append(Path(entry.path))
        return found


def check_voice(voice: StoredVoice) -> None:
    """Raises Rejected, with the argument at fault as `param`, if the voice cannot be stored."""
    if not NAME.fullmatch(voice.name):
        raise Rejected("name", "a voice's name has 1 to 64 letters a-z, digits, _ and -, and begins with no _ or -")
    if not voice.consent.strip():
        raise Rejected("consent", "storing a voice takes its speaker's consent, in words")
    for param, text in (("consent", voice.consent), ("ref_text", voice.reference.text)):
        if len(text) > MAX_TEXT_CHARS:
            raise Rejected(param, f"{param} has {len(text)} characters; the most is {MAX_TEXT_CHARS}")
        check_characters(param, text)


def version_of(path: Path) -> Version:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def serialize_voice(voice: StoredVoice) -> bytes:
    """The bytes of a voice file."""
    reference = voice.reference
    assert reference.embedding.dtype == np.float32
    assert reference.embedding.ndim == 1
    assert reference.codes is None or (reference.codes.dtype == np.int16 and reference.codes.ndim == 2)
    # safetensors writes an array's memory and ignores its strides
    tensors: dict[str, NDArray[Any]] = {"embedding": np.ascontiguousarray(reference.embedding)}
    if reference.codes is not None:
        tensors["codes"] = np.ascontiguousarray(reference.codes)
    metadata = {
        "format": FORMAT,
        "name": voice.name,
        "created_at_s": str(voice.created_at_s),
        "consent": voice.consent,
        "ref_text": reference.text,
    }
    return save(tensors, metadata)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a new file and flushes it to the disk, so that a crash leaves no empty voice."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_voice(path: Path) -> StoredVoice | None:
    """Reads a voice file. Returns None if it has just been deleted.

    Raises:
        Rejected: the file is not in the format of `serialize_voice`.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError("it is too large")
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        embedding, codes = tensors["embedding"], tensors.get("codes")
        if metadata["format"] != FORMAT or embedding.dtype != np.float32 or embedding.ndim != 1:
            raise ValueError("it is no voice file")
        if codes is not None and (codes.dtype != np.int16 or codes.ndim != 2):
            raise ValueError("its codes are no frames")
        reference = VoiceReference(embedding, codes, metadata["ref_text"])
        name = path.name.removesuffix(SUFFIX)
        return StoredVoice(name, int(metadata["created_at_s"]), metadata["consent"], reference)
    except FileNotFoundError:
        return None
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise Rejected("speaker", f"the stored voice {path.name.removesuffix(SUFFIX)!r} cannot be read") from error
