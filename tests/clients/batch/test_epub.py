"""Books in EPUB: chapters of the table of contents, and files that attack their reader."""

import itertools
import zipfile
from pathlib import Path

import pytest
from vivavoce_client.batch import epub
from vivavoce_client.batch.sources import read_source
from vivavoce_client.input_files import BadFile

CONTAINER = (
    '<?xml version="1.0"?><container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
)
NAV = '<item id="nav" href="nav.xhtml" properties="nav" media-type="application/xhtml+xml"/>'
NCX = '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'


def package(documents: list[str], contents: str = NAV, spine: str = "") -> str:
    items = "".join(f'<item id="d{at}" href="{name}" media-type="x"/>' for at, name in enumerate(documents))
    references = spine or "".join(f'<itemref idref="d{at}"/>' for at in range(len(documents)))
    return (
        '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">'
        '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>A Tale</dc:title></metadata>'
        f'<manifest>{contents}{items}</manifest><spine toc="ncx">{references}</spine></package>'
    )


def page(body: str, head: str = "") -> str:
    return (
        f'<?xml version="1.0" encoding="utf-8"?>{head}<html xmlns="http://www.w3.org/1999/xhtml" '
        f'xmlns:epub="http://www.idpf.org/2007/ops"><head><title>Not read</title></head><body>{body}</body></html>'
    )


def nav(entries: str) -> str:
    others = '<nav epub:type="landmarks"><ol><li><a href="a.xhtml">No</a></li></ol></nav>'
    return page(f'{others}<nav epub:type="toc">{entries}</nav>')


def book(path: Path, files: dict[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        for name, content in {"META-INF/container.xml": CONTAINER, **files}.items():
            archive.writestr(name, content)
    return path


def chapters_of(path: Path, depth: int = 1) -> list[tuple[str | None, list[str]]]:
    return [(track.title, [line.text for line in track.lines]) for track in read_source(str(path), depth).tracks]


def test_chapters_begin_where_the_contents_say(tmp_path: Path) -> None:
    path = book(
        tmp_path / "a.epub",
        {
            "OPS/book.opf": package(["cover.xhtml", "text/a%20b.xhtml", "text/c.xhtml", "text/d.xhtml"]),
            "OPS/nav.xhtml": nav(
                '<ol><li><a href="text/a%20b.xhtml">One</a>'
                '<ol><li><a href="text/a%20b.xhtml#s">Section</a></li></ol></li>'
                '<li><a href="text/c.xhtml#two">The <i>second</i></a></li>'
                '<li><a href="text/d.xhtml#gone">Three</a></li></ol>'
            ),
            "OPS/cover.xhtml": page("<h1>A Tale</h1><p>by Nobody</p>"),
            "OPS/text/a b.xhtml": page('<h2>One</h2><p>It rained.</p><h3 id="s">Section</h3><p>It snowed.</p>'),
            "OPS/text/c.xhtml": page('<p>Still one.</p><div id="two"><h2>Two</h2></div><p>It shone.</p>'),
            "OPS/text/d.xhtml": page("<p>The end.</p>"),
        },
    )
    assert chapters_of(path) == [
        ("A Tale", ["A Tale.", "by Nobody"]),
        ("One", ["One.", "It rained.", "Section.", "It snowed.\n\nStill one."]),
        ("The second", ["Two.", "It shone."]),
        ("Three", ["The end."]),
    ]
    assert [title for title, _ in chapters_of(path, depth=2)] == ["A Tale", "One", "Section", "The second", "Three"]
    assert [track.name for track in read_source(str(path), 1).tracks][2] == "03-the-second"


def test_a_book_of_the_second_version_has_its_contents_in_another_file(tmp_path: Path) -> None:
    point = '<navPoint id="{0}"><navLabel><text>{0}</text></navLabel><content src="{1}"/>{2}</navPoint>'
    points = point.format(
        "Book", "a.xhtml", point.format("One", "a.xhtml#one", "") + point.format("Two", "b.xhtml", "")
    )
    path = book(
        tmp_path / "a.epub",
        {
            "OPS/book.opf": package(["a.xhtml", "b.xhtml"], NCX),
            "OPS/toc.ncx": f'<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap>{points}</navMap></ncx>',
            "OPS/a.xhtml": page('<p>Front.</p><h1 id="one">One</h1><p>First.</p>'),
            "OPS/b.xhtml": page("<p>Second.</p>"),
        },
    )
    assert chapters_of(path) == [("Book", ["Front."]), ("One", ["One.", "First."]), ("Two", ["Second."])]


def test_without_contents_each_document_is_a_chapter(tmp_path: Path) -> None:
    spine = '<itemref idref="d1"/><itemref idref="d0" linear="no"/><itemref idref="d2"/><itemref idref="none"/>'
    path = book(
        tmp_path / "a.epub",
        {
            "OPS/book.opf": package(["notes.xhtml", "a.xhtml", "b.xhtml"], "", spine),
            "OPS/notes.xhtml": page("<p>Not read.</p>"),
            "OPS/a.xhtml": page("<p>One.</p><h2>A  title</h2>"),
            "OPS/b.xhtml": page("<p>Two.</p>"),
        },
    )
    assert chapters_of(path) == [("A title", ["One.", "A title."]), ("", ["Two."])]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("One<br/>two <b>th</b>ree.<!-- no --> Four<?no no?> five.", "One two three. Four five."),
        ("caf&#233; &amp; caf&eacute;&nbsp;&mdash; <i>x</i>", "café & café — x"),
        ('Word<a epub:type="noteref" href="#n">12</a>, and<sup>2</sup>.', "Word, and2."),
        ('<ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp></ruby><span epub:type="pagebreak">7</span>字', "漢字"),
        ("<script>no</script><style>no</style><svg><text>no</text></svg>Yes.", "Yes."),
    ],
)
def test_a_paragraph_is_what_a_reader_says(tmp_path: Path, body: str, text: str) -> None:
    path = book(tmp_path / "a.epub", {"OPS/book.opf": package(["a.xhtml"], ""), "OPS/a.xhtml": page(f"<p>{body}</p>")})
    assert chapters_of(path) == [("", [text])]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_a_document_has_the_encoding_that_it_declares(tmp_path: Path, encoding: str) -> None:
    content = page("<p>Caf\xe9.</p>").replace('"utf-8"', f'"{encoding}"').encode(encoding)
    path = book(tmp_path / "a.epub", {"OPS/book.opf": package(["a.xhtml"], ""), "OPS/a.xhtml": content})
    assert chapters_of(path) == [("", ["Café."])]


