"""Files beside the speech of `vivavoce say` and `vivavoce batch`: subtitles, and the words with their times."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from vivavoce_client.outputs import STANDARD
from vivavoce_client.protocol import VivavoceError
from vivavoce_client.subtitles import srt, vtt
from vivavoce_client.words import SpokenTurn, SpokenWord

KINDS = ("srt", "vtt", "words")
"""The options that name a file."""


class NoWordTimes(VivavoceError):
    """A server has sent speech, and no times of its words."""


class BadPath(VivavoceError):
    """A file cannot be written where the command line wants it."""


class Transcript:
    """The texts of speech that follows other speech, with the times of their words on the clock of it all."""

    def __init__(self) -> None:
        self._words: list[SpokenWord] = []
        self._turns: list[SpokenTurn] = []
        self._texts: list[str] = []
        self._chars = 0
        """Characters of all texts so far, each with the break behind it."""
        self._spoken_s = 0.0
        self._is_whole = True
        """True if the length of all the audio is known."""

    def __bool__(self) -> bool:
        """True if it has words."""
        return bool(self._words)

    def add(
        self, text: str, words: Sequence[SpokenWord], turns: Sequence[SpokenTurn], duration_s: float | None
    ) -> None:
        """Adds speech that follows what was spoken before. `duration_s` is None if it broke off."""
        self._words += [word.moved(self._spoken_s, self._chars) for word in words]
        self._texts.append(text)
        self._chars += len(text) + 1
        if self._turns and not turns:
            turns = [SpokenTurn(0, None, 0, duration_s or 0)]
        self._turns += [turn.moved(self._spoken_s, len(self._turns)) for turn in turns]
        self._spoken_s += duration_s or 0
        self._is_whole &= duration_s is not None

    def move_to(self, start_s: float) -> None:
        """Puts what is added next at a time of the clock, behind a silence."""
        self._spoken_s = start_s

    def content(self, kind: str, word_times: bool = True) -> str:
        """The file of one of KINDS. Without `word_times`, no word of a WebVTT file has a time of its own."""
        text = "\n".join(self._texts)
        if kind == "words":
            fields = {"text": text, "words": [word.fields() for word in self._words]}
            return json.dumps(fields, ensure_ascii=False, indent=1) + "\n"
        audio_s = self._spoken_s if self._is_whole else math.inf
        if kind == "srt":
            return srt(self._words, text, self._turns, audio_s)
        return vtt(self._words, text, self._turns, audio_s, word_times)


class WordFiles:
    """The files of --srt, --vtt and --words. They are written when the block ends, also if the speech broke off."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Raises BadPath before anything is spoken."""
        self._paths: dict[str, str] = {kind: path for kind in KINDS if (path := getattr(args, kind)) is not None}
        if [*self._paths.values(), args.output].count(STANDARD) > 1:
            raise BadPath("only one of -o, --srt, --vtt and --words can go to standard output")
        files = [Path(path).resolve() for path in (*self._paths.values(), args.output) if path not in (None, STANDARD)]
        if len(set(files)) < len(files):
            raise BadPath("two of -o, --srt, --vtt and --words name one file")
        for kind, path in self._paths.items():
            if path != STANDARD and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
                raise BadPath(f"--{kind} {path} cannot be written: its folder is missing, or it is a folder")
        self.transcript = Transcript()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.transcript:
            for name, path in self._paths.items():
                self._write(path, self.transcript.content(name))
        elif error is None and self._paths:
            raise NoWordTimes("the server sent no times of words, so there are no subtitles: its model may have none")

    def _write(self, path: str, content: str) -> None:
        if path == STANDARD:
            sys.stdout.write(content)
            return
        try:
            Path(path).write_text(content, encoding="utf-8", newline="\n")
        except OSError as error:
            raise BadPath(f"{path} cannot be written: {error.strerror}") from error
