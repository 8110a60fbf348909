"""Writes advisories.json: asks osv.dev for all faults of the pinned packages. `make refresh-advisories` runs it."""

import datetime
from collections.abc import Iterator
from typing import Any

import httpx
from packaging.version import InvalidVersion, Version

from deploy.advisories.advisories import Advisory, Table, pinned_versions, read_table, write_table
from deploy.pins.pins import constraints

QUERY = "https://api.osv.dev/v1/query"
ECOSYSTEM = "PyPI"


def ranges_of(affected: dict[str, Any]) -> Iterator[str]:
    """Version specifiers of an OSV record's `affected` entry."""
    for versions in affected.get("ranges", ()):
        lower: str | None = None
        for event in versions.get("events", ()) if versions.get("type") == "ECOSYSTEM" else ():
            if "introduced" in event:
                lower = event["introduced"]
            elif lower is not None:
                upper = f"<{event['fixed']}" if "fixed" in event else f"<={event['last_affected']}"
                yield upper if lower == "0" else f">={lower},{upper}"
                lower = None
        if lower is not None:
            yield f">={lower}"
    if not affected.get("ranges"):
        yield from (f"=={version}" for version in affected.get("versions", ()) if _is_version(version))


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def advisories_of(package: str, answer: dict[str, Any]) -> Iterator[Advisory]:
    """The advisories about one package in OSV's answer. Withdrawn ones are left out."""
    for fault in answer.get("vulns", ()):
        if fault.get("withdrawn"):
            continue
        entries = [entry for entry in fault.get("affected", ()) if entry["package"]["name"].lower() == package.lower()]
        ranges = tuple(dict.fromkeys(found for entry in entries for found in ranges_of(entry)))
        if ranges:
            yield Advisory(fault["id"], package, ranges)


def main() -> None:
    found: list[Advisory] = []
    with httpx.Client(timeout=60) as http:
        for package in sorted({name for name, _ in pinned_versions(constraints())}):
            token: dict[str, str] = {}
            while True:
                asked = {"package": {"name": package, "ecosystem": ECOSYSTEM}, **token}
                answer = http.post(QUERY, json=asked).raise_for_status().json()
                found += advisories_of(package, answer)
                if not answer.get("next_page_token"):
                    break
                token = {"page_token": answer["next_page_token"]}
    before = len(read_table().advisories)
    write_table(Table(datetime.datetime.now(datetime.UTC).date().isoformat(), True, tuple(found)))
    print(f"{len(found)} advisories; the table had {before}")


if __name__ == "__main__":
    main()
