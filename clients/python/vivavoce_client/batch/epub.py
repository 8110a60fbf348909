"""Chapters of a book in EPUB 2 or 3.

A book may come from anybody. Only its container, its package, its table of contents and the documents of its spine are
read, each and all up to a limit. Declared entities are not expanded. Names in the book lead to files of the book
alone, and nothing is written under them.
"""

import html.entities
import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from vivavoce_client.arguments import shown
from vivavoce_client.batch.prose import Block, Chapter, chapter_level
from vivavoce_client.input_files import BadFile

CONTAINER = "META-INF/container.xml"
ENCRYPTION = "META-INF/encryption.xml"
FILE_BYTES = 8 << 20
"""Most bytes of a file of the book, unpacked."""
BOOK_BYTES = 64 << 20
"""Most bytes of all files that are read. The longest novels have 10 MB of text."""
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Kinds of packing that EPUB has."""
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)
BLOCKS = re.compile(
    "address|article|aside|blockquote|body|caption|center|dd|details|div|dl|dt|fieldset|figcaption|figure|footer|form"
    "|h[1-6]|header|hr|li|main|nav|ol|p|pre|section|summary|table|tbody|tfoot|thead|tr|ul"
)
"""Elements in front of and behind which a paragraph ends."""
UNSPOKEN = re.compile("audio|head|iframe|img|math|nav|object|rp|rt|script|style|svg|template|video")
NOTES = re.compile("(end|foot|rear)notes?|noteref|pagebreak")
"""Meanings (`epub:type`) of what is read beside the text, not in it."""
TYPE = "{http://www.idpf.org/2007/ops}type"
NAMED = re.compile(rb"&([A-Za-z][A-Za-z0-9]*);")
OF_XML = frozenset((b"amp", b"lt", b"gt", b"quot", b"apos"))

_Element = Any  # lxml has no types


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the table of contents. `depth` counts from 1; `fragment` is the id in the document, or empty."""

    depth: int
    path: str
    fragment: str
    title: str


