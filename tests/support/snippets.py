"""Code in Markdown: fenced blocks, and indented ones whose first word is a program's or begins a statement.

A comment `<!-- not run: reason -->` right above a block keeps it from being run.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
PROGRAMS = ("cd", "curl", "docker", "haproxy", "helm", "make", "node", "pip", "python", "ray", "sed", "vivavoce", "$")
LANGUAGES: dict[str, "Kind"] = {
    "bash": "sh",
    "console": "sh",
    "sh": "sh",
    "shell": "sh",
    "python": "python",
    "js": "js",
    "javascript": "js",
    "json": "json",
}
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n+)?"
    r"(?:^```(?P<info>[^\n]*)\n(?P<fenced>.*?)^```$|(?<=\n\n)(?P<indented>(?:^    [^\n]+\n|^\n(?=    ))+))",
    re.MULTILINE | re.DOTALL,
)
TITLE = re.compile(r'title="([^"]+)"')
SETTING = re.compile(r"[A-Z_]+=\S* (?:[A-Z_]+=\S* )*vivavoce\b")
Kind = Literal["sh", "python", "js", "json", "text"]


@dataclass(frozen=True)
class Snippet:
    """A block of a page. `title` is the file in which a reader would keep it. `reason` says why it is not run."""

    page: str
    line: int
    kind: Kind
    code: str
    title: str | None
    reason: str | None

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def site_pages() -> list[str]:
    """The pages of the docs site that are files, by their paths in the repository."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    found = re.findall(r"'([^']+\.md)'", repr(nav))
    return [page for page in found if (ROOT / page).exists()]


def snippets_of(page: str) -> list[Snippet]:
    """The blocks of a page, in order. Indented blocks that are no code, such as diagrams, have the kind text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [_snippet(page, text, match) for match in BLOCK.finditer(text)]


def _snippet(page: str, text: str, match: re.Match[str]) -> Snippet:
    line = text.count("\n", 0, match.start()) + 1
    info = match["info"]
    if info is not None:
        title = TITLE.search(info)
        kind = LANGUAGES.get(info.split()[0] if info.split() else "", "text")
        return Snippet(page, line, kind, match["fenced"], title[1] if title else None, match["reason"])
    code = re.sub(r"^    ", "", match["indented"], flags=re.MULTILINE)
    return Snippet(page, line, _kind_of(code), code, None, match["reason"])


def _kind_of(code: str) -> Kind:
    if code.split(maxsplit=1)[0] in PROGRAMS or SETTING.match(code):
        return "sh"
    if re.match(r"(?:from|import|async|with) ", code):
        return "python"
    return "json" if re.match(r'[{\["]', code) else "text"
