"""Utterances of the teacher: single records, documents, parts of documents, runs of single records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voice_recipe.corpus import ALONE, Corpus

IntArray = npt.NDArray[np.int64]
CUT_SHARE = 0.4
"""Share of the documents that are spoken as two utterances."""
RUN_SHARE, LONGEST_RUN = 0.12, 6
"""Share of the single records that become runs, and the most records of a run."""
MOST_PHONEMES = 900
"""Most phonemes of an utterance: about 60 s."""
PAUSE_S, PARAGRAPH_PAUSE_S = (0.15, 0.5), (0.3, 0.7)
"""Range of the silence between two records of an utterance; the longer one where the text has a line break."""
SENTENCE_ENDS = (".", "!", "?")


def plan(corpus: Corpus, rng: np.random.Generator) -> list[list[int]]:
    """Records of every utterance of one pass over the corpus, in random order."""
    units: list[list[int]] = []
    for run in corpus.document_runs():
        at = int(rng.integers(1, len(run))) if len(run) > 1 and rng.random() < CUT_SHARE else len(run)
        units += [list(part) for part in (run[:at], run[at:]) if part]
    alone = rng.permutation(np.flatnonzero(corpus.documents == ALONE)).tolist()
    joins = rng.random(len(alone)) < RUN_SHARE
    joined = [record for record, join in zip(alone, joins, strict=True) if join and _ends(corpus.texts[record])]
    known = set(joined)
    units += [[record] for record in alone if record not in known]
    at = 0
    while at < len(joined):
        size = int(rng.integers(2, LONGEST_RUN + 1))
        units.append(joined[at : at + size])
        at += size
    lengths = np.diff(corpus.offsets[0])
    parts = [part for unit in units for part in _bounded(unit, lengths)]
    return [parts[i] for i in rng.permutation(len(parts))]


def _ends(text: str) -> bool:
    return text.endswith(SENTENCE_ENDS)


def _bounded(unit: list[int], lengths: IntArray) -> list[list[int]]:
    """Split a unit that is too long."""
    parts: list[list[int]] = [[]]
    used = 0
    for record in unit:
        if parts[-1] and used + lengths[record] > MOST_PHONEMES:
            parts.append([])
            used = 0
        parts[-1].append(record)
        used += int(lengths[record])
    return parts


def separator(corpus: Corpus, record: int) -> str:
    """Text before a record that is not the first of its utterance."""
    return corpus.glue[record] or " "


def pauses(corpus: Corpus, unit: list[int], rng: np.random.Generator) -> list[float]:
    """Silence in s before every record of an utterance."""
    ranges = [PARAGRAPH_PAUSE_S if "\n" in separator(corpus, record) else PAUSE_S for record in unit[1:]]
    return [0.0, *(float(rng.uniform(*limits)) for limits in ranges)]


def text_of(corpus: Corpus, unit: list[int], spoken: bool) -> str:
    """Text of an utterance, as written or as the server's normalisation makes it, which keeps no line breaks."""
    parts = []
    for number, record in enumerate(unit):
        said = corpus.spoken[record] if spoken else None
        gap = separator(corpus, record) if number else ""
        parts += [" " if spoken and gap else gap, corpus.texts[record] if said is None else said]
    return "".join(parts)
