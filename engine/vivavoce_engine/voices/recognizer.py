"""Finds a speech recognizer among the installed packages. It judges transcripts in the talker's place. Torch-free.

A package offers one by an entry point of the group `vivavoce.transcriber`: a function without arguments that returns a
Loader, or None if a package that it needs is missing. It is called at the start, so it loads nothing.
"""

import logging
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.config import RefTextJudge

GROUP = "vivavoce.transcriber"
INSTALL = "pip install 'vivavoce-speech[eval]'"

Transcribe = Callable[[NDArray[np.float32]], str | None]
"""Samples [n] float32 mono at 24 kHz → their words. None if they are in a language that it does not know well."""
Loader = Callable[[], Transcribe]
"""Loads the model, which may take seconds."""

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class NoRecognizer(ValueError):
    """The settings ask for a speech recognizer, and none is installed. The message says how to install one."""


def find_recognizer() -> Loader | None:
    """The loader of the first speech recognizer whose packages are installed. None if there is none."""
    for entry in entry_points(group=GROUP):
        try:
            loader: Loader | None = entry.load()()
        except Exception as error:
            log.warning("the speech recognizer %s cannot be used: %s: %s", entry.value, type(error).__name__, error)
            continue
        if loader is not None:
            return loader
    return None


class Recognizer:
    """Transcribes recordings by what is installed, which it looks for and loads at the first one. For one thread."""

    def __init__(self, find: Callable[[], Loader | None] = find_recognizer) -> None:
        self._find = find
        self._transcribe: Transcribe | None = None
        self._is_loaded = self._has_failed = False

    def hear(self, samples: Callable[[], NDArray[np.float32]]) -> str | None:
        """The words of a recording. `samples` gives it, [n] float32 mono at 24 kHz, and is called if it is needed.

        None if no recognizer is installed, or it does not know the language, hears no word, or fails. The first
        failure is logged.
        """
        if not self._is_loaded:
            self._is_loaded = True
            self._transcribe = self._attempt(self._load)
        if self._transcribe is None:
            return None
        recording, transcribe = samples(), self._transcribe
        heard = self._attempt(lambda: transcribe(recording))
        return " ".join((heard or "").split()) or None

    def _load(self) -> Transcribe | None:
        loader = self._find()
        if loader is None:
            return None
        transcribe = loader()
        log.info("a speech recognizer judges ref_text")
        return transcribe

    def _attempt(self, work: Callable[[], Result | None]) -> Result | None:
        try:
            return work()
        except Exception:
            if not self._has_failed:
                log.exception("the speech recognizer failed; the talker judges ref_text in its place")
            self._has_failed = True
            return None


def recognizer_for(judge: RefTextJudge) -> Recognizer | None:
    """The recognizer of a setting `ref_text_judge`. None for `talker`. Loads nothing.

    Raises:
        NoRecognizer: the setting asks for one, and none is installed.
    """
    if judge == "talker":
        return None
    if judge == "asr" and find_recognizer() is None:
        raise NoRecognizer(f"ref_text_judge asr needs a speech recognizer, and none is installed: {INSTALL}")
    return Recognizer()
