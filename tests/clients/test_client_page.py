"""The page of clients says what `make test-clients` runs: pinned versions, and code that a session reads."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
REAL = ROOT / "tests/clients/real"
PAGE = ROOT / "docs/clients.md"
SCRIPTS = [path for path in sorted(REAL.glob("*/*")) if path.suffix in (".py", ".mjs")]


def pins() -> dict[str, str]:
    """Package → version, of all environments."""
    found: dict[str, str] = {}
    for requirements in sorted(REAL.glob("*/requirements.txt")):
        lines = requirements.read_text(encoding="utf-8").splitlines()
        found |= dict(re.sub(r"\[.*?\]", "", line).split("==") for line in lines if not line.startswith("#"))
    for package in sorted(REAL.glob("*/package.json")):
        found |= json.loads(package.read_text(encoding="utf-8"))["dependencies"]
    return found


def rows() -> set[tuple[str, str]]:
    """Package and version of each row of the page's table."""
    table = (
        PAGE.read_text(encoding="utf-8")
        .partition("## Tested clients")[2]
        .partition("| client |")[2]
        .partition("\n\n")[0]
    )
    lines = [line.split("|") for line in table.splitlines() if line.startswith("| ")]
    packages = [package.split() for line in lines for package in line[2].split(",")]
    return {(name, version) for name, version in packages}


def test_versions_are_the_pinned_ones() -> None:
    assert rows()
    assert rows() <= pins().items()


def test_every_block_with_a_name_is_run_by_a_session() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
    names = re.findall(r"^```\w+ (\w+/\w+)$", pages, re.MULTILINE)
    scripts = "".join(path.read_text(encoding="utf-8") for path in SCRIPTS)
    assert names
    assert len(set(names)) == len(names)
    assert [name for name in names if f'"{name}"' not in scripts] == []
