"""Reports of a run for people and for programs."""

import json
from pathlib import Path

import pytest
from vivavoce_eval.figures import Run
from vivavoce_eval.gates import Limits, gates
from vivavoce_eval.report import QualityReport, as_json, as_text, write_html, write_markdown

from tests.eval.test_gates import VOICES
from tests.support.sounds import row, speechlike

ROWS = (
    row(number=1, text="A <b> & a | c", wrong_words=1, heard="be and sea"),
    row(number=2, speaker="michael", likest="michael", longest_pause_s=1.0),
    row(number=3),
)
RUN = Run({"source": "test"}, ROWS, VOICES)
REPORT = QualityReport(RUN, gates(RUN, None, None, Limits()), {"teacher": RUN})
SOUNDS = {found.number: speechlike(10) for found in ROWS}


def test_the_table_has_figures_mistakes_and_verdicts() -> None:
    text = as_text(REPORT)
    assert "word error rate %   8.33      8.33" in text
    assert "001 heart: [the birch canoe slid] -> [be and sea]" in text
    assert "002 michael: [the birch canoe slid] -> [the birch canoe slid] longest pause 1 s" in text
    assert "FAIL  longest pause: 1 s <= 0.8 s" in text
    assert "003" not in text


def test_the_json_line_is_one_line() -> None:
    line = as_json(REPORT)
    assert "\n" not in line
    found = json.loads(line)
    assert found["passed"] is False
    assert found["figures"]["word_error_rate"] == pytest.approx(8.3333)
    assert [gate["name"] for gate in found["gates"] if not gate["passed"]] == ["word error rate", "longest pause"]
    assert found["speakers"]["michael"]["f0_hz"] == 110


def test_html_is_one_file_with_pictures_and_sound(tmp_path: Path) -> None:
    write_html(REPORT, SOUNDS, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == page.count("data:audio/wav;base64,") == 3
    assert "A &lt;b&gt; &amp; a | c" in page
    assert page.index("longest pause 1 s") < page.rindex("A &lt;b&gt;"), "faulty sentences come first"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_markdown_has_its_pictures_beside_it(tmp_path: Path) -> None:
    write_markdown(REPORT, SOUNDS, tmp_path / "report.md")
    page = (tmp_path / "report.md").read_text()
    assert "| 001 | plain | heart | 1/4 | 3.20 | 190 | 2.00 | A <b> & a \\| c | be and sea |  |" in page
    for found in ROWS:
        picture = tmp_path / "report_files" / f"{found.number:03d}.png"
        assert f"(report_files/{picture.name})" in page
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.with_suffix(".wav").stat().st_size == 44 + 2 * 10 * 1920
