"""The whole of a job: all tracks on one clock, as audio and as subtitles."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vivavoce_client.batch import files
from vivavoce_client.batch.files import HEADER_BYTES, WAV, samples_of
from vivavoce_client.batch.work import WHOLE, WORD_SUFFIXES, Part, Work
from vivavoce_client.protocol import SAMPLE_BYTES, SAMPLE_RATE, VivavoceError
from vivavoce_client.word_files import NoWordTimes, Transcript
from vivavoce_client.words import SpokenTurn, SpokenWord

CHAPTERS_FILE = f"{WHOLE}.chapters.txt"
WORD = re.compile(r"\S+")
OF_METADATA = re.compile(r"([=;#\\\n])")
"""Signs that a value of FFmpeg's metadata has behind a backslash."""


class NotJoined(VivavoceError):
    """Files of a format cannot be joined, so there is no whole."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A track on the clock of the whole, in samples."""

    path: Path
    title: str | None
    parts: tuple[Part, ...]
    start: int
    silence: int
    """Samples of silence in front of it."""
    length: int


def placed(work: Work) -> list[Placed]:
    """The tracks one behind the other. A line of a subtitle file begins at its cue, if the line before it has ended."""
    clock = 0
    pause = samples_of(work.making.pause_s)
    found: list[Placed] = []
    for track, parts in work.made():
        start = clock + (pause if found else 0)
        if (cue_s := parts[0].line.start_s) is not None:
            start = max(clock, samples_of(cue_s))
        length = sum(_samples(work, part) for part in parts) + pause * (len(parts) - 1)
        found.append(Placed(work.path(track), track.title, tuple(parts), start, start - clock, length))
        clock = start + length
    return found


def write_audio(work: Work, folder: Path) -> None:
    """Writes all audio into one file. Raises BadOutput."""
    tracks = placed(work)
    stretches: list[Path | int] = [each for track in tracks for each in (track.silence, track.path)]
    audio_format = work.making.audio_format
    pcm_bytes = (tracks[-1].start + tracks[-1].length) * SAMPLE_BYTES
    skipped_bytes = HEADER_BYTES if audio_format == WAV else 0
    content = files.joined(stretches, pcm_bytes, audio_format, skipped_bytes)
    files.write(folder / f"{WHOLE}.{audio_format}", content)


def write_chapters(work: Work, folder: Path) -> None:
    """Writes the places of a book's chapters in the whole, as FFmpeg reads them. Raises BadOutput."""
    lines = [";FFMETADATA1"]
    for track in placed(work):
        title = OF_METADATA.sub(r"\\\1", track.title or track.path.stem)
        lines += ["[CHAPTER]", f"TIMEBASE=1/{SAMPLE_RATE}", f"START={track.start}"]
        lines += [f"END={track.start + track.length}", f"title={title}"]
    files.write(folder / CHAPTERS_FILE, ["\n".join([*lines, ""]).encode()])


class Subtitles:
    """The files of words: of the whole, and beside each chapter."""

    def __init__(self, work: Work, kinds: Sequence[str], has_times: bool) -> None:
        """`has_times` is true if the server was asked for the times of words. Else they are estimated."""
        self._work = work
        self._kinds = kinds
        self._has_times = has_times
        self._tracks = placed(work)
        voices = {turn.voice for _, parts in work.made() for part in parts for turn in self._turns(part)}
        self._has_voices = len(voices) > 1

    def write(self, folder: Path, beside_tracks: bool) -> None:
        """Raises BadOutput or NoWordTimes."""
        whole = Transcript()
        for track in self._tracks:
            self._add(whole, track, track.start)
        if self._has_times and not any(self._work.spoken[part.key].words for part in self._parts()):
            raise NoWordTimes("the server sent no times of words, so there are no subtitles: its model may have none")
        self._write(whole, folder / WHOLE)
        for track in self._tracks if beside_tracks else ():
            own = Transcript()
            self._add(own, track, 0)
            self._write(own, track.path)

    def _parts(self) -> Iterator[Part]:
        return (part for track in self._tracks for part in track.parts)

    def _add(self, transcript: Transcript, track: Placed, start: int) -> None:
        for part in track.parts:
            samples = _samples(self._work, part)
            duration_s = samples / SAMPLE_RATE
            transcript.move_to(start / SAMPLE_RATE)
            words = self._work.spoken[part.key].words if self._has_times else estimated(part.line.text, duration_s)
            turns = [
                SpokenTurn(turn.index, turn.voice if self._has_voices else None, turn.start_s, turn.end_s)
                for turn in self._turns(part)
            ]
            transcript.add(part.line.text, words, turns, duration_s)
            start += samples + samples_of(self._work.making.pause_s)

    def _turns(self, part: Part) -> Sequence[SpokenTurn]:
        """The turns of a part. A line is one, so that no subtitle has words of two lines."""
        turns = self._work.spoken[part.key].turns
        return turns or (SpokenTurn(0, voice_name(part.request["voice"]), 0, _samples(self._work, part) / SAMPLE_RATE),)

    def _write(self, transcript: Transcript, path: Path) -> None:
        for kind in self._kinds:
            content = transcript.content(kind, word_times=self._has_times)
            files.write(path.with_suffix(WORD_SUFFIXES[kind]), [content.encode()])


def estimated(text: str, duration_s: float) -> list[SpokenWord]:
    """The words of a text, which share the time of its audio by their characters."""
    character_s = duration_s / max(1, len(text))
    found = list(WORD.finditer(text))
    ends = [*(following.start() for following in found[1:]), len(text)]
    return [
        SpokenWord(word.group(), word.start() * character_s, end * character_s, *word.span())
        for word, end in zip(found, ends, strict=True)
    ]


def voice_name(voice: str | Mapping[str, str]) -> str:
    """Name of a request's voice, which OpenAI's API takes as `{"id": ...}` too."""
    return voice if isinstance(voice, str) else voice["id"]


def _samples(work: Work, part: Part) -> int:
    return work.spoken[part.key].content.size_bytes // SAMPLE_BYTES
