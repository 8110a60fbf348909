"""Stored voices on disk: one safetensors file per voice, with name, consent and text in its metadata. Torch-free.

Several servers may share the folder. Each lookup therefore checks the disk, and sees at once if another server added,
replaced or deleted a voice. The cache only saves reading files. Files appear whole or not at all.

Anything may lie in the folder under a voice's name: a FIFO, a device, a link, a file of another format. It costs itself
alone. No such entry is waited for, and at most MAX_FILE_BYTES of it are read. A link to a voice's file is a voice.
"""

import errno
import json
import logging
import os
import re
import stat
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from vivavoce_engine.errors import EngineError, NotServing, Rejected, StoreFailed, StoreFull
from vivavoce_engine.request import Hearing, VoiceReference
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
TENSOR_TYPES: Mapping[str, tuple[str, str, int]] = {"embedding": ("F32", "<f4", 1), "codes": ("I16", "<i2", 2)}
"""The tensors of a voice file: the type there, the type in numpy, and the number of axes."""
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})

Version: TypeAlias = tuple[int, int, int]
"""Inode, modification time in ns, and size in bytes. A new file under the same name has another version."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredVoice:
    """A voice that clients refer to by name.

    `consent` is the speaker's permission, in the speaker's words. `created_at_s` is in seconds since 1970. `label` is
    the name as it was written. `prompt` is the description of a voice that was designed, which has no speaker to
    consent.
    """

    name: str
    created_at_s: int
    consent: str
    reference: VoiceReference
    label: str = ""
    prompt: str = ""

    @property
    def nbytes(self) -> int:
        return self.reference.nbytes + sum(len(text.encode()) for text in (self.consent, self.label, self.prompt))


class VoiceStore:
    """The voices in one folder. Any thread may call any method, and each call reads the disk."""

    def __init__(self, folder: Path, max_voices: int = 1000, cache_bytes: int = 64 * 2**20) -> None:
        assert max_voices >= 0
        self._folder = folder
        self._max_voices = max_voices
        self._cache: ByteLimitedCache[tuple[str, Version], StoredVoice] = ByteLimitedCache(cache_bytes)
        self._told: Mapping[str, str] = {}
        """Faults of files that the log has told, by name. Each is told once."""
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def max_voices(self) -> int:
        return self._max_voices

    @property
    def cached_bytes(self) -> int:
        """Bytes of the voices in the cache, at most `cache_bytes`."""
        return self._cache.nbytes

    def names(self) -> list[str]:
        """Names of all voices, in alphabetical order. What is no file is left out.

        Raises:
            StoreFailed: the folder cannot be read.
            NotServing: this process has too many files open.
        """
        return sorted(name for name, entry in self._named_entries() if is_file(entry))

    def all(self) -> list[StoredVoice]:
        """All voices, in alphabetical order. Files that cannot be read are logged, each once, and left out.

        Raises the errors of `names`.
        """
        voices, broken = [], {}
        for name in sorted(name for name, _ in self._named_entries()):
            try:
                voice = self.get(name)
            except Rejected as error:
                broken[name] = f"{error}: {error.__cause__}"
                continue
            if voice is not None:
                voices.append(voice)
        for name, text in broken.items():
            if self._told.get(name) != text:
                log.warning("%s", text)
        self._told = broken
        return voices

    def get(self, name: str) -> StoredVoice | None:
        """The voice of that name, in any letter case and with any blanks, or None.

        Raises:
            Rejected: the voice's file is broken.
            NotServing: this process has too many files open.
        """
        name = key_of(name)
        if not NAME.fullmatch(name):
            return None
        path = self._path(name)
        try:
            version = version_of(path)
            voice = self._cache.get((name, version))
            if voice is None:
                voice = read_voice(path)
                self._cache.put((name, version), voice)
        except FileNotFoundError:
            return None
        except (Rejected, SafetensorError, ValueError, KeyError, OSError) as error:
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
                raise store_error("the voice cannot be read", error) from error
            raise Rejected("speaker", f"the stored voice {name!r} cannot be read") from error
        return voice

    def has(self, name: str) -> bool:
        """True if the name is taken, be it by a file that cannot be read."""
        name = key_of(name)
        return bool(NAME.fullmatch(name)) and os.path.lexists(self._path(name))

    def add(self, voice: StoredVoice) -> StoredVoice:
        """Writes a new voice to the disk.

        Raises:
            Rejected: the name is taken or invalid, or a text is missing or too long.
            StoreFull: the store has no room for another voice.
            StoreFailed: the disk is full or cannot be written to.
            NotServing: this process has too many files open.
        """
        check_voice(voice)
        path, partial = self._path(voice.name), self._folder / f".{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
        try:
            for left in self.stale():
                with suppress(OSError):  # what cannot be deleted is in nobody's way
                    left.unlink()
            if len(self.names()) >= self._max_voices:
                raise StoreFull(f"{self._max_voices} voices are stored, which is the most; delete one first")
            write_synced(partial, serialize_voice(voice))
            os.link(partial, path)  # fails, unlike a rename, if another server has just stored that name
        except FileExistsError:
            raise Rejected("name", f"there is a voice {voice.name!r} already") from None
        except OSError as error:
            raise store_error("the voice cannot be stored", error) from error
        finally:
            with suppress(OSError):  # a folder that cannot be written to refuses this too
                partial.unlink(missing_ok=True)
        return voice

    def delete(self, name: str) -> bool:
        """Deletes a voice. Returns False if it did not exist. Raises StoreFailed if its file cannot be deleted."""
        name = key_of(name)
        if not NAME.fullmatch(name):
            return False
        path = self._path(name)
        if not os.path.lexists(path):  # a read-only file system refuses before it looks for the file
            return False
        try:
            with suppress(OSError):  # a broken link
                self._cache.forget((name, version_of(path)))
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise store_error("the voice cannot be deleted", error) from error
        return True

    def _path(self, name: str) -> Path:
        assert NAME.fullmatch(name), "names are checked before they become paths"
        return self._folder / f"{name}{SUFFIX}"

    def _named_entries(self) -> "list[tuple[str, os.DirEntry[str]]]":
        """The entries that have a voice's name, with that name."""
        named = ((entry.name.removesuffix(SUFFIX), entry) for entry in self._entries() if entry.name.endswith(SUFFIX))
        return [(name, entry) for name, entry in named if NAME.fullmatch(name)]

    def _entries(self) -> "list[os.DirEntry[str]]":
        try:
            with os.scandir(self._folder) as entries:
                return list(entries)
        except OSError as error:
            raise store_error("the folder of stored voices cannot be read", error) from error

    def stale(self) -> list[Path]:
        """Partial files that a server which died has left. `add` deletes them."""
        found = []
        for entry in self._entries():
            if entry.name.endswith(PARTIAL_SUFFIX) and entry.name.startswith("."):
                with suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_S:
                        found.append(Path(entry.path))
        return found


