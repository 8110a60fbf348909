"""Subtitles of a job, as FFmpeg (PyAV) and two other readers see them, with the times of words inside."""

import html
import io
import itertools
import json
import re
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import pytest
import srt
import webvtt
from vivavoce_client.__main__ import main
from vivavoce_client.batch.whole import estimated

from tests.support.live_server import live_server

LINES = [
    ("heart", "Hello there, you & <b>me</b>."),
    ("michael", "And so it went on, for longer than anybody would have thought, until the end of it came --> at last!"),
    ("heart", "Why?"),
    ("heart", "Because it was so: nobody knew."),
]


@dataclass(frozen=True)
class Cue:
    start_ms: int
    end_ms: int
    text: str


@pytest.fixture(scope="module", params=["estimated", "words"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp(request.param)
    rows = (json.dumps({"voice": voice, "text": text}) for voice, text in LINES)
    (folder / "lines.jsonl").write_text("\n".join(rows))
    options = ["--normalize", "false", "--join", "--srt", "--vtt", "--pause", "0.3", "--seed", "1"]
    options += ["--words"] if request.param == "words" else []
    with live_server() as server:
        source, out = str(folder / "lines.jsonl"), str(folder / "out")
        assert main(["batch", source, "--out", out, "--url", server.url, *options]) == 0
    return folder / "out"


def cues_by_ffmpeg(path: Path) -> list[Cue]:
    """The cues as FFmpeg's readers of subtitles and its decoders take them."""
    cues = []
    with av.open(str(path)) as container:
        (stream,) = container.streams.subtitles
        for packet in container.demux(stream):
            for subtitle in packet.decode():
                start_ms = int((packet.pts or 0) * (packet.time_base or 0) * 1000)
                length_ms = int((packet.duration or 0) * (packet.time_base or 0) * 1000)
                text = subtitle.dialogue.decode().replace("\\N", "\n")  # type: ignore[union-attr]
                cues.append(Cue(start_ms, start_ms + length_ms, text))
    return cues


def milliseconds(clock: str) -> int:
    hours, minutes, seconds = clock.split(":")
    return round((int(hours) * 3600 + int(minutes) * 60 + float(seconds)) * 1000)


def letters(text: str) -> str:
    return "".join(re.findall("[A-Za-z]", text))


def said(cues: list[Cue]) -> str:
    """The letters of cues, without WebVTT's voices and times."""
    shown = "".join(re.sub(r"<(v [^>]*|[\d:.]+)>", "", cue.text) for cue in cues)
    return letters(html.unescape(shown))


EXPECTED = letters("".join(text for _, text in LINES))


def test_ffmpeg_reads_both_files_alike(folder: Path) -> None:
    by_srt, by_vtt = (cues_by_ffmpeg(folder / f"whole.{kind}") for kind in ("srt", "vtt"))
    assert [(cue.start_ms, cue.end_ms) for cue in by_srt] == [(cue.start_ms, cue.end_ms) for cue in by_vtt]
    assert len(by_srt) >= 5
    for cues in (by_srt, by_vtt):
        assert all(cue.end_ms > cue.start_ms for cue in cues)
        assert all(cue.end_ms <= later.start_ms for cue, later in itertools.pairwise(cues))


def test_a_strict_reader_of_srt_reads_what_was_said(folder: Path) -> None:
    content = (folder / "whole.srt").read_text(encoding="utf-8")
    subtitles = list(srt.parse(content, ignore_errors=False))
    assert [subtitle.index for subtitle in subtitles] == list(range(1, len(subtitles) + 1))
    cues = [
        Cue(round(each.start.total_seconds() * 1000), round(each.end.total_seconds() * 1000), each.content)
        for each in subtitles
    ]
    assert said(cues) == EXPECTED
    assert [(cue.start_ms, cue.end_ms) for cue in cues] == [
        (cue.start_ms, cue.end_ms) for cue in cues_by_ffmpeg(folder / "whole.srt")
    ]


def test_a_validator_of_webvtt_finds_nothing_wrong(folder: Path) -> None:
    content = (folder / "whole.vtt").read_text(encoding="utf-8")
    captions = webvtt.from_buffer(io.StringIO(content), format="vtt").captions
    cues = [Cue(milliseconds(each.start), milliseconds(each.end), each.raw_text) for each in captions]
    assert said(cues) == EXPECTED
    assert [each.voice for each in captions[:2]] == ["heart", "michael"]
    assert [(cue.start_ms, cue.end_ms) for cue in cues] == [
        (cue.start_ms, cue.end_ms) for cue in cues_by_ffmpeg(folder / "whole.vtt")
    ]
    assert sum(content.count(sign) for sign in ("<b>", "& ")) == 0


def test_words_have_times_inside_their_cues_where_they_are_asked_for(folder: Path) -> None:
    content = (folder / "whole.vtt").read_text(encoding="utf-8")
    inside = re.findall(r"<(\d\d:\d\d:\d\d\.\d\d\d)>", content)
    if folder.parent.name.startswith("estimated"):
        assert inside == []
        assert not (folder / "whole.json").exists()
        return
    told = json.loads((folder / "whole.json").read_text(encoding="utf-8"))
    assert told["text"] == "\n".join(text for _, text in LINES)
    assert all(told["text"][word["text_start"] : word["text_end"]] == word["word"] for word in told["words"])
    starts = [round(word["start"] * 1000) for word in told["words"] if word["start"] is not None]
    assert starts == sorted(starts)
    assert len(inside) > 15
    assert {milliseconds(clock) for clock in inside} <= set(starts)


def test_cues_lie_over_the_audio_of_their_lines(folder: Path) -> None:
    with wave.open(str(folder / "whole.wav")) as file:
        whole_ms = file.getnframes() / 24
    start_ms = 0.0
    cues = cues_by_ffmpeg(folder / "whole.srt")
    for number, (_, text) in enumerate(LINES, 1):
        with wave.open(str(folder / f"{number:04}.wav")) as file:
            end_ms = start_ms + file.getnframes() / 24
        inside = [cue for cue in cues if start_ms - 1 <= cue.start_ms < end_ms]
        assert said(inside) == letters(text), "a cue has words of another line"
        start_ms = end_ms + 300
    assert cues[-1].end_ms <= whole_ms + 1
    assert start_ms - 300 == pytest.approx(whole_ms)


def test_estimated_words_share_the_time_of_the_audio() -> None:
    words = estimated("One two.", 4.0)
    assert [(word.word, word.start_s, word.end_s) for word in words] == [("One", 0, 2.0), ("two.", 2.0, 4.0)]


def test_a_book_has_subtitles_beside_each_chapter_and_marks_that_ffmpeg_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.md").write_text("# One = 1; \\#2\n\nIt rained.\n\n# Two\n\nIt shone.\n")
    with live_server() as server:
        assert main(["batch", "book.md", "--out", "out", "--url", server.url, "--join", "--srt", "--words"]) == 0
    own = [path for path in sorted(Path("out").glob("*.srt")) if path.name != "whole.srt"]
    assert [path.name for path in own] == ["01-one-1-2.srt", "02-two.srt"]
    first, second = (cues_by_ffmpeg(path) for path in own)
    whole = cues_by_ffmpeg(Path("out/whole.srt"))
    assert [cue.text for cue in whole] == [cue.text for cue in (*first, *second)]
    assert second[0].start_ms == 0
    chapters: Any
    with av.open("out/whole.chapters.txt", format="ffmetadata") as container:
        chapters = container.chapters()
    assert [chapter["metadata"]["title"] for chapter in chapters] == ["One = 1; #2", "Two"]
    assert whole[len(first)].start_ms == chapters[1]["start"] * 1000 // 24000