def test_a_document_that_is_not_quite_xml_is_read_like_a_page(tmp_path: Path) -> None:
    content = page("<p>One &nbsp; &unknown; <b>two<p>Three & four<br>five.</body>")
    path = book(tmp_path / "a.epub", {"OPS/book.opf": package(["a.xhtml"], ""), "OPS/a.xhtml": content})
    assert chapters_of(path) == [("", ["One &unknown; two\n\nThree & four five."])]


# ---- hostile books ------------------------------------------------------------------------------------------------


def of_one_page(path: Path, content: str | bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    return book(path, {"OPS/book.opf": package(["a.xhtml"], ""), "OPS/a.xhtml": content}, method)


@pytest.mark.parametrize("levels", [1, 2, 12])
def test_entities_are_not_expanded(tmp_path: Path, levels: int) -> None:
    names = "abcdefghijklm"
    declared = '<!ENTITY a "ha">'
    for name, following in itertools.pairwise(names[: levels + 1]):
        declared += f'<!ENTITY {following} "{f"&{name};" * 10}">'
    bomb = page(f"<p>Before &{names[levels]}; after.</p>", f"<!DOCTYPE html [{declared}]>")
    ((_, pieces),) = chapters_of(of_one_page(tmp_path / "a.epub", bomb))
    assert "Before" in pieces[-1]
    assert "ha" not in pieces[-1]
    assert len("".join(pieces)) < 100


def test_files_of_this_machine_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("SECRET")
    declared = f'<!DOCTYPE html [<!ENTITY e SYSTEM "{secret.as_uri()}">]>'
    assert chapters_of(of_one_page(tmp_path / "a.epub", page("<p>Before &e; after.</p>", declared))) == [
        ("", ["Before after."])
    ]
    outside: dict[str, str | bytes] = {"OPS/book.opf": package(["../../secret.txt"], "")}
    with pytest.raises(BadFile, match=r"has no file '\.\./secret\.txt', which it names"):
        chapters_of(book(tmp_path / "b.epub", outside))
    for href in (str(secret), secret.as_uri()):
        with pytest.raises(BadFile, match="has no file"):
            chapters_of(book(tmp_path / "c.epub", {"OPS/book.opf": package([href], "")}))


def test_a_file_that_unpacks_to_more_than_a_book_has_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = of_one_page(tmp_path / "a.epub", b" " * (epub.FILE_BYTES + 1))
    assert bomb.stat().st_size < 20_000
    with pytest.raises(BadFile, match=rf"'OPS/a\.xhtml' has more than {epub.FILE_BYTES} bytes, so this is no book"):
        chapters_of(bomb)
    monkeypatch.setattr(epub, "BOOK_BYTES", 100_000)
    many = package(["a.xhtml"], "", '<itemref idref="d0"/>' * 1000)  # one document, a thousand times
    with pytest.raises(BadFile, match="so this is no book"):
        chapters_of(book(tmp_path / "b.epub", {"OPS/book.opf": many, "OPS/a.xhtml": page("<p>One.</p>" * 100)}))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_ways_of_packing_that_epub_does_not_have_are_refused(tmp_path: Path, method: int) -> None:
    with pytest.raises(BadFile, match="is packed in a way that EPUB does not have"):
        chapters_of(of_one_page(tmp_path / "a.epub", page("<p>One.</p>"), method))


@pytest.mark.parametrize(
    "content", ["<p>" * 100_000, "<i>" * 100_000 + "x", "<!--" * 100_000, "<a b='" * 100_000, "&" * 100_000, ""]
)
def test_a_document_of_nonsense_has_no_text_or_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(BadFile, match=r"nothing to say|cannot be read|is empty"):
        chapters_of(of_one_page(tmp_path / "a.epub", content))


@pytest.mark.parametrize(
    ("content", "chars"),
    [
        ("<p>" + "<i>x</i>" * 100_000 + "</p>", 100_000),
        ("<p>" + '<i id="a"/>x ' * 100_000 + "</p>", 100_000),
        ("<p>x</p>" * 100_000, 100_000),
        ("<p>" + "x" * 4_000_000 + "</p>", 4_000_000),
    ],
)
def test_a_large_document_is_read_in_one_pass(tmp_path: Path, content: str, chars: int) -> None:
    ((_, pieces),) = chapters_of(of_one_page(tmp_path / "a.epub", page(content)))
    assert sum(piece.count("x") for piece in pieces) == chars


def test_many_entries_of_the_contents_lead_into_one_document(tmp_path: Path) -> None:
    count = 20_000
    entries = "".join(f'<li><a href="a.xhtml#n{at}">Chapter {at}</a></li>' for at in range(count))
    files: dict[str, str | bytes] = {
        "OPS/book.opf": package(["a.xhtml"]),
        "OPS/nav.xhtml": nav(f"<ol>{entries}</ol>"),
        "OPS/a.xhtml": page("".join(f'<p id="n{at}">x</p>' for at in range(count))),
    }
    chapters = chapters_of(book(tmp_path / "a.epub", files))
    assert chapters[::5000] == [(f"Chapter {at}", ["x"]) for at in range(0, count, 5000)]
    assert len(chapters) == count


def test_an_encrypted_book_is_told(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "OPS/book.opf": package(["a b.xhtml"], ""),
        "OPS/a b.xhtml": b"\x00\x01",
        "META-INF/encryption.xml": '<encryption xmlns:enc="http://www.w3.org/2001/04/xmlenc#"><enc:EncryptedData><enc:CipherData>'
        '<enc:CipherReference URI="OPS/a%20b.xhtml"/></enc:CipherData></enc:EncryptedData></encryption>',
    }
    with pytest.raises(BadFile, match="is encrypted"):
        chapters_of(book(tmp_path / "a.epub", files))
    # Fonts are often masked; the text is readable then.
    font = str(files["META-INF/encryption.xml"]).replace("a%20b.xhtml", "font.otf")
    files |= {"META-INF/encryption.xml": font, "OPS/a b.xhtml": page("<p>One.</p>")}
    assert chapters_of(book(tmp_path / "b.epub", files)) == [("", ["One."])]


@pytest.mark.parametrize("cut", ["not a zip", "half", "a byte of a document"])
def test_a_broken_file_is_told(tmp_path: Path, cut: str) -> None:
    path = of_one_page(tmp_path / "a.epub", page("<p>One.</p>" * 100), zipfile.ZIP_STORED)
    content = path.read_bytes()
    path.write_bytes(
        {"not a zip": b"PK", "half": content[: len(content) // 2]}.get(cut, content.replace(b"<p>One.", b"<p>Own.", 1))
    )
    with pytest.raises(BadFile, match="cannot be read as an EPUB"):
        chapters_of(path)


@pytest.mark.parametrize(
    "files",
    [
        {"META-INF/container.xml": "<container/>"},
        {"OPS/book.opf": package(["missing.xhtml"], "")},
        {},
        {"OPS/book.opf": package(["a.xhtml"]), "OPS/a.xhtml": page("<p>One.</p>")},
    ],
    ids=["no rootfile", "no document", "no package", "no contents"],
)
def test_a_book_without_its_parts_is_told(tmp_path: Path, files: dict[str, str | bytes]) -> None:
    with pytest.raises(BadFile, match=r"names no book|has no file"):
        chapters_of(book(tmp_path / "a.epub", files))
