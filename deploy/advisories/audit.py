"""Known faults of pinned dependencies: `make audit` runs it, and fails if it finds one.

It asks pip-audit about constraints.txt and npm about each package-lock.json, where their services answer, and always
compares constraints.txt with advisories.json. It tells what could not be asked.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.advisories.advisories import findings, pinned_versions, read_exceptions, read_table
from deploy.pins.pins import ROOT, constraints

ASK_S = 600.0


def ask(command: list[str], folder: Path = ROOT) -> dict[str, Any] | None:
    """The JSON that a program prints, whatever its status; None if it prints none."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=ASK_S, check=False)
        answer = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return answer if isinstance(answer, dict) else None


def of_python(report: dict[str, Any] | None, exceptions: dict[str, str]) -> tuple[int, list[str]]:
    """Number of pins that pip-audit's report is about, and what it found."""
    packages = [] if report is None else report.get("dependencies", [])
    asked = [package for package in packages if "vulns" in package]
    found = [
        f"{package['name']} {package['version']}: {fault['id']}, mended in {fault['fix_versions']}"
        for package in asked
        for fault in package["vulns"]
        if not exceptions.keys() & {fault["id"], *fault.get("aliases", ())}
    ]
    return len(asked), found


def of_npm(report: dict[str, Any] | None) -> list[str] | None:
    """Findings of npm's report; None if its service did not answer."""
    if report is None or "vulnerabilities" not in report:
        return None
    return [f"npm: {name}, {fault['severity']}, {fault['range']}" for name, fault in report["vulnerabilities"].items()]


def main(programs: Sequence[str] = ()) -> int:
    """`programs` is pip-audit's, or empty where it could not be installed."""
    exceptions, table, pins = read_exceptions(), read_table(), pinned_versions(constraints())
    options = ("--no-deps", "--disable-pip", "--progress-spinner", "off", "-f", "json", "-r", "constraints.txt")
    asked, found = of_python(ask([*programs, *options]) if programs else None, exceptions)
    print(f"{asked} of {len(pins)} pins were asked about at PyPI's or OSV's service")
    found += findings(pins, table, exceptions)
    table_kind = "all advisories" if table.complete else "some advisories, and not all that there are"
    print(f"{len(pins)} pins were compared with {len(table.advisories)}: {table_kind}, up to {table.compiled}")
    for lock in sorted(ROOT.glob("tests/**/package-lock.json")):
        if "node_modules" in lock.parts:
            continue
        npm = shutil.which("npm")
        told = of_npm(ask([npm, "audit", "--package-lock-only", "--json"], lock.parent)) if npm else None
        print(f"{lock.relative_to(ROOT)}: {'npm was not asked' if told is None else 'npm was asked'}")
        found += told or []
    for line in found:
        print("FOUND", line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
