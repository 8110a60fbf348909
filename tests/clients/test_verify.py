"""`vivavoce verify`: files of any origin, whole, cut and hostile."""

import io
import json
import struct
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from vivavoce_client import verify
from vivavoce_client.__main__ import main
from vivavoce_client.file_tags import MAX_METADATA_BYTES, Unreadable, read_tags

SOURCE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
SENTENCE = f"Made by software; digital_source_type={SOURCE}; software=Some 1; model=m; voice=v"
FACTS = {"digital_source_type": SOURCE, "software": "Some 1", "model": "m", "voice": "v"}


def chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def wav(*chunks: bytes, data_bytes: int | None = None) -> bytes:
    """A WAV file with chunks before its samples; `data_bytes` is the size that it states."""
    fmt = chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16))
    data = chunk(b"data", bytes(100))
    if data_bytes is not None:
        data = data[:4] + struct.pack("<I", data_bytes) + data[8:]
    body = b"WAVE" + fmt + b"".join(chunks) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def info(text: str) -> bytes:
    return chunk(b"LIST", b"INFO" + chunk(b"ICMT", text.encode() + b"\0"))


def comments(fields: dict[str, str]) -> bytes:
    listed = [f"{name}={value}".encode() for name, value in fields.items()]
    lengths = b"".join(struct.pack("<I", len(each)) + each for each in listed)
    return struct.pack("<I", 4) + b"some" + struct.pack("<I", len(listed)) + lengths


def flac(fields: dict[str, str]) -> bytes:
    body = comments(fields)
    return b"fLaC" + b"\0" + (34).to_bytes(3) + bytes(34) + b"\x84" + len(body).to_bytes(3) + body + b"\xff\xf8"


