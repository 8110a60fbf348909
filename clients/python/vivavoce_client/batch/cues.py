"""Lines of a SubRip file (SRT), with the times of their cues."""

import re

from vivavoce_client.batch.lines import Line
from vivavoce_client.input_files import BadFile

CLOCK = r"(\d{1,3}):([0-5]?\d):([0-5]?\d)[,.](\d{1,3})"
"""Hours of three digits at most: the whole of a job is silent up to the first cue."""
TIMES = re.compile(rf"^\s*{CLOCK}\s*-->\s*{CLOCK}")
MARKUP = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")
"""Tags of SubRip files, and overrides such as {\\an8}."""


def srt_lines(text: str, name: str) -> list[Line]:
    """A line for each cue that says something. Raises BadFile."""
    cues: list[tuple[int, float, list[str]]] = []
    held = ""
    for number, row in enumerate(text.split("\n"), 1):
        if found := TIMES.match(row):
            if cues:
                # The row before the times is the cue's number, which is no text of the cue before it.
                _drop_number(cues[-1][2])
            elif held and not held.isdigit():
                raise BadFile(f"{name}, line {number - 1} is {held[:60]!r}, not the number of a cue")
            cues.append((number, _seconds(found), []))
        elif cues:
            cues[-1][2].append(row)
        elif row.strip():
            held = row.strip()
    if not cues and text.strip():
        raise BadFile(f"{name} has no cue with times such as 00:00:01,000 --> 00:00:02,500")
    said = ((number, start_s, " ".join(MARKUP.sub("", " ".join(rows)).split())) for number, start_s, rows in cues)
    return [Line(text, f"{name}, line {number}", start_s=start_s) for number, start_s, text in said if text]


def _drop_number(rows: list[str]) -> None:
    while rows and not rows[-1].strip():
        rows.pop()
    if rows and rows[-1].strip().isdigit():
        rows.pop()


def _seconds(found: re.Match[str]) -> float:
    hours, minutes, seconds = (int(part) for part in found.groups()[:3])
    return hours * 3600 + minutes * 60 + seconds + int(found[4].ljust(3, "0")) / 1000
