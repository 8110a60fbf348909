"""Pause tags: [pause:0.5s], [pause:500ms], and SSML's <break>, which becomes one."""

import re

PAUSE_TAG = re.compile(r"\[pause:([^\]\[\n]*)\]", re.IGNORECASE)
BREAK_TAG = re.compile(r"<break\b([^<>]*)>", re.IGNORECASE)
LENGTH = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s)\s*", re.IGNORECASE)
ATTRIBUTE = re.compile(r"(time|strength)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", re.IGNORECASE)
STRENGTHS_S = {"none": 0.0, "x-weak": 0.0, "weak": 0.25, "medium": 0.5, "strong": 0.75, "x-strong": 1.0}
"""Seconds of a <break> that names a strength (SSML 1.1, section 3.2.3, leaves them to the processor)."""


def pause_s(tag: str) -> float | None:
    """Seconds of a pause tag. None if it gives no length, or none that can be read."""
    match = PAUSE_TAG.fullmatch(tag)
    return None if match is None else _seconds(match[1])


def _seconds(length: str) -> float | None:
    match = LENGTH.fullmatch(length)
    if match is None:
        return None
    return float(match[1]) / (1000 if match[2].lower() == "ms" else 1)


def pause_of_break(tag: str) -> str:
    """The pause tag that says what a <break> says. A break without a readable length is a medium one."""
    attributes = {name.lower(): double or single for name, double, single in ATTRIBUTE.findall(tag)}
    seconds = _seconds(attributes.get("time", ""))
    if seconds is None:
        seconds = STRENGTHS_S.get(attributes.get("strength", "medium").lower(), STRENGTHS_S["medium"])
    return f"[pause:{round(seconds * 1000)}ms]"