def ogg_page(packet: bytes) -> bytes:
    segments = [255] * (len(packet) // 255) + [len(packet) % 255]
    return b"OggS" + bytes(22) + bytes([len(segments)]) + bytes(segments) + packet


def opus(fields: dict[str, str]) -> bytes:
    return ogg_page(b"OpusHead" + bytes(11)) + ogg_page(b"OpusTags" + comments(fields)) + ogg_page(b"sound")


def id3(fields: dict[str, str], version: int, encoding: int = 3) -> bytes:
    codec = ("latin-1", "utf-16", "utf-16-be", "utf-8")[encoding]

    def size(number: int) -> bytes:
        return bytes(number >> shift & 0x7F for shift in (21, 14, 7, 0))

    frames = b""
    for name, value in fields.items():
        body = bytes([encoding]) + f"{name}\0{value}".encode(codec)
        frames += b"TXXX" + (size(len(body)) if version == 4 else len(body).to_bytes(4)) + b"\0\0" + body
    return b"ID3" + bytes([version, 0, 0]) + size(len(frames)) + frames + b"\xff\xfb\x90\xc4" + bytes(400)


MARKED = {
    "list.wav": wav(info(SENTENCE)),
    "open.wav": wav(info(SENTENCE), data_bytes=0xFFFFFFFF),
    "history.wav": wav(chunk(b"bext", bytes(602) + SENTENCE.encode() + b"\r\n")),
    "a.flac": flac(FACTS),
    "a.opus": opus(FACTS),
    "long.opus": opus({"other": "x" * 3000, **FACTS}),
    "3.mp3": id3(FACTS, 3, 1),
    "4.mp3": id3(FACTS, 4),
}


@pytest.mark.parametrize("name", MARKED)
def test_facts_are_found(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / name
    file.write_bytes(MARKED[name])
    assert main(["verify", "--json", str(file)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["synthetic"] is True
    assert answer["facts"] == FACTS
    assert main(["verify", str(file)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith("synthetic audio")
    assert "  software: Some 1" in shown
    assert len(shown) == 1 + len(FACTS)


@pytest.mark.parametrize(
    ("content", "kind"),
    [(wav(), "wav"), (flac({"title": "Hm"}), "flac"), (b"\xff\xfb\x90\xc4" + bytes(99), "mp3"),
     (b"\xff\xf1" + bytes(99), "aac"), (opus({}), "ogg opus"),
     (wav(info("digital_source_type=http://cv.iptc.org/newscodes/digitalsourcetype/digitalCapture")), "wav")],
)  # fmt: skip
def test_without_a_mark_the_status_is_one(
    content: bytes, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert main(["verify", "--json", str(file)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["format"], answer["synthetic"]) == (kind, False)
    assert main(["verify", str(file)]) == 1
    assert "no mark of synthetic audio" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no WAV, MP3, AAC, Ogg or FLAC file"),
        (b"<html></html>", "no WAV, MP3, AAC, Ogg or FLAC file"),
        (b"\0\0\0\x20ftypM4A ", "no WAV, MP3, AAC, Ogg or FLAC file"),
        (MARKED["a.flac"][:60], "cut"),
        (MARKED["4.mp3"][:60], "cut"),
        (MARKED["a.opus"][:90], "cut"),
        (b"RIFF\xff\xff\xff\xffWAVELIST\xff\xff\xff\x7fINFO", "larger than"),
        (b"ID3\4\0\0\x7f\x7f\x7f\x7f", "larger than"),
        (b"fLaC\x04\xff\xff\xff" + bytes(100), "larger than"),
        (b"fLaC" + b"\x01\0\0\0" * 2000, "no end"),
        (b"OggS" + bytes(23) + b"junkjunkjunkjunkjunkjunkjunkjunk", "damaged"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_line(
    content: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert main(["verify", str(file)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert reason in shown.err
    assert shown.err.startswith(f"vivavoce: {file}: ")
    assert shown.err.count("\n") == 1


def test_missing_files_and_folders_are_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, reason in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        assert main(["verify", str(path)]) == 2
        assert capsys.readouterr().err == f"vivavoce: {path}: {reason}\n"
    assert main(["verify", "a\0b"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_cannot_write_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_bytes(flac({**FACTS, "voice": "\x1b[31mred\nsecond line\u202e"}))
    assert main(["verify", str(file)]) == 0
    assert "  voice: ?[31mred?second line?\n" in capsys.readouterr().out


def test_a_file_name_cannot_write_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a\x1b[31m\udcff\u202e.flac"
    assert main(["verify", str(file)]) == 2
    assert capsys.readouterr().err == f"vivavoce: {tmp_path}/a?[31m??.flac: No such file or directory\n"
    file.write_bytes(flac(FACTS))
    assert main(["verify", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/a?[31m??.flac (flac): synthetic audio\n")
    assert main(["verify", "--json", str(file)]) == 0
    answer = capsys.readouterr().out
    assert answer.isascii()
    assert json.loads(answer)["file"] == str(file)


def test_an_empty_field_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    for content in (
        id3({"voice": ""}, 4),
        flac({"voice": "", "software": ""}),
        opus({"model": ""}),
        b"ID3\4\0\0" + bytes(4),
    ):
        file.write_bytes(content)
        assert main(["verify", "--json", str(file)]) == 1
        assert json.loads(capsys.readouterr().out)["facts"] == {}
    file.write_bytes(flac({"voice": "", "comment": SENTENCE}))
    assert main(["verify", "--json", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["facts"] == FACTS


class CountingFile(io.BytesIO):
    read_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        self.read_bytes += len(content)
        return content


@given(st.sampled_from(sorted(MARKED)), st.integers(0, 400), st.binary(max_size=8), st.integers(0, 400))
@example("a.opus", 27, b"\xff" * 8, 400)
def test_damaged_files_are_read_or_refused_at_a_bounded_cost(name: str, place: int, other: bytes, end: int) -> None:
    content = bytearray(MARKED[name])
    content[place : place + len(other)] = other
    file = CountingFile(bytes(content[: max(end, 1)]))
    try:
        tags = read_tags(file)
    except Unreadable:
        pass
    else:
        assert all(verify.facts_of(tags).values())
    assert file.read_bytes <= 2 * MAX_METADATA_BYTES


def test_chunks_without_end_are_not_followed_for_ever() -> None:
    file = CountingFile(wav()[:12] + chunk(b"junk", b"") * 100_000)
    assert read_tags(file).fields == {}
    assert file.read_bytes < 20_000


# ---- watermarks


def finder_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("some", f"{__name__}:{name}", verify.WATERMARK_GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: globals()[name])
    monkeypatch.setattr(verify, "entry_points", lambda group: [entry])


def finds_it(path: str) -> tuple[str, float]:
    return "some", 0.97


def finds_nothing(path: str) -> tuple[str, float]:
    return "some", 0.3


def cannot_decode(path: str) -> tuple[str, float]:
    raise ValueError("it has no audio that can be decoded")


@pytest.mark.parametrize(("name", "status", "line"), [
    ("finds_it", 0, "  watermark: some, found (confidence 0.97)"),
    ("finds_nothing", 1, "  watermark: some, not found (confidence 0.3)"),
])  # fmt: skip
def test_a_watermark_counts_as_a_mark(
    name: str,
    status: int,
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finder_of(name, monkeypatch)
    file = tmp_path / "file.wav"
    file.write_bytes(wav())
    assert main(["verify", "--watermark", str(file)]) == status
    assert capsys.readouterr().out.splitlines()[1] == line
    assert main(["verify", "--watermark", "--json", str(file)]) == status
    assert json.loads(capsys.readouterr().out)["watermark"]["found"] is (status == 0)
    assert main(["verify", str(file)]) == 1


def test_what_a_watermark_needs_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file.wav"
    file.write_bytes(wav(info(SENTENCE)))
    monkeypatch.setattr(verify, "entry_points", lambda group: [])
    assert main(["verify", "--watermark", str(file)]) == 2
    assert "pip install 'vivavoce-speech[server,watermark]'" in capsys.readouterr().err
    finder_of("cannot_decode", monkeypatch)
    assert main(["verify", "--watermark", str(file)]) == 2
    assert capsys.readouterr().err == f"vivavoce: {file}: it has no audio that can be decoded\n"
