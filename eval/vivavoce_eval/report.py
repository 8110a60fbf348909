"""A run as text: a table for the terminal, one JSON line, Markdown or HTML with spectrograms."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from vivavoce_eval.figures import Run, figures_of, rounded
from vivavoce_eval.gates import Gate, faults
from vivavoce_eval.hearing import Row
from vivavoce_eval.pictures import spectrogram
from vivavoce_eval.waves import Samples, write_wav

PICTURES = 12
"""Number of sentences that a report shows as pictures. Faulty ones come first."""
COLUMNS = ("number", "category", "speaker", "wrong", "OVRL", "F0 Hz", "s", "text", "heard", "faults")
STYLE = """\
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { border-bottom: 1px solid #ddd; padding: .25rem .6rem;
text-align: left; vertical-align: top; } .bad { color: #b00020; font-weight: 600; } figure { margin: 1.5rem 0; }
figcaption { color: #555; } img { display: block; max-width: 100%; } @media (prefers-color-scheme: dark) {
body { background: #161616; color: #ddd; } td, th { border-color: #444; } .bad { color: #ff7a8a; } }"""


@dataclass(frozen=True, slots=True)
class QualityReport:
    """A run with its gates and references. `references` are earlier runs by name, of which the same sentences count."""

    run: Run
    gates: Sequence[Gate]
    references: Mapping[str, Run]

    @property
    def passed(self) -> bool:
        return all(gate.passed for gate in self.gates)

    def figure_rows(self) -> list[tuple[str, ...]]:
        """Header and rows of a table: a figure, this run's value, the value of each reference."""
        known = {name: rows for name, run in self.references.items() if (rows := run.rows_shared_with(self.run.rows))}
        columns = [figures_of(self.run.rows), *map(figures_of, known.values())]
        table: list[tuple[str, ...]] = [("", "this run", *known)]
        table.append(("sentences", *(str(figures.sentences) for figures in columns)))
        table.append(("word error rate %", *(f"{figures.word_error_rate:.2f}" for figures in columns)))
        for category in columns[0].by_category:
            rates = (figures.by_category.get(category) for figures in columns)
            table.append((f"  {category}", *("" if rate is None else f"{rate:.1f}" for rate in rates)))
        for field, name in (("ovrl", "DNSMOS OVRL"), ("sig", "SIG"), ("bak", "BAK"), ("p808", "P808")):
            table.append((name, *(f"{getattr(figures, field):.2f}" for figures in columns)))
        table.append(("stops by itself %", *(f"{100 * figures.stops:.1f}" for figures in columns)))
        table.append(("ms a character", *(f"{1000 * figures.s_per_character:.1f}" for figures in columns)))
        table.append(("leading silence s", *(f"{figures.leading_silence_s:.2f}" for figures in columns)))
        table.append(("trailing silence s", *(f"{figures.trailing_silence_s:.2f}" for figures in columns)))
        table.append(("voiced share", *(f"{figures.voiced:.2f}" for figures in columns)))
        return table

    def speaker_rows(self) -> list[tuple[str, ...]]:
        voices = self.run.voices
        pitches_of = (f"F0 {name}" for name in self.references)
        table: list[tuple[str, ...]] = [("speaker", "same", "nearest other", "F0 Hz", *pitches_of)]
        for name, voice in voices.items():
            others = [voice.different(other) for key, other in voices.items() if key != name]
            known = (run.voices.get(name) for run in self.references.values())
            pitches = (None if one is None else one.f0_hz for one in (voice, *known))
            cosines = (voice.same, max(others, default=None))
            table.append((name, *(_number(value, 3) for value in cosines), *(_number(value, 0) for value in pitches)))
        return table


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def cells(row: Row) -> tuple[str, ...]:
    """Cells of a sentence in the table COLUMNS. The heard text is shown only if it is wrong."""
    heard = row.heard if row.wrong_words else ""
    return (
        f"{row.number:03d}",
        row.category,
        row.speaker,
        f"{row.wrong_words}/{row.words}",
        f"{row.ovrl:.2f}",
        _number(row.f0_hz, 0),
        f"{row.duration_s:.2f}",
        row.text,
        heard,
        "; ".join(faults(row)),
    )


def as_text(report: QualityReport) -> str:
    """Report for a terminal."""
    parts = [_aligned(report.figure_rows()), _aligned(report.speaker_rows())]
    parts.append("\n".join(_remark(row) for row in report.run.rows if row.wrong_words or faults(row)))
    parts.append("\n".join(str(gate) for gate in report.gates))
    return "\n\n".join(part for part in parts if part)


def _remark(row: Row) -> str:
    return f"{row.number:03d} {row.speaker}: [{row.truth}] -> [{row.heard}] {'; '.join(faults(row))}".rstrip()


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "\n".join(line.rstrip() for line in lines)


def as_json(report: QualityReport) -> str:
    """Report as one line of JSON, without the sentences."""
    document = {
        "about": report.run.about,
        "figures": asdict(figures_of(report.run.rows)),
        "speakers": {name: {"f0_hz": voice.f0_hz, "same": voice.same} for name, voice in report.run.voices.items()},
        "gates": [{**asdict(gate), "passed": gate.passed} for gate in report.gates],
        "passed": report.passed,
    }
    return json.dumps(rounded(document))


def pictured(report: QualityReport, sounds: Mapping[int, Samples]) -> list[Row]:
    """Rows that a report shows as pictures: faulty ones first, then those with the most wrong words."""
    rows = sorted(report.run.rows, key=lambda row: (not faults(row), -row.wrong_words, row.number))
    shown = max(PICTURES, sum(bool(faults(row)) for row in rows))
    return [row for row in rows if row.number in sounds][:shown]


def write_markdown(report: QualityReport, sounds: Mapping[int, Samples], path: Path) -> None:
    """Writes a report as Markdown, with pictures and sound files in a folder beside it."""
    folder = path.with_name(f"{path.stem}_files")
    folder.mkdir(parents=True, exist_ok=True)
    parts = ["# Quality of a voice", _about(report), _markdown(report.figure_rows()), _markdown(report.speaker_rows())]
    parts.append("\n".join(f"- {gate}" for gate in report.gates))
    parts.append(_markdown([COLUMNS, *map(cells, report.run.rows)]))
    for row in pictured(report, sounds):
        name = f"{row.number:03d}"
        (folder / f"{name}.png").write_bytes(spectrogram(sounds[row.number]))
        write_wav(folder / f"{name}.wav", sounds[row.number])
        pictures = f"![{name}]({folder.name}/{name}.png) [sound]({folder.name}/{name}.wav)"
        parts.append(f"{name} {row.speaker}: {row.text} {'; '.join(faults(row))}\n\n{pictures}")
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _about(report: QualityReport) -> str:
    verdict = "passed" if report.passed else "FAILED"
    return f"{verdict}. " + ", ".join(f"{name}: {value}" for name, value in report.run.about.items())


def _markdown(table: Sequence[Sequence[str]]) -> str:
    header, *rows = ([cell.replace("|", "\\|") for cell in row] for row in table)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_html(report: QualityReport, sounds: Mapping[int, Samples], path: Path) -> None:
    """Writes a report as one HTML file, with pictures and sound inside."""
    parts = ["<h1>Quality of a voice</h1>", f"<p>{escape(_about(report))}</p>"]
    parts += [_html(report.figure_rows()), _html(report.speaker_rows()), "<ul>"]
    parts += [f"<li{'' if gate.passed else ' class=bad'}>{escape(str(gate))}</li>" for gate in report.gates]
    parts += ["</ul>", _html([COLUMNS, *map(cells, report.run.rows)])]
    for row in pictured(report, sounds):
        picture = base64.b64encode(spectrogram(sounds[row.number])).decode()
        caption = f"{row.number:03d} {row.speaker}: {row.text}"
        parts.append(
            f'<figure><figcaption>{escape(caption)} <span class="bad">{escape("; ".join(faults(row)))}</span>'
            f'</figcaption><img alt="spectrogram" src="data:image/png;base64,{picture}">'
            f"{_player(sounds[row.number])}</figure>"
        )
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>Quality of a voice</title><style>{STYLE}</style>'
    path.write_text(f'<!doctype html><html lang="en">{head}<body>\n{body}\n</body></html>\n', encoding="utf-8")


def _html(table: Sequence[Sequence[str]]) -> str:
    header, *rows = table
    lines = ["<table><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in header) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def _player(samples: Samples) -> str:
    file = io.BytesIO()
    write_wav(file, samples)
    return f'<audio controls src="data:audio/wav;base64,{base64.b64encode(file.getvalue()).decode()}"></audio>'
