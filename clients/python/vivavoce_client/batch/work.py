"""A job's work: which requests are left to ask, and which tracks are left to make."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree as remove_tree
from typing import Any

from vivavoce_client.batch import files
from vivavoce_client.batch.files import JOINED_FORMATS, WAV, samples_of
from vivavoce_client.batch.job import Content, Job, Spoken, keys_of
from vivavoce_client.batch.lines import Line, Track
from vivavoce_client.protocol import PCM, SAMPLE_BYTES, VivavoceError

PARTS_FOLDER = ".parts"
WHOLE = "whole"
"""Name of the files of all tracks, without their suffixes."""
WORD_SUFFIXES = {"srt": ".srt", "vtt": ".vtt", "words": ".json"}
"""Kind of a file of words → its suffix."""


class ChangedSource(VivavoceError):
    """The lines or the options are not those that the job began with."""


@dataclass(frozen=True, slots=True)
class Part:
    """A request of a job."""

    key: str
    line: Line
    request: dict[str, Any]
    track: Track


@dataclass(frozen=True, slots=True)
class Making:
    """The way in which a job's tracks are made."""

    audio_format: str
    pause_s: float
    """Silence between the pieces of a chapter, and between the tracks of the whole."""

    @property
    def wire_format(self) -> str:
        """Format that the server sends. The sizes in a WAV file's header are known only at its end."""
        return PCM if self.audio_format == WAV else self.audio_format


