"""The audit of pinned dependencies: a known fault of a pin is found, and an exception needs a reason."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy.advisories.advisories import (
    EXCEPTIONS,
    Advisory,
    Table,
    findings,
    pinned_versions,
    read_exceptions,
    read_table,
    write_table,
)
from deploy.advisories.audit import of_npm, of_python
from deploy.advisories.refresh import advisories_of
from deploy.pins.pins import constraints

FAULT = Advisory("GHSA-1", "Some_Package", (">=2,<2.0.7", "<1.26.18"))
TABLE = Table("2026-01-31", False, (FAULT,))


@pytest.mark.parametrize(
    ("version", "affected"),
    [("1.26.17", True), ("1.26.18", False), ("2.0.6", True), ("2.0.7", False), ("2.0rc1", False), ("2.0.7rc1", False)],
)
def test_a_version_is_affected_within_one_of_the_ranges(version: str, affected: bool) -> None:
    assert FAULT.affects(version) == affected


def test_a_planted_fault_is_found() -> None:
    pins = pinned_versions([Requirement("some-package==2.0.1"), Requirement("other==2.0.1")])
    [found] = findings(pins, TABLE, {})
    assert found == "some-package 2.0.1: GHSA-1, affected are >=2,<2.0.7 or <1.26.18"
    assert findings(pins, TABLE, {"GHSA-1": "only on Windows"}) == []


def test_an_exception_that_excuses_nothing_is_found() -> None:
    assert findings(set(), TABLE, {"GHSA-1": "only on Windows"}) == ["exceptions.toml: no pin is affected by GHSA-1"]


def test_an_exception_needs_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "exceptions.toml"
    file.write_text('GHSA-1 = " "\n', encoding="utf-8")
    with pytest.raises(ValueError, match="GHSA-1 has no reason"):
        read_exceptions(file)


def test_no_pin_has_a_fault_that_the_table_knows() -> None:
    assert findings(pinned_versions(constraints()), read_table(), read_exceptions(EXCEPTIONS)) == []


def test_the_table_is_of_packages_that_are_pinned() -> None:
    packages = {name for name, _ in pinned_versions(constraints())}
    assert {advisory.package for advisory in read_table().advisories} <= packages


def test_a_table_that_was_written_is_read(tmp_path: Path) -> None:
    write_table(TABLE, tmp_path / "table.json")
    assert read_table(tmp_path / "table.json") == TABLE


def test_an_answer_of_osv() -> None:
    events = [{"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "2.0"}, {"last_affected": "2.3"}]
    ranges = [{"type": "ECOSYSTEM", "events": events}, {"type": "GIT", "events": [{"introduced": "0"}]}]
    ours = {"package": {"name": "Some-Package"}, "ranges": ranges}
    other = {"package": {"name": "other"}, "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}]}
    listed = {"package": {"name": "some-package"}, "versions": ["3.1", "not a version"]}
    open_ended = {
        "package": {"name": "some-package"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "4"}]}],
    }
    answer = {
        "vulns": [
            {"id": "A", "affected": [ours, other]},
            {"id": "B", "affected": [listed, open_ended]},
            {"id": "C", "affected": [ours], "withdrawn": "2026-01-01T00:00:00Z"},
            {"id": "D", "affected": [other]},
        ]
    }
    assert list(advisories_of("some-package", answer)) == [
        Advisory("A", "some-package", ("<1.2", ">=2.0,<=2.3")),
        Advisory("B", "some-package", ("==3.1", ">=4")),
    ]


def test_a_report_of_pip_audit() -> None:
    fault = {"id": "PYSEC-1", "fix_versions": ["1.1"], "aliases": ["CVE-1"]}
    skipped = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
    report = {"dependencies": [{"name": "a", "version": "1.0", "vulns": [fault]}, skipped]}
    assert of_python(report, {}) == (1, ["a 1.0: PYSEC-1, mended in ['1.1']"])
    assert of_python(report, {"CVE-1": "only on Windows"}) == (1, [])
    assert of_python(None, {}) == (0, [])


def test_a_report_of_npm() -> None:
    assert of_npm({"vulnerabilities": {"a": {"severity": "high", "range": "<2"}}}) == ["npm: a, high, <2"]
    assert of_npm({"vulnerabilities": {}}) == []
    assert of_npm({"message": "405 Method Not Allowed"}) is None
    assert of_npm(None) is None
