"""Findings as a table, JSON, JUnit and a badge; the list of checks as Markdown."""

import json
from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree as xml
from xml.sax.saxutils import escape

from vivavoce_conformance.rules import LEVELS, Check, Finding, Group, Level, Outcome
from vivavoce_conformance.target import Target

MARKS: dict[Outcome, str] = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}
GREEN, YELLOW, RED = "#2f7d32", "#9a6b00", "#b3261e"
LABEL = "speech API"
CHAR_PX = 6.6
PAD_PX = 7


def line_of(finding: Finding) -> str:
    """One line of the table."""
    check = finding.check
    text = f"{check.title}: {finding.reason}" if finding.reason else check.title
    return f"{MARKS[finding.outcome]:8}{check.level:10}{check.id:34}{text}"


def count(findings: Sequence[Finding], level: Level, outcome: Outcome | None = None) -> int:
    return sum(one.check.level == level and outcome in (None, one.outcome) for one in findings)


def summary(findings: Sequence[Finding]) -> str:
    """The last line: how many of each level passed."""
    parts = []
    for level in LEVELS:
        outcomes = Counter(one.outcome for one in findings if one.check.level == level)
        parts.append(f"{level} {outcomes['passed']} ok, {outcomes['failed']} failed, {outcomes['skipped']} skipped")
    return "; ".join(parts)


def as_json(target: Target, server: str, findings: Sequence[Finding]) -> str:
    """The run as one JSON object."""
    checks = [
        {
            "id": one.check.id,
            "level": one.check.level,
            "title": one.check.title,
            "source": one.check.source,
            "outcome": one.outcome,
            "reason": one.reason,
            "seconds": round(one.seconds, 3),
        }
        for one in findings
    ]
    counts = {
        level: {outcome: count(findings, level, outcome) for outcome in ("passed", "failed", "skipped")}
        for level in LEVELS
    }
    about = {"url": target.base, "model": target.model, "voice": target.voice, "server": server}
    return json.dumps({**about, "counts": counts, "checks": checks}, indent=2)


def as_junit(findings: Sequence[Finding], strict: bool) -> str:
    """The run as JUnit's XML. Broken rules that do not fail the run are skipped tests, with their reason."""
    failures = sum(one.fails(strict) for one in findings)
    passed = sum(one.outcome == "passed" for one in findings)
    suite = xml.Element(
        "testsuite",
        name="vivavoce conformance",
        tests=str(len(findings)),
        failures=str(failures),
        errors="0",
        skipped=str(len(findings) - failures - passed),
        time=f"{sum(one.seconds for one in findings):.3f}",
    )
    for one in findings:
        case = xml.SubElement(
            suite,
            "testcase",
            classname=f"conformance.{one.check.group}",
            name=f"{one.check.name}: {one.check.title}",
            time=f"{one.seconds:.3f}",
        )
        if one.fails(strict):
            failure = xml.SubElement(case, "failure", message=one.reason, type=one.check.level)
            failure.text = f"{one.reason}\nRule: {one.check.source}"
        elif one.outcome != "passed":
            told = f"{one.check.level}, failed: {one.reason}" if one.outcome == "failed" else one.reason
            xml.SubElement(case, "skipped", message=told)
    return xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def as_badge(findings: Sequence[Finding]) -> str:
    """A small SVG: how many musts hold. Green if all shoulds hold too, yellow if they do not, red without all musts."""
    asked = [one for one in findings if one.check.level == "must" and one.outcome != "skipped"]
    good = sum(one.outcome == "passed" for one in asked)
    colour = RED if good < len(asked) or not asked else YELLOW if count(findings, "should", "failed") else GREEN
    value = f"{good} of {len(asked)}"
    left, right = (round(len(text) * CHAR_PX + 2 * PAD_PX) for text in (LABEL, value))
    told = escape(f"{LABEL}: {value} rules kept")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{told}">'
        f"<title>{told}</title>"
        f'<clipPath id="c"><rect width="{left + right}" height="20" rx="4"/></clipPath>'
        f'<g clip-path="url(#c)"><path fill="#444" d="M0 0h{left}v20H0z"/>'
        f'<path fill="{colour}" d="M{left} 0h{right}v20H{left}z"/></g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2}" y="14">{escape(LABEL)}</text>'
        f'<text x="{left + right / 2}" y="14">{escape(value)}</text></g></svg>\n'
    )


def as_markdown(groups: Sequence[Group]) -> str:
    """Tables of the checks of each group."""
    blocks = []
    for group in groups:
        rows = [f"### {group.name}: {group.about}", "", "| check | level | rule | source |", "|---|---|---|---|"]
        for check in group.checks:
            title, source = (text.replace("|", "\\|") for text in (check.title, check.source))
            rows.append(f"| `{check.name}` | {check.level} | {title} | {source} |")
        blocks.append("\n".join(rows))
    return "\n\n".join(blocks) + "\n"


def as_list(checks: Sequence[Check]) -> str:
    return "".join(f"{check.level:10}{check.id:34}{check.title} ({check.source})\n" for check in checks)
