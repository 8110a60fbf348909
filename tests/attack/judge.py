"""Bounds that a server must keep under attack, and the table of an attack.

First audio is judged by the median over several utterances of one kind of listener, against the median of the same
kind in an undisturbed run, or LEAST_BASELINE_S if that is longer: one slow moment of a busy machine breaks no bound.
The event loop's delays are judged by the upper edges of their buckets in the server's metric. What a client sends again
and again delays the loop again and again. A machine that has other work delays it too: FORGIVEN times for any length
below the second bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

MOST_RATIO = 3.0
LEAST_BASELINE_S = 0.1
MORE_MIB = 384.0
"""Most MiB that a process may hold above the most of the undisturbed run; all of a process that is new."""
FORGIVEN = 2
MOST_LAG_S, MOST_FORGIVEN_LAG_S = 0.5, 2.5
"""Longest delay of the event loop. The product's own bound is 0.05 s; a machine that has other work
delays any process by more."""
TRY_LATER = frozenset({"503", "507"})
FAULTS = frozenset({"ws 1011", "never answered", "the attacker failed"})
"""Answers that are faults. A lost connection (1006) is none: the attacker may have cut it."""


@dataclass(frozen=True)
class Undisturbed:
    """The baseline: medians of first audio in seconds by listener, most MiB by process."""

    first_audio_s: Mapping[str, float]
    most_mib: Mapping[int, float]


@dataclass(frozen=True)
class Attack:
    """All that was measured while one hostile input was sent."""

    name: str
    first_audio_s: Mapping[str, Sequence[float]]
    most_mib: Mapping[int, float]
    answers: Mapping[str, int]
    lags_s: Sequence[float] = ()
    """The largest delays of the event loop, the largest first. Empty if they are not known."""
    slowest_health_s: float = 0.0
    restarts: float = 0.0
    faults: Sequence[str] = field(default_factory=tuple)
    """Losses of the listeners, and findings of the watch."""


def ratios(attack: Attack, undisturbed: Undisturbed) -> dict[str, float]:
    """Median first audio of each listener, as a multiple of the undisturbed one's. Infinite for one that heard none."""
    return {
        name: median(times) / max(undisturbed.first_audio_s[name], LEAST_BASELINE_S) if times else float("inf")
        for name, times in attack.first_audio_s.items()
    }


def more_mib(attack: Attack, undisturbed: Undisturbed) -> float:
    """The largest growth of a process, in MiB."""
    return max((held - undisturbed.most_mib.get(pid, 0.0) for pid, held in attack.most_mib.items()), default=0.0)


def broken(attack: Attack, undisturbed: Undisturbed) -> list[str]:
    """The bounds that an attack broke, in words."""
    found = [
        f"first audio of the {name} took {ratio:.1f} times as long"
        for name, ratio in ratios(attack, undisturbed).items()
        if ratio > MOST_RATIO
    ]
    if (grown := more_mib(attack, undisturbed)) > MORE_MIB:
        found.append(f"a process held {grown:.0f} MiB more")
    late = [lag_s for lag_s in attack.lags_s if lag_s > MOST_LAG_S]
    if len(late) > FORGIVEN or any(lag_s > MOST_FORGIVEN_LAG_S for lag_s in late):
        found.append(f"the event loop was late by up to {', '.join(f'{lag_s:g}' for lag_s in late)} s")
    if attack.restarts:
        found.append(f"the engine was restarted {attack.restarts:.0f} times")
    found += faults_of_answers(attack.answers)
    return [f"{attack.name}: {fault}" for fault in (*found, *attack.faults)]


def faults_of_answers(answers: Mapping[str, int]) -> list[str]:
    """Answers that no attacker should get, in words."""
    return [
        f"{count} times the answer {answer}"
        for answer, count in sorted(answers.items())
        if (answer.startswith("5") and answer not in TRY_LATER) or answer in FAULTS
    ]


HEADINGS = ("hostile input", "first audio", "loop lag", "/health", "memory", "restarts", "answers", "bounds")


def row(attack: Attack, undisturbed: Undisturbed) -> str:
    """The line of an attack in the table, in Markdown."""
    lag = f"≤ {attack.lags_s[0]:g} s" if attack.lags_s else "?"
    answers = ", ".join(f"{count} of {answer}" for answer, count in sorted(attack.answers.items()))
    cells = (
        attack.name,
        f"{max(ratios(attack, undisturbed).values(), default=0.0):.1f} x",
        lag,
        f"{attack.slowest_health_s:.2f} s",
        f"+{more_mib(attack, undisturbed):.0f} MiB",
        f"{attack.restarts:.0f}",
        answers,
        "BROKEN" if broken(attack, undisturbed) else "kept",
    )
    return f"| {' | '.join(cells)} |"


def head() -> str:
    return f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}"