def epub_chapters(path: str, depth: int) -> list[Chapter]:
    """Chapters, which begin where the table of contents says so.

    Without one, each document of the spine is a chapter.

    Raises:
        BadFile: it is no EPUB, it is encrypted, or it is larger than any book.
        ModuleNotFoundError: the extra `batch` is not installed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _Book(archive, path).chapters(depth)
    except BROKEN as error:
        raise BadFile(f"{path} cannot be read as an EPUB: {error}") from error


class _Book:
    """The files of a book."""

    def __init__(self, archive: zipfile.ZipFile, path: str) -> None:
        self._archive = archive
        self._path = path
        self._left_bytes = BOOK_BYTES
        container = self._tree(CONTAINER)
        roots = [_get(element, "full-path") for element in _named(container, "rootfile")]
        if not roots:
            raise BadFile(f"{path} names no book: {CONTAINER} has no rootfile")
        self._opf = roots[0]
        package = self._tree(self._opf)
        self._items = {_get(item, "id"): item for item in _named(package, "item")}
        self._spine = [
            item
            for reference in _named(package, "itemref")
            if _get(reference, "linear") != "no" and (item := self._items.get(_get(reference, "idref"))) is not None
        ]
        titles = [_text(element) for element in _named(package, "title")]
        self._title = next(filter(None, titles), Path(path).stem)
        self._ncx = next((_get(spine, "toc") for spine in _named(package, "spine")), "")

    def chapters(self, depth: int) -> list[Chapter]:
        nav = next((item for item in self._items.values() if "nav" in _get(item, "properties").split()), None)
        paths = [self._target(self._opf, _get(item, "href"))[0] for item in self._spine if item is not nav]
        locked = self._encrypted() & set(paths)
        if locked:
            raise BadFile(f"{self._path} is encrypted: it can be read by the programs of its shop alone")
        known = set(paths)
        entries = [entry for entry in self._contents(nav) if entry.path in known]
        level = chapter_level([entry.depth for entry in entries], depth)
        starts: dict[str, dict[str, str]] = {}
        for entry in entries:
            if entry.depth <= level:
                starts.setdefault(entry.path, {}).setdefault(entry.fragment, entry.title)
        chapters: list[Chapter] = []
        for path in paths:
            self._add_document(path, starts.get(path, {}), bool(starts), chapters)
        return chapters

    def _add_document(self, path: str, starts: dict[str, str], has_contents: bool, chapters: list[Chapter]) -> None:
        """Adds the blocks of a document to the last chapter, and to those that begin in it."""
        blocks = list(_blocks(self._tree(path)))
        anchors = {anchor for block in blocks for anchor in block.anchors}
        # A document whose entry points at an id that is not there begins with its chapter.
        at_top = [title for fragment, title in starts.items() if fragment not in anchors]
        if not has_contents and blocks:
            headings = [block.text for block in blocks if block.heading_level is not None]
            at_top = [" ".join(headings[0].split()) if headings else ""]
        if at_top:
            chapters.append(Chapter(at_top[0]))
        order = {fragment: at for at, fragment in enumerate(starts)}
        for block in blocks:
            if begun := block.anchors & starts.keys():
                chapters.append(Chapter(starts[min(begun, key=order.__getitem__)]))
            elif not chapters:
                chapters.append(Chapter(self._title))
            chapters[-1].blocks.append(block)

    def _contents(self, nav: _Element | None) -> Iterator[_Entry]:
        """The table of contents, of EPUB 3 or of EPUB 2."""
        if nav is not None:
            base = self._target(self._opf, _get(nav, "href"))[0]
            lists = _named(self._tree(base), "nav")
            for element in [each for each in lists if "toc" in _kinds(each)] or lists[:1]:
                for link in _named(element, "a"):
                    yield _Entry(_depth(link, "ol"), *self._target(base, _get(link, "href")), _text(link))
        elif (ncx := self._items.get(self._ncx)) is not None:
            base = self._target(self._opf, _get(ncx, "href"))[0]
            for point in _named(self._tree(base), "navpoint"):
                label = next((_text(each) for each in point if _name(each) == "navlabel"), "")
                source = next((_get(each, "src") for each in point if _name(each) == "content"), "")
                yield _Entry(_depth(point, "navpoint") + 1, *self._target(base, source), label)

    def _encrypted(self) -> set[str]:
        if ENCRYPTION not in self._archive.namelist():
            return set()
        references = _named(self._tree(ENCRYPTION), "cipherreference")
        return {unquote(_get(reference, "uri")).lstrip("/") for reference in references}

    def _target(self, base: str, href: str) -> tuple[str, str]:
        """Path in the archive and id of a link in the file `base`."""
        parts = urlsplit(href)
        path = posixpath.join(posixpath.dirname(base), unquote(parts.path)) if parts.path else base
        return posixpath.normpath(path), unquote(parts.fragment)

    def _tree(self, name: str) -> _Element:
        """The elements of a file, without its comments. Raises BadFile."""
        from lxml import etree

        content = self._read(name)
        strict = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
        try:
            tree = etree.fromstring(NAMED.sub(_character, content), strict)
        except etree.XMLSyntaxError:
            # Documents are XML, and some are not quite. This parser reads what a browser shows of them.
            try:
                tree = etree.fromstring(content, etree.HTMLParser(no_network=True, huge_tree=False))
            except etree.XMLSyntaxError as error:
                raise BadFile(f"{self._path}: {shown(name)} cannot be read: {error}") from error
        if tree is None:
            raise BadFile(f"{self._path}: {shown(name)} is empty")
        dropped = (etree.Comment, etree.ProcessingInstruction, etree.Entity)
        etree.strip_elements(tree, *dropped, with_tail=False)
        return tree

    def _read(self, name: str) -> bytes:
        """Raises BadFile for a file that is missing or too large."""
        try:
            entry = self._archive.getinfo(name)
        except KeyError:
            raise BadFile(f"{self._path} has no file {shown(name)}, which it names") from None
        if entry.compress_type not in METHODS:
            raise BadFile(f"{self._path}: {shown(name)} is packed in a way that EPUB does not have")
        with self._archive.open(entry) as file:
            most = min(FILE_BYTES, self._left_bytes)
            content = file.read(most + 1)
        if len(content) > most:
            raise BadFile(f"{self._path}: {shown(name)} has more than {most} bytes, so this is no book")
        self._left_bytes -= len(content)
        return content


def _blocks(document: _Element) -> Iterator[Block]:
    """The paragraphs and headings of a document."""
    from lxml import etree

    texts: list[str] = []
    anchors: set[str] = set()
    level: int | None = None
    walk = etree.iterwalk(document, events=("start", "end"))
    for event, element in walk:
        name = _name(element)
        if BLOCKS.fullmatch(name):
            if any(map(str.strip, texts)):
                yield Block("".join(texts), level, anchors)
                anchors = set()
            texts = []
            level = int(name[1]) if event == "start" and re.fullmatch("h[1-6]", name) else None
        if event == "end":
            texts.append(element.tail or "")
            continue
        if anchor := _get(element, "id") or (_get(element, "name") if name == "a" else ""):
            anchors.add(anchor)
        if UNSPOKEN.fullmatch(name) or any(map(NOTES.fullmatch, _kinds(element))):
            walk.skip_subtree()
            continue
        texts.append({"br": "\n", "td": " ", "th": " "}.get(name, "") + (element.text or ""))
    if any(map(str.strip, texts)):
        yield Block("".join(texts), level, anchors)


def _named(tree: _Element, name: str) -> list[_Element]:
    return [element for element in tree.iter() if _name(element) == name]


def _name(element: _Element) -> str:
    """Name of an element in small letters, without its namespace."""
    tag = element.tag
    return tag.rpartition("}")[2].rpartition(":")[2].lower() if isinstance(tag, str) else ""


def _get(element: _Element, name: str) -> str:
    """An attribute, whatever its letters' case; empty if it is not there."""
    return next((str(value).strip() for key, value in element.attrib.items() if key.lower() == name), "")


def _kinds(element: _Element) -> set[str]:
    return set((element.get(TYPE) or element.get("epub:type") or "").split())


def _text(element: _Element) -> str:
    return " ".join("".join(element.itertext()).split())


def _depth(element: _Element, name: str) -> int:
    return sum(_name(parent) == name for parent in element.iterancestors())


def _character(found: re.Match[bytes]) -> bytes:
    """A named character of HTML as a number, since XML knows five names alone."""
    characters = html.entities.html5.get(f"{found[1].decode()};")
    if found[1] in OF_XML or characters is None:
        return found[0]
    return b"".join(b"&#%d;" % ord(char) for char in characters)
