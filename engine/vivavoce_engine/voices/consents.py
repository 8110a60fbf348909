"""Recordings of speakers' consent on disk, one file each, beside the stored voices. Torch-free.

The first line of a file is JSON: name, language, time. The recording follows as it came. An id begins with the time at
which it was stored, so that the order of ids is that of time, on every server that shares the folder.
"""

import json
import os
import re
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from vivavoce_engine.errors import Rejected, StoreFull
from vivavoce_engine.text.prompt import check_characters
from vivavoce_engine.voices.reference_audio import MAX_BYTES
from vivavoce_engine.voices.store import (
    NO_DESCRIPTORS,
    PARTIAL_SUFFIX,
    read_beginning,
    read_regular,
    store_error,
    write_synced,
)

ID = re.compile(r"cons_[0-9a-f]{24}")
SUFFIX = ".consent"
LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,7}")
"""The form of a BCP 47 tag."""
MAX_NAME_CHARS = 256
HEAD_BYTES = 4096
"""Longest first line. A name has less in JSON."""


@dataclass(frozen=True, slots=True)
class Consent:
    """A recording in which a speaker consents. `language` is a BCP 47 tag, `created_at_s` in seconds since 1970."""

    id: str
    name: str
    language: str
    created_at_s: int


class ConsentStore:
    """The consents in one folder. Any thread may call any method, and each call reads the disk.

    Whatever else has the name of a consent's file is left out.
    """

    def __init__(self, folder: Path, max_consents: int) -> None:
        self._folder = folder
        self._max_consents = max_consents

    def page(self, after: str | None, limit: int) -> tuple[list[Consent], bool]:
        """At most `limit` consents, the newest first, and whether more follow. `after` is the id before the page.

        Raises:
            StoreFailed: the folder cannot be read.
            NotServing: this process has too many files open.
        """
        ids = sorted((id_ for id_ in self._ids() if after is None or id_ < after), reverse=True)
        found = [consent for id_ in ids[:limit] if (consent := self.get(id_)) is not None]
        return found, len(ids) > limit

    def get(self, consent_id: str) -> Consent | None:
        """The consent of that id; None without one, or if its file is broken."""
        if not ID.fullmatch(consent_id):
            return None
        try:
            head = json.loads(read_beginning(self._path(consent_id), HEAD_BYTES).partition(b"\n")[0])
            name, language = checked_name(head["name"]), checked_language(head["language"])
            return Consent(consent_id, name, language, int(head["created_at_s"]))
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                raise store_error("the consent cannot be read", error) from error
            return None
        except (Rejected, ValueError, KeyError, TypeError, AttributeError):
            return None

    def add(self, name: str, language: str, recording: bytes) -> Consent:
        """Writes a new consent to the disk.

        Raises:
            Rejected: `param` is the argument at fault.
            StoreFull: the store has no room for another one.
            StoreFailed: the disk is full or cannot be written to.
            NotServing: this process has too many files open.
        """
        name, language = checked_name(name), checked_language(language)
        if len(self._ids()) >= self._max_consents:
            raise StoreFull(f"{self._max_consents} consents are stored, which is the most; delete one first")
        now_ns = time.time_ns()
        consent_id = f"cons_{now_ns:016x}{uuid.uuid4().hex[:8]}"
        consent = Consent(consent_id, name, language, now_ns // 10**9)
        self._write(consent, recording)
        return consent

    def rename(self, consent_id: str, name: str) -> Consent | None:
        """Changes the name. Returns None if there is no such consent. Raises the errors of `add`."""
        found = self.get(consent_id)
        if found is None:
            return None
        changed = Consent(found.id, checked_name(name), found.language, found.created_at_s)
        try:
            content = read_regular(self._path(consent_id), HEAD_BYTES + MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise store_error("the consent cannot be read", error) from error
        self._write(changed, content.partition(b"\n")[2])
        return changed

    def delete(self, consent_id: str) -> bool:
        """Deletes a consent. Returns False if it did not exist. Raises StoreFailed if its file cannot be deleted."""
        if not ID.fullmatch(consent_id):
            return False
        try:
            self._path(consent_id).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise store_error("the consent cannot be deleted", error) from error
        return True

    def _write(self, consent: Consent, recording: bytes) -> None:
        partial = self._folder / f".{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
        try:
            write_synced(partial, json.dumps(asdict(consent)).encode() + b"\n" + recording)
            partial.replace(self._path(consent.id))
        except OSError as error:
            raise store_error("the consent cannot be stored", error) from error
        finally:
            with suppress(OSError):  # a folder that cannot be written to refuses this too
                partial.unlink(missing_ok=True)

    def _ids(self) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except OSError as error:
            raise store_error("the folder of consents cannot be read", error) from error
        ids = (name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))
        return [id_ for id_ in ids if ID.fullmatch(id_)]

    def _path(self, consent_id: str) -> Path:
        assert ID.fullmatch(consent_id), "ids are checked before they become paths"
        return self._folder / f"{consent_id}{SUFFIX}"


def checked_name(name: str) -> str:
    """The name of a consent. Raises Rejected if it is blank or too long, or has halves of characters."""
    if not name.strip() or len(name) > MAX_NAME_CHARS:
        raise Rejected("name", f"a consent's name has 1 to {MAX_NAME_CHARS} characters")
    check_characters("name", name)
    return name


def checked_language(language: str) -> str:
    """The tag of a language. Raises Rejected if it is none."""
    if not LANGUAGE.fullmatch(language):
        raise Rejected("language", "language is a BCP 47 tag, such as en-US")
    return language
