"""Owns the table of known faults of pinned packages, and its comparison with constraints.txt.

The table is no service: it is as old as its date. `make audit` asks services first; refresh.py renews the table from
osv.dev.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

TABLE = Path(__file__).with_name("advisories.json")
EXCEPTIONS = Path(__file__).with_name("exceptions.toml")
SOURCES = ("https://osv.dev", "https://github.com/pypa/advisory-database", "https://github.com/advisories")


@dataclass(frozen=True)
class Advisory:
    """One published fault. `affected` are version specifiers, any of which makes a version affected."""

    id: str
    package: str
    affected: tuple[str, ...]

    def affects(self, version: str) -> bool:
        return any(SpecifierSet(ranges).contains(version, prereleases=True) for ranges in self.affected)


@dataclass(frozen=True)
class Table:
    """Known faults; `compiled` is the day, as YYYY-MM-DD, up to which they were gathered.

    `complete` is true if a service was asked about every pinned package; otherwise reports of other audits were read.
    """

    compiled: str
    complete: bool
    advisories: tuple[Advisory, ...]


def read_table(path: Path = TABLE) -> Table:
    held = json.loads(path.read_text(encoding="utf-8"))
    rows = (Advisory(row["id"], row["package"], tuple(row["affected"])) for row in held["advisories"])
    return Table(held["compiled"], held["complete"], tuple(rows))


def write_table(table: Table, path: Path = TABLE) -> None:
    rows = sorted(table.advisories, key=lambda row: (row.package, row.id))
    held = {
        "compiled": table.compiled,
        "complete": table.complete,
        "sources": SOURCES,
        "advisories": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


def read_exceptions(path: Path = EXCEPTIONS) -> dict[str, str]:
    """Advisory → the reason why it does not matter here.

    Raises:
        ValueError: an exception has no reason.
    """
    reasons = tomllib.loads(path.read_text(encoding="utf-8"))
    for name, reason in reasons.items():
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"{path.name}: {name} has no reason")
    return reasons


def pinned_versions(lines: Iterable[Requirement]) -> set[tuple[str, str]]:
    """Name and version of each pin. A package may have several, for several Pythons."""
    return {(canonicalize_name(line.name), spec.version) for line in lines for spec in line.specifier}


def findings(pins: set[tuple[str, str]], table: Table, exceptions: Mapping[str, str]) -> list[str]:
    """A line for each pin that is affected, and for each exception that excuses nothing."""
    hits = [
        (advisory.id, f"{package} {version}: {advisory.id}, affected are {' or '.join(advisory.affected)}")
        for package, version in sorted(pins)
        for advisory in table.advisories
        if canonicalize_name(advisory.package) == package and advisory.affects(version)
    ]
    idle = exceptions.keys() - {advisory_id for advisory_id, _ in hits}
    found = [line for advisory_id, line in hits if advisory_id not in exceptions]
    return found + [f"{EXCEPTIONS.name}: no pin is affected by {advisory_id}" for advisory_id in sorted(idle)]
