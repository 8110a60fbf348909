"""Gates: limits for the figures of a run and for each sentence."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from vivavoce_eval.figures import Run, figures_of
from vivavoce_eval.hearing import Row
from vivavoce_eval.judges import SAME_SPEAKER_COSINE


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a run.

    If `max_wer` and `min_ovrl` are None, they lie as far from the baseline as one run may lie from another. Without a
    baseline they are the project's goals.
    """

    max_wer: float | None = None
    min_ovrl: float | None = None


GOAL_WER, GOAL_OVRL = 5.0, 3.1
WORSE_WER = 3.0
"""Allowed increase of the word error rate, in points. Two runs of 100 sentences with other seeds differ by 1 or 2."""
WORSE_OPINION = 0.15
MIN_STOPS = 0.99
F0_RATIO, PACE_RATIO = 0.15, 0.25
MORE_ALIKE = 0.05
"""Allowed excess of two speakers' cosine over that of the teacher's two voices."""
CLOSE_CALL = 0.1
"""Distance below the limit within which a pair of speakers is reported."""

ROW_LIMITS = (
    ("leading_silence_s", "leading silence", " s", 0.3),
    ("trailing_silence_s", "trailing silence", " s", 0.5),
    ("longest_pause_s", "longest pause", " s", 0.8),
    ("clipped", "clipped samples", "", 0.001),
    ("click", "click", "", 30.0),
    ("seam_click", "click at a frame's edge", "", 10.0),
)
"""Field, name, unit, limit. Clean speech stays lower: 200 utterances of the shipped voice and of its teacher reach at
most 0.12 s, 0.23 s, 0.47 s, 0, 22 and 8."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A figure with its limit. `bound` is `<=` or `>=`."""

    name: str
    value: float
    bound: str
    limit: float
    unit: str = ""

    @property
    def passed(self) -> bool:
        return self.value <= self.limit if self.bound == "<=" else self.value >= self.limit

    def __str__(self) -> str:
        verdict = "ok  " if self.passed else "FAIL"
        return f"{verdict}  {self.name}: {self.value:.3g}{self.unit} {self.bound} {self.limit:.3g}{self.unit}"


def gates(run: Run, baseline: Run | None, teacher: Run | None, limits: Limits) -> list[Gate]:
    """Judges all gates that can be judged.

    Some need a baseline, which is an earlier run of this voice, or the run of its teacher. Of those runs, only the same
    sentences count.
    """
    return [
        *_opinions(run, baseline, limits),
        Gate("stops by itself", 100 * figures_of(run.rows).stops, ">=", 100 * MIN_STOPS, " %"),
        *(
            Gate(name, max(getattr(row, field) for row in run.rows), "<=", limit, unit)
            for field, name, unit, limit in ROW_LIMITS
        ),
        *_speakers(run, teacher),
        *(_as_teacher(run, teacher) if teacher else ()),
    ]


def _opinions(run: Run, baseline: Run | None, limits: Limits) -> Iterator[Gate]:
    now = figures_of(run.rows)
    before = baseline.rows_shared_with(run.rows) if baseline else ()
    max_wer, min_ovrl = GOAL_WER, GOAL_OVRL
    if before:
        then = figures_of(before)
        max_wer, min_ovrl = then.word_error_rate + WORSE_WER, then.ovrl - WORSE_OPINION
        yield Gate("DNSMOS P808", now.p808, ">=", then.p808 - WORSE_OPINION)
    yield Gate(
        "word error rate", now.word_error_rate, "<=", max_wer if limits.max_wer is None else limits.max_wer, " %"
    )
    yield Gate("DNSMOS OVRL", now.ovrl, ">=", min_ovrl if limits.min_ovrl is None else limits.min_ovrl)


def _speakers(run: Run, teacher: Run | None) -> Iterator[Gate]:
    same = [voice.same for voice in run.voices.values() if voice.same is not None]
    if same:
        yield Gate("same speaker, lowest mean cosine", min(same), ">=", SAME_SPEAKER_COSINE)
    for one, other in combinations(run.voices, 2):
        cosine, limit = run.voices[one].different(run.voices[other]), SAME_SPEAKER_COSINE
        if teacher and {one, other} <= teacher.voices.keys():
            limit = max(limit, teacher.voices[one].different(teacher.voices[other]) + MORE_ALIKE)
        if cosine > limit - CLOSE_CALL:
            yield Gate(f"{one} and {other}, mean cosine", cosine, "<=", limit)


def _as_teacher(run: Run, teacher: Run) -> Iterator[Gate]:
    expected = teacher.rows_shared_with(run.rows)
    if expected:
        pace = figures_of(run.rows).s_per_character / figures_of(expected).s_per_character
        yield Gate("time a character, off the teacher's", 100 * abs(pace - 1), "<=", 100 * PACE_RATIO, " %")
    for name, voice in run.voices.items():
        own = teacher.voices.get(name)
        if own and own.f0_hz and voice.f0_hz:
            off = 100 * abs(voice.f0_hz / own.f0_hz - 1)
            yield Gate(f"median F0 of {name}, off the teacher's", off, "<=", 100 * F0_RATIO, " %")
    known = [row for row in run.rows if row.likest]
    if known:
        yield Gate("utterances in another's voice", sum(map(in_wrong_voice, known)), "<=", 0)


def in_wrong_voice(row: Row) -> bool:
    """True if the utterance is more like another speaker of the reference than like its own."""
    return row.likest is not None and row.likest != row.speaker


def faults(row: Row) -> list[str]:
    """Describes the faults of one utterance in words. Wrong words are counted elsewhere."""
    found = [
        f"{name} {getattr(row, field):.3g}{unit}"
        for field, name, unit, limit in ROW_LIMITS
        if getattr(row, field) > limit
    ]
    if not row.stopped:
        found.append("did not stop")
    if in_wrong_voice(row):
        found.append(f"sounds like {row.likest}")
    return found
