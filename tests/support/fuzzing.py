"""Number of fuzzing inputs: a few of each kind in a run of the tests, FUZZ_INPUTS in total in `make fuzz`."""

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy

INPUTS = int(os.environ.get("FUZZ_INPUTS", "0"))
FEW = 20
A_ROUND = 1000
"""Inputs of a round. Hypothesis remembers a round's inputs and then forgets them, so that leaks show in the memory."""
BYTES_A_MIB = 2**20


@dataclass
class Tally:
    """Counts for one kind of input. `lost` counts rounds that ended with a failure, which their test reports."""

    inputs: int = 0
    lost: int = 0
    first_mib: float = 0.0
    """Memory of the process after the first round, in MiB."""
    last_mib: float = 0.0


TALLIES: dict[str, Tally] = {}


def fuzz(kind: str, share: float, run: Callable[[settings], None]) -> None:
    """Calls `run` until it has tried this share of all inputs. It counts each input by `count`."""
    tally = TALLIES.setdefault(kind, Tally())
    left = round(share * INPUTS) or FEW
    while left > 0:
        try:
            run(_settings(min(left, A_ROUND)))
        except Unsatisfiable:
            raise
        except BaseException:
            tally.lost += 1
            raise
        left -= A_ROUND
        tally.last_mib = _memory_mib()
        tally.first_mib = tally.first_mib or tally.last_mib


def fuzz_function(kind: str, share: float, check: Callable[..., None], **inputs: SearchStrategy[object]) -> None:
    """Fuzzes a function, which raises only if something is wrong."""

    def attempt(**values: object) -> None:
        count(kind)
        check(**values)

    fuzz(kind, share, lambda amount: amount(given(**inputs)(attempt))())


def count(kind: str) -> None:
    TALLIES[kind].inputs += 1


def table() -> str:
    """Table of the tried inputs, in Markdown."""
    lines = ["| input | tried | lost | memory after the first round, and the last |", "|---|---|---|---|"]
    for kind, tally in TALLIES.items():
        memory = f"{tally.first_mib:.0f}, {tally.last_mib:.0f} MiB"
        lines.append(f"| {kind} | {tally.inputs} | {tally.lost} | {memory} |")
    tried, lost = (sum(getattr(tally, name) for tally in TALLIES.values()) for name in ("inputs", "lost"))
    lines.append(f"| all | {tried} | {lost} | |")
    return "\n".join(lines)


def _settings(examples: int) -> settings:
    return settings(
        # Without FUZZ_INPUTS the inputs are always the same, so that failures repeat.
        max_examples=examples,
        derandomize=not INPUTS,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def _memory_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / BYTES_A_MIB
