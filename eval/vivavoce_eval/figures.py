"""Figures of a run, computed from its rows. A file of them is a report's data and the reference of later runs."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from vivavoce_eval.errors import Unusable
from vivavoce_eval.hearing import Row
from vivavoce_eval.judges import Embedding

DIGITS = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over a run's sentences; the silences are medians. `word_error_rate` and `by_category` are in percent of
    words."""

    sentences: int
    word_error_rate: float
    by_category: dict[str, float]
    ovrl: float
    sig: float
    bak: float
    p808: float
    stops: float
    s_per_character: float
    leading_silence_s: float
    trailing_silence_s: float
    voiced: float


def figures_of(rows: Sequence[Row]) -> Figures:
    """Computes the figures. Raises Unusable if there are no rows."""
    if not rows:
        raise Unusable("there is no sentence to make figures of")
    categories: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        categories[row.category].append(row)
    spoken_s = sum(row.duration_s - row.leading_silence_s - row.trailing_silence_s for row in rows)
    return Figures(
        sentences=len(rows),
        word_error_rate=_error_rate(rows),
        by_category={name: _error_rate(some) for name, some in categories.items()},
        ovrl=mean(row.ovrl for row in rows),
        sig=mean(row.sig for row in rows),
        bak=mean(row.bak for row in rows),
        p808=mean(row.p808 for row in rows),
        stops=mean(row.stopped for row in rows),
        s_per_character=spoken_s / sum(len(row.text) for row in rows),
        leading_silence_s=median(row.leading_silence_s for row in rows),
        trailing_silence_s=median(row.trailing_silence_s for row in rows),
        voiced=mean(row.voiced for row in rows),
    )


def _error_rate(rows: Sequence[Row]) -> float:
    return 100 * sum(row.wrong_words for row in rows) / sum(row.words for row in rows)


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """A speaker's median pitch and mean speaker embedding.

    The embedding [256] is the mean over `utterances` utterances, whose embeddings have length 1. Mean cosines within
    and between speakers follow from it.
    """

    f0_hz: float | None
    utterances: int
    embedding: Embedding

    @property
    def same(self) -> float | None:
        """Mean cosine of two different utterances of this speaker. None if there are fewer than two."""
        if self.utterances < 2:
            return None
        count = self.utterances
        return float((count * (self.embedding @ self.embedding) - 1) / (count - 1))

    def different(self, other: "Voice") -> float:
        """Mean cosine of an utterance of this speaker and one of another."""
        return float(self.embedding @ other.embedding)


def voices_of(rows: Sequence[Row], embeddings: Sequence[Embedding | None]) -> dict[str, Voice]:
    """Voices of the speakers, in order of first appearance. Leaves out speakers with too little speech to recognise."""
    voices = {}
    for name in dict.fromkeys(row.speaker for row in rows):
        own = [vector for row, vector in zip(rows, embeddings, strict=True) if row.speaker == name]
        known = [vector for vector in own if vector is not None]
        if known:
            pitches = [row.f0_hz for row in rows if row.speaker == name and row.f0_hz is not None]
            centre = np.asarray(np.mean(known, axis=0), np.float32)
            voices[name] = Voice(median(pitches) if pitches else None, len(known), centre)
    return voices


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Everything measured about one voice. `about` describes the measurement: source, text mode, versions."""

    about: dict[str, Any]
    rows: tuple[Row, ...]
    voices: dict[str, Voice]

    def rows_shared_with(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        """Rows of this run whose sentences are among those of `rows`."""
        wanted = {row.text for row in rows}
        return tuple(row for row in self.rows if row.text in wanted)


def save(run: Run, path: Path) -> None:
    """Writes a run as one JSON document, with a line for each sentence and each speaker."""
    voices = {
        name: {"f0_hz": voice.f0_hz, "utterances": voice.utterances, "embedding": voice.embedding.tolist()}
        for name, voice in run.voices.items()
    }
    parts = [f' "about": {json.dumps(run.about)}', f' "figures": {json.dumps(rounded(asdict(figures_of(run.rows))))}']
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(rounded(voice))}" for name, voice in voices.items())
    parts.append(f' "voices": {{\n{lines}\n }}')
    lines = ",\n".join(f"  {json.dumps(rounded(asdict(row)), ensure_ascii=False)}" for row in run.rows)
    parts.append(f' "rows": [\n{lines}\n ]')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def load(path: Path) -> Run:
    """Reads a run that `save` has written.

    Raises:
        Unusable: the file is not a run.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        voices = {
            name: Voice(voice["f0_hz"], voice["utterances"], np.asarray(voice["embedding"], np.float32))
            for name, voice in stored["voices"].items()
        }
        return Run(stored["about"], tuple(Row(**row) for row in stored["rows"]), voices)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise Unusable(f"{path} holds no run of `vivavoce eval quality`: {error!r}") from error


def rounded(value: Any) -> Any:  # noqa: ANN401 (a JSON document)
    """Rounds all numbers to four digits after the point."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value
