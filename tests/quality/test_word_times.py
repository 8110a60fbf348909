"""Word times of the running engine against an acoustic aligner, on sentences that the shipped voice never learnt.

Run by `make test-quality`. make_word_times.py says how the aligner's times were made.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.timed_speech import LAYOUTS, SETS, Layout, Said, Utterance, speak

pytestmark = pytest.mark.quality
REFERENCE = Path(__file__).with_name("word_times.json")
MEDIAN_MS, P95_MS = 35, 150
FRAME_MS = 80
LEAST_SAME = 0.9
"""Share of the utterances that a machine must speak as the one did where the reference was made. Another processor
rounds otherwise, and may draw another sound."""
MOST_UNKNOWN = 0.01
"""Share of words whose times the engine may call unknown, in speech that says all of its text."""

Times = NDArray[np.float64]
"""Start and end of each word in ms, [words, 2]."""
Pair = tuple[Said, Times]


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    """Utterances that are the same on this machine, each with the aligner's times."""
    rows = [row for row in json.loads(REFERENCE.read_text(encoding="utf-8")) if row["words_ms"] is not None]
    asked = [Utterance(row["set"], row["layout"], row["voice"], row["seed"], row["text"]) for row in rows]
    said = speak(asked)
    same = [one.code_0_crc32 == row["code_0_crc32"] for one, row in zip(said, rows, strict=True)]
    frames = [(one.frames, row["frames"]) for one, row in zip(said, rows, strict=True) if one.frames != row["frames"]]
    assert np.mean(same) >= LEAST_SAME, (
        f"only {sum(same)} of {len(same)} utterances are spoken as where the reference was made, and {len(frames)} "
        "have another length: floating point differs here. Make the reference again (make_word_times.py)"
    )
    return [(one, np.array(row["words_ms"], float)) for one, row, equal in zip(said, rows, same, strict=True) if equal]


def engine_times(said: Said) -> Times:
    """The engine's times in ms; NaN where they are unknown."""
    words = [word for chunk in said.chunks for word in chunk.words]
    return 1000 * np.array([(word.start_s, word.end_s) for word in words], float)


def times_by_characters(said: Said) -> Times:
    """A guess from the known length: words in proportion to their characters, between usual silences at the ends."""
    text, at, spans = said.utterance.text, 0, []
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        if any(map(str.isalnum, word)):
            spans.append((start, start + len(word.rstrip(".,!?;:"))))
    times: Times = 100 + (said.frames * FRAME_MS - 250) * np.array(spans, float) / len(text)
    return times


def errors(pairs: list[Pair], times_of: Callable[[Said], Times]) -> Times:
    """Absolute errors of starts and ends of all words, [words, 2], without words of unknown times."""
    found = []
    for said, reference in pairs:
        times = times_of(said)
        assert len(times) == len(reference), said.utterance.text
        found.append(np.abs(times - reference))
    together = np.concatenate(found)
    known: Times = together[np.isfinite(together).all(1)]
    return known


def figures(error: Times) -> str:
    (start, end), (late_start, late_end) = np.median(error, 0), np.quantile(error, 0.95, axis=0)
    return f"{start:.0f}/{late_start:.0f}, {end:.0f}/{late_end:.0f}"


def table(pairs: list[Pair]) -> str:
    groups: dict[tuple[Layout, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        for name in (pair[0].utterance.set, "all"):
            groups[pair[0].utterance.layout, name].append(pair)
    lines = ["layout     set      words  engine: start, end (median/p95 in ms)  by characters"]
    for layout in LAYOUTS:
        for name in (*SETS, "all"):
            group = groups.get((layout, name))
            if not group:
                continue
            ours, guess = errors(group, engine_times), errors(group, times_by_characters)
            lines.append(f"{layout:<11}{name:<9}{len(ours):>5}  {figures(ours):<39}{figures(guess)}")
    return "\n".join(lines)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_starts_and_ends_are_as_an_aligner_hears_them(pairs: list[Pair], layout: Layout) -> None:
    shown = table(pairs)
    print(shown)
    of_layout = [pair for pair in pairs if pair[0].utterance.layout == layout]
    error = errors(of_layout, engine_times)
    assert np.median(error, 0).max() <= MEDIAN_MS, shown
    assert np.quantile(error, 0.95, axis=0).max().round(1) <= P95_MS, shown
    words = sum(len(reference) for _, reference in of_layout)
    assert words - len(error) <= MOST_UNKNOWN * words


def test_several_voices_and_all_sets_are_compared(pairs: list[Pair]) -> None:
    for layout in LAYOUTS:
        utterances = [said.utterance for said, _ in pairs if said.utterance.layout == layout]
        assert {one.set for one in utterances} == SETS.keys()
        assert len({one.voice for one in utterances}) >= 2
