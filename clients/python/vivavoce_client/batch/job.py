"""The job file: what a job says, and what of it has been said. SQLite writes each entry whole or not at all."""

import contextlib
import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from vivavoce_client.protocol import VivavoceError
from vivavoce_client.words import SpokenTurn, SpokenWord, parse_turns, parse_words

JOB_FILE = "job.sqlite"
JOB_VERSION = 1
HASHED_BYTES = 1 << 20
SCHEMA = """
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE plan (number INTEGER PRIMARY KEY, key TEXT NOT NULL);
CREATE TABLE part (key TEXT PRIMARY KEY, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL, words TEXT NOT NULL,
    refusal TEXT);
CREATE TABLE track (key TEXT PRIMARY KEY, file TEXT NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL);
"""


class BadJob(VivavoceError):
    """A folder cannot be used for a job, or holds another one."""


@dataclass(frozen=True, slots=True)
class Content:
    """Size and SHA-256 of a file's content."""

    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "Content | None":
        """The content of a file; None if it is not there."""
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while piece := file.read(HASHED_BYTES):
                    digest.update(piece)
                return cls(file.tell(), digest.hexdigest())
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class Spoken:
    """Speech of a request: its audio, and the times of its words where they were asked for.

    `refusal` is the server's reason why the text cannot be said; there is no audio then.
    """

    content: Content
    words: tuple[SpokenWord, ...] = ()
    turns: tuple[SpokenTurn, ...] = ()
    refusal: str | None = None


class Job:
    """The job file of a folder. While it is open, no other process can open it."""

    def __init__(self, folder: Path) -> None:
        """Raises BadJob."""
        path = folder / JOB_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.exists() and any(folder.iterdir()):
                raise BadJob(f"{folder} has files and no job; a new job begins in a folder of its own")
            self._database = sqlite3.connect(path, timeout=0, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise BadJob(f"{folder} cannot be used: {error}") from error
        try:
            self._open(path)
        except sqlite3.OperationalError as error:
            self._database.close()
            what = "another process works at this job" if "locked" in str(error) else str(error)
            raise BadJob(f"{path} cannot be used: {what}") from error
        except sqlite3.DatabaseError as error:
            self._database.close()
            raise BadJob(f"{path} is no job file: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()

    def _open(self, path: Path) -> None:
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
        # Without a wait for the disk at each entry: a loss of power may take the last ones, and leaves the others.
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute("BEGIN EXCLUSIVE")
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        tables = self._database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if not tables:
            for statement in filter(str.strip, SCHEMA.split(";")):
                self._database.execute(statement)
            self._database.execute(f"PRAGMA user_version = {JOB_VERSION}")
        elif version != JOB_VERSION:
            self._database.execute("ROLLBACK")
            self._database.close()
            raise BadJob(f"{path} is of another version of this program; give another folder")
        self._database.execute("COMMIT")

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Makes the changes of a block one entry."""
        self._database.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    # ---- the plan ---------------------------------------------------------------------------------------------------

    @property
    def voice(self) -> str | None:
        """The voice that the server's list had first when the job began."""
        row = self._database.execute("SELECT value FROM fact WHERE name = 'voice'").fetchone()
        return None if row is None else str(row[0])

    def keep_voice(self, voice: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO fact VALUES ('voice', ?)", (voice,))

    def plan(self) -> list[str]:
        """The keys of all requests, in their order."""
        return [key for (key,) in self._database.execute("SELECT key FROM plan ORDER BY number")]

    def set_plan(self, keys: Sequence[str]) -> None:
        """Replaces the plan, and forgets parts that are no longer in it."""
        with self.change():
            self._database.execute("DELETE FROM plan")
            self._database.executemany("INSERT INTO plan VALUES (?, ?)", enumerate(keys, 1))
            self._database.execute("DELETE FROM part WHERE key NOT IN (SELECT key FROM plan)")

    # ---- what has been said -----------------------------------------------------------------------------------------

    def parts(self) -> dict[str, Spoken]:
        rows = self._database.execute("SELECT key, bytes, sha256, words, refusal FROM part")
        return {key: _spoken(Content(size, sha256), words, refusal) for key, size, sha256, words, refusal in rows}

    def add_part(self, key: str, spoken: Spoken) -> None:
        turns = [{"index": turn.index, "voice": turn.voice, "start": turn.start_s, "end": turn.end_s}
                 for turn in spoken.turns]  # fmt: skip
        words = json.dumps({"words": [word.fields() for word in spoken.words], "turns": turns}, ensure_ascii=False)
        row = (key, spoken.content.size_bytes, spoken.content.sha256, words, spoken.refusal)
        self._database.execute("INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?, ?)", row)

    def drop_parts(self, keys: Sequence[str]) -> None:
        with self.change():
            self._database.executemany("DELETE FROM part WHERE key = ?", [(key,) for key in keys])

    def tracks(self) -> dict[str, tuple[str, Content]]:
        """Key of a track → its file, and what is in it."""
        rows = self._database.execute("SELECT key, file, bytes, sha256 FROM track")
        return {key: (file, Content(size, sha256)) for key, file, size, sha256 in rows}

    def add_track(self, key: str, file: str, content: Content) -> None:
        row = (key, file, content.size_bytes, content.sha256)
        self._database.execute("INSERT OR REPLACE INTO track VALUES (?, ?, ?, ?)", row)

    def drop_track(self, key: str) -> None:
        self._database.execute("DELETE FROM track WHERE key = ?", (key,))


def keys_of(requests: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for what each request asks for. The second of two equal requests has another one."""
    taken: Counter[str] = Counter()
    keys = []
    for request in requests:
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]
        taken[digest] += 1
        keys.append(f"{digest}-{taken[digest]}")
    return keys


def _spoken(content: Content, told: str, refusal: str | None) -> Spoken:
    fields = json.loads(told)
    return Spoken(content, parse_words(fields["words"]), parse_turns(fields["turns"]), refusal)
