"""Gates: runs that pass and runs that fail."""

from dataclasses import replace

import numpy as np
import pytest
from vivavoce_eval.figures import Run, Voice
from vivavoce_eval.gates import Limits, faults, gates
from vivavoce_eval.hearing import Row

from tests.support.sounds import row


def voice(f0_hz: float, direction: int, alike: float = 0.0) -> Voice:
    """A speaker with a mean embedding of its own; `alike` leans it towards the first one's."""
    embedding = np.zeros(4, np.float32)
    embedding[direction] = 1 - alike
    embedding[0] += alike
    return Voice(f0_hz, 10, embedding * np.float32(0.95 / np.linalg.norm(embedding)))


VOICES = {"heart": voice(190, 0), "michael": voice(110, 1)}
ROWS = tuple(
    row(number=number, text=f"Sentence number {number}.", speaker=name, likest=name)
    for number, name in enumerate(("heart", "michael") * 5)
)
CLEAN = Run({}, ROWS, VOICES)
NONE = Limits()


def failed(run: Run, baseline: Run | None = CLEAN, teacher: Run | None = CLEAN, limits: Limits = NONE) -> list[str]:
    return [gate.name for gate in gates(run, baseline, teacher, limits) if not gate.passed]


def with_row(**changes: object) -> Run:
    """The clean run with a fault in its fourth sentence."""
    rows = list(ROWS)
    rows[3] = replace(rows[3], **changes)  # type: ignore[arg-type]
    return replace(CLEAN, rows=tuple(rows))


def test_a_clean_run_passes() -> None:
    assert failed(CLEAN) == []
    assert failed(CLEAN, baseline=None, teacher=None) == []


@pytest.mark.parametrize(
    ("changes", "gate", "fault"),
    [
        ({"leading_silence_s": 0.4}, "leading silence", "leading silence 0.4 s"),
        ({"trailing_silence_s": 1.2}, "trailing silence", "trailing silence 1.2 s"),
        ({"longest_pause_s": 1.0}, "longest pause", "longest pause 1 s"),
        ({"clipped": 0.02}, "clipped samples", "clipped samples 0.02"),
        ({"click": 50.0}, "click", "click 50"),
        ({"seam_click": 20.0}, "click at a frame's edge", "click at a frame's edge 20"),
        ({"stopped": False}, "stops by itself", "did not stop"),
        ({"likest": "heart"}, "utterances in another's voice", "sounds like heart"),
    ],
)
def test_one_bad_sentence_fails(changes: dict[str, object], gate: str, fault: str) -> None:
    run = with_row(**changes)
    assert failed(run) == [gate]
    assert [faults(found) for found in run.rows] == [[], [], [], [fault], *[[]] * 6]


def all_with(**changes: object) -> Run:
    return replace(CLEAN, rows=tuple(replace(found, **changes) for found in ROWS))  # type: ignore[arg-type]


def test_opinions_are_held_against_the_baseline() -> None:
    assert failed(all_with(ovrl=3.0)) == ["DNSMOS OVRL"]
    assert failed(all_with(p808=3.5)) == ["DNSMOS P808"]
    assert failed(with_row(wrong_words=2)) == ["word error rate"]
    poor = all_with(ovrl=2.9, wrong_words=1)
    assert failed(poor, baseline=poor) == []


def test_without_a_baseline_the_goals_count() -> None:
    assert failed(all_with(ovrl=3.05), baseline=None) == ["DNSMOS OVRL"]
    assert failed(with_row(wrong_words=3), baseline=None) == ["word error rate"]


def test_limits_that_are_given_come_first() -> None:
    assert failed(with_row(wrong_words=2), limits=Limits(max_wer=6)) == []
    assert failed(CLEAN, limits=Limits(min_ovrl=3.5)) == ["DNSMOS OVRL"]


def test_only_the_same_sentences_of_the_baseline_count() -> None:
    others: tuple[Row, ...] = tuple(
        row(text=f"Other sentence {number}.", wrong_words=4, ovrl=1.0) for number in range(10)
    )
    assert failed(CLEAN, baseline=replace(CLEAN, rows=ROWS + others)) == []
    assert failed(all_with(ovrl=3.15), baseline=replace(CLEAN, rows=ROWS[:1] + others)) == []


def test_pitch_and_pace_are_held_against_the_teacher() -> None:
    high = replace(CLEAN, voices={"heart": voice(220, 0), "michael": voice(110, 1)})
    assert failed(high) == ["median F0 of heart, off the teacher's"]
    assert failed(all_with(duration_s=2.8)) == ["time a character, off the teacher's"]
    assert failed(all_with(duration_s=1.4)) == ["time a character, off the teacher's"]


def test_speakers_must_be_distinct_and_like_themselves() -> None:
    alike = replace(CLEAN, voices={"heart": voice(190, 0), "michael": voice(110, 1, alike=0.9)})
    assert failed(alike) == ["heart and michael, mean cosine"]
    assert failed(alike, teacher=alike) == []  # the teacher's voices are no further apart
    vague = Voice(110.0, 10, np.array([0, 0.8, 0, 0], np.float32))
    assert failed(replace(CLEAN, voices={"heart": voice(190, 0), "michael": vague})) == [
        "same speaker, lowest mean cosine"
    ]