class Work:
    """The parts and tracks of a job, and which of them are done."""

    def __init__(self, job: Job, folder: Path, tracks: Sequence[Track], making: Making) -> None:
        self._job = job
        self._folder = folder
        self.making = making
        self.tracks = tracks
        self.parts: list[Part] = []
        self.spoken: dict[str, Spoken] = {}
        """Key of a request → its speech, for those that are done."""
        self._track_parts: dict[str, list[Part]] = {}
        self._made: dict[str, Content] = {}
        """Name of a track that has been made → its content."""

    # ---- what is left -----------------------------------------------------------------------------------------------

    def begin(self, requests: Sequence[dict[str, Any]], may_change: bool) -> list[Part]:
        """Compares the plan with the job's, keeps what is done and still wanted, and returns the parts that are left.

        Raises:
            ChangedSource: the plan is not the job's, and `may_change` is false.
        """
        owners = ((line, track) for track in self.tracks for line in track.lines)
        keys = keys_of(requests)
        self.parts = [
            Part(key, line, request, track) for key, request, (line, track) in zip(keys, requests, owners, strict=True)
        ]
        for part in self.parts:
            self._track_parts.setdefault(part.track.name, []).append(part)
        wanted = {self._track_key(track): track for track in self.tracks}
        self._compare(wanted, may_change)
        for folder in (self._folder, self._folder / PARTS_FOLDER):
            folder.mkdir(exist_ok=True)
            files.clean(folder)
        self._keep_tracks(wanted)
        self._keep_parts()
        left = [part for part in self.parts if part.key not in self.spoken]
        if left:
            self._remove_whole()
        for track in self.tracks:
            self._make_if_complete(track)
        return left

    def _compare(self, wanted: Mapping[str, Track], may_change: bool) -> None:
        planned, keys = self._job.plan(), [part.key for part in self.parts]
        made = self._job.tracks()
        stale = made.keys() - wanted.keys()
        if planned == keys and not stale:
            return
        has_begun = bool(made or self._job.parts())
        if has_begun and not may_change:
            known = set(planned)
            new = [part for part in self.parts if part.key not in known]
            first = f" (the first is {new[0].line.place})" if new else ""
            raise ChangedSource(
                f"this is not the job that {self._folder} holds: {len(new)} of {len(keys)} requests are new{first}, "
                f"{len(known - set(keys))} are gone, and {len(stale)} files would go. "
                "--changed keeps what is the same and makes the rest"
            )
        self._remove_whole()
        self._job.set_plan(keys)

    def _keep_tracks(self, wanted: Mapping[str, Track]) -> None:
        """Moves the files of tracks to their names, and forgets tracks that are not wanted or not as they were made."""
        for key, (file, content) in self._job.tracks().items():
            if key not in wanted:
                self._remove_words(file)
                (self._folder / file).unlink(missing_ok=True)
                self._job.drop_track(key)
            elif Content.of(self._folder / file) != content:
                self._job.drop_track(key)
            elif file != self._file(wanted[key].name):
                self._remove_words(file)
                # By way of a name that no other track has: tracks may change places.
                self._move(key, file, f"{PARTS_FOLDER}/{key}", content)
        for key, (file, content) in self._job.tracks().items():
            if file != (name := self._file(wanted[key].name)):
                self._move(key, file, name, content)
            self._made[wanted[key].name] = content

    def _remove_whole(self) -> None:
        for stale in self._folder.glob(f"{WHOLE}.*"):
            stale.unlink()

    def _remove_words(self, file: str) -> None:
        """Removes the files of words beside a track that is about to go."""
        for suffix in WORD_SUFFIXES.values():
            (self._folder / file).with_suffix(suffix).unlink(missing_ok=True)

    def _move(self, key: str, file: str, name: str, content: Content) -> None:
        # A crash between the two leaves a file that the job does not know. Its lines are spoken again.
        os.replace(self._folder / file, self._folder / name)
        self._job.add_track(key, name, content)

    def _keep_parts(self) -> None:
        """Forgets parts whose audio is neither in a track that is made nor in a file of its own."""
        recorded = self._job.parts()
        lost = []
        for part in self.parts:
            spoken = recorded.get(part.key)
            if spoken is None:
                continue
            is_kept = part.track.name in self._made or (
                spoken.refusal is None and Content.of(self.audio_file(part)) == spoken.content
            )
            if is_kept:
                self.spoken[part.key] = spoken
            else:
                lost.append(part.key)
        self._job.drop_parts(lost)

    # ---- what is being done -----------------------------------------------------------------------------------------

    def audio_file(self, part: Part) -> Path:
        """The file that holds the audio of a part until its track is made."""
        return self._folder / PARTS_FOLDER / f"{part.key}.{self.making.wire_format}"

    def add(self, part: Part, spoken: Spoken) -> None:
        """Keeps the speech of a part, and makes its track if it was the last. Raises BadOutput."""
        self._job.add_part(part.key, spoken)
        self.spoken[part.key] = spoken
        self._make_if_complete(part.track)

    def finish(self) -> None:
        """Removes the folder of parts, which are all in tracks."""
        remove_tree(self._folder / PARTS_FOLDER)

    def _make_if_complete(self, track: Track) -> None:
        parts = self._track_parts[track.name]
        if track.name in self._made or not all(part.key in self.spoken for part in parts):
            return
        voiced = self._voiced(track)
        if not voiced:
            return
        key, file = self._track_key(track), self._file(track.name)
        self._remove_words(file)
        content = files.write(self._folder / file, self._content(voiced))
        self._job.add_track(key, file, content)
        self._made[track.name] = content
        for part in voiced:
            self.audio_file(part).unlink()

    def _content(self, voiced: Sequence[Part]) -> Iterator[bytes]:
        paths = [self.audio_file(part) for part in voiced]
        if self.making.audio_format not in JOINED_FORMATS:
            return files.read(paths[0])  # a track of one part
        pause = samples_of(self.making.pause_s)
        stretches = [each for path in paths for each in (pause, path)][1:]
        pcm_bytes = sum(self.spoken[part.key].content.size_bytes for part in voiced)
        pcm_bytes += pause * SAMPLE_BYTES * (len(paths) - 1)
        return files.joined(stretches, pcm_bytes, self.making.audio_format, 0)

    # ---- what has been done -----------------------------------------------------------------------------------------

    def made(self) -> list[tuple[Track, list[Part]]]:
        """The tracks that have a file, with those of their parts that are in it."""
        return [(track, self._voiced(track)) for track in self.tracks if track.name in self._made]

    def refused(self) -> list[tuple[Line, str]]:
        """The lines that the server did not take, and its reasons."""
        told = ((part.line, self.spoken[part.key].refusal) for part in self.parts if part.key in self.spoken)
        return [(line, refusal) for line, refusal in told if refusal is not None]

    def path(self, track: Track) -> Path:
        return self._folder / self._file(track.name)

    def _voiced(self, track: Track) -> list[Part]:
        parts = self._track_parts[track.name]
        return [part for part in parts if part.key in self.spoken and self.spoken[part.key].refusal is None]

    def _file(self, name: str) -> str:
        return f"{name}.{self.making.audio_format}"

    def _track_key(self, track: Track) -> str:
        parts = self._track_parts[track.name]
        request: dict[str, Any] = {"parts": [part.key for part in parts], "format": self.making.audio_format}
        if len(parts) > 1:
            request["pause_s"] = self.making.pause_s
        return keys_of([request])[0]
