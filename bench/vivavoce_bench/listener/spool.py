"""Measurements of a run in files, so that a run of any length takes no memory for the requests that are done."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from vivavoce_bench.listener.metrics import Measurement, Stalls
from vivavoce_bench.listener.player import Gap

NAMES = tuple(each.name for each in fields(Measurement))


class Spool:
    """Reads the measurements of one run from the files of its generators, again on each iteration."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    def __iter__(self) -> Iterator[Measurement]:
        for path in self._paths:
            with path.open(encoding="utf-8") as file:
                for line in file:
                    yield _from_row(json.loads(line))


def write_measurement(file: TextIO, measurement: Measurement) -> None:
    """Adds one measurement to a file that Spool reads."""
    row: list[Any] = [getattr(measurement, name) for name in NAMES]
    row[GAPS] = [[gap.at_s, gap.length_s] for gap in measurement.gaps]
    row[BUFFERED] = [[each.count, each.total_ms, each.longest_ms] for each in measurement.buffered]
    file.write(json.dumps(row) + "\n")


GAPS, BUFFERED = NAMES.index("gaps"), NAMES.index("buffered")


def _from_row(row: list[Any]) -> Measurement:
    row[GAPS] = tuple(Gap(*each) for each in row[GAPS])
    row[BUFFERED] = tuple(Stalls(*each) for each in row[BUFFERED])
    return Measurement(*row)