def key_of(name: str) -> str:
    """The name of a voice's file: in small letters, with _ for blanks. It may still be no valid name."""
    return "_".join(name.casefold().split())


def store_error(what: str, error: OSError) -> EngineError:
    """The error for a disk that does not serve. Lack of descriptors passes, so it is told to try again."""
    if error.errno in NO_DESCRIPTORS:
        return NotServing(f"{what}: too many files are open")
    return StoreFailed(f"{what}: {error.strerror or error}")


def is_file(entry: "os.DirEntry[str]") -> bool:
    """True for a regular file and for a link to one."""
    try:
        return entry.is_file()
    except OSError:  # a loop of links
        return False


def check_voice(voice: StoredVoice) -> None:
    """Raises Rejected, with the argument at fault as `param`, if the voice cannot be stored."""
    if not NAME.fullmatch(voice.name):
        raise Rejected(
            "name", "a voice's name has 1 to 64 letters a-z, digits, blanks, _ and -, and begins with no _ or -"
        )
    if not voice.consent.strip() and not voice.prompt.strip():
        raise Rejected("consent", "storing a voice takes its speaker's consent, in words")
    texts = (
        ("consent", voice.consent),
        ("ref_text", voice.reference.text),
        ("prompt", voice.prompt),
        ("name", voice.label),
    )
    for param, text in texts:
        if len(text) > MAX_TEXT_CHARS:
            raise Rejected(param, f"{param} has {len(text)} characters; the most is {MAX_TEXT_CHARS}")
        check_characters(param, text)


def version_of(path: Path) -> Version:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


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
        "label": voice.label,
        "prompt": voice.prompt,
        "text_fit": "" if reference.text_fit is None else repr(reference.text_fit),
        "words_wrong": "" if reference.hearing is None else repr(reference.hearing.wrong),
    }
    return save(tensors, metadata)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a new file and flushes it to the disk, so that a crash leaves no empty voice."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_voice(path: Path) -> StoredVoice:
    """Reads a voice file.

    Raises:
        FileNotFoundError: it has just been deleted.
        Rejected, SafetensorError, ValueError, KeyError, OSError: it is no file in the format of `serialize_voice`.
    """
    content = read_regular(path, MAX_FILE_BYTES)
    tensors = {name: tensor_of(name, fields) for name, fields in deserialize(content)}  # type: ignore[no-untyped-call]
    metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
    if metadata["format"] != FORMAT:
        raise ValueError("it is no voice file")
    fit, wrong = metadata.get("text_fit"), metadata.get("words_wrong")  # files of earlier versions have neither
    reference = VoiceReference(
        tensors["embedding"],
        tensors.get("codes"),
        metadata["ref_text"],
        text_fit=float(fit) if fit else None,
        hearing=Hearing("", float(wrong)) if wrong else None,
    )
    if not np.isfinite(reference.embedding).all():
        raise ValueError("its embedding is not finite")
    name = path.name.removesuffix(SUFFIX)
    voice = StoredVoice(
        name,
        int(metadata["created_at_s"]),
        metadata["consent"],
        reference,
        label=metadata.get("label", ""),  # files of earlier versions have neither
        prompt=metadata.get("prompt", ""),
    )
    check_voice(voice)
    return voice


def tensor_of(name: str, fields: Mapping[str, Any]) -> NDArray[Any]:
    """A tensor of a voice file. Raises ValueError or KeyError if the name or the type is another."""
    kind, dtype, axes = TENSOR_TYPES[name]
    if fields["dtype"] != kind or len(fields["shape"]) != axes:
        raise ValueError(f"its {name} has type {fields['dtype']} and shape {fields['shape']}")
    return np.frombuffer(fields["data"], dtype).reshape(fields["shape"]).copy()


def read_regular(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file. Never waits for a FIFO, a device or a terminal.

    Raises:
        ValueError: it is no regular file, or is larger than `max_bytes`.
        OSError: it cannot be read.
    """
    content = read_beginning(path, max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes} bytes")
    return content


def read_beginning(path: Path, most_bytes: int) -> bytes:
    """The first bytes of a regular file. Raises as `read_regular`, at any size."""
    with open(path, "rb", opener=open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
        return file.read(most_bytes)


def open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
