"""Chapters of a book in Markdown. Code, raw HTML and pictures are left out."""

import re
from collections.abc import Iterable

from vivavoce_client.batch.prose import Block, Chapter, chapter_level

FRONT_MATTER = re.compile(r"\A---\n.*?\n(?:---|\.\.\.)\n", re.DOTALL)


def markdown_chapters(text: str, name: str, depth: int) -> list[Chapter]:
    """Chapters, which begin at headings. `name` is the title of a text before the first one."""
    blocks = list(_blocks(text))
    level = chapter_level([block.heading_level for block in blocks if block.heading_level is not None], depth)
    chapters: list[Chapter] = []
    for block in blocks:
        if not chapters or (block.heading_level is not None and block.heading_level <= level):
            chapters.append(Chapter(name if block.heading_level is None else block.text))
        chapters[-1].blocks.append(block)
    return chapters


def _blocks(text: str) -> Iterable[Block]:
    """Raises ModuleNotFoundError without the extra `batch`."""
    from markdown_it import MarkdownIt

    level: int | None = None
    for token in MarkdownIt("commonmark").enable("table").parse(FRONT_MATTER.sub("", text)):
        if token.type == "heading_open":
            level = int(token.tag.removeprefix("h"))
        elif token.type == "heading_close":
            level = None
        elif token.type == "inline":
            parts = (
                child.content if child.type in ("text", "code_inline") else " " * child.type.endswith("break")
                for child in token.children or ()
            )
            yield Block("".join(parts), level)
