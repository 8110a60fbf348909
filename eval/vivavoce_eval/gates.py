"""Limits: what a run must reach, and what no single sentence may have."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from vivavoce_eval.figures import Run, figures_of
from vivavoce_eval.hearing import Row
from vivavoce_eval.judges import SAME_SPEAKER_COSINE


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_wer` and `min_ovrl` None: as near to the baseline as one run comes to another, or the project's goals
    where there is no baseline."""

    max_wer: float | None = None
    min_ovrl: float | None = None


GOAL_WER, GOAL_OVRL = 5.0, 3.1
WORSE_WER = 3.0
"""Two runs of 100 sentences with other seeds differ by one or two points."""
WORSE_OPINION = 0.15
MIN_STOPS = 0.99
F0_RATIO, PACE_RATIO = 0.15, 0.25
MORE_ALIKE = 0.05
"""How much more alike two speakers may be than the teacher's two voices."""
CLOSE_CALL = 0.1
"""Pairs of speakers further below the limit are not worth a line."""

ROW_LIMITS = (
    ("leading_silence_s", "leading silence", " s", 0.3),
    ("trailing_silence_s", "trailing silence", " s", 0.5),
    ("longest_pause_s", "longest pause", " s", 0.8),
    ("clipped", "clipped samples", "", 0.001),
    ("click", "click", "", 30.0),
    ("seam_click", "click at a frame's edge", "", 10.0),
)
"""Field, name, unit, limit. Clean speech of the shipped voice and of its teacher: at most 0.12 s, 0.23 s, 0.47 s, 0,
22 and 8 in 200 utterances."""


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
    """All gates that can be judged: some need a baseline (an earlier run of this voice) or its teacher's run, of which
    the same sentences are taken."""
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
    """Whether the utterance is more like another speaker of the teacher than like its own."""
    return row.likest is not None and row.likest != row.speaker


def faults(row: Row) -> list[str]:
    """What is wrong with one utterance, in words; wrong words are counted elsewhere."""
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
