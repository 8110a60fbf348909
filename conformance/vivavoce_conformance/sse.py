"""Events of a text/event-stream, as the HTML standard (9.2) reads them."""

import json
from dataclasses import dataclass
from typing import Any

from vivavoce_conformance.target import Failed, printable


@dataclass(frozen=True, slots=True)
class Event:
    """An event's name ("message" without one), and its data as JSON."""

    name: str
    data: dict[str, Any]


def parse_events(body: bytes) -> list[Event]:
    """Reads all events. Raises Failed for what is no stream of JSON objects."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise Failed("the events are not UTF-8") from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    *blocks, rest = text.split("\n\n")
    if rest.strip():
        raise Failed(f"the last event does not end with an empty line: {printable(rest[-80:])}")
    events = [event for block in blocks if (event := _parse_block(block)) is not None]
    return [event for event in events if event.data]


def _parse_block(block: str) -> Event | None:
    """An event; None for comments alone and for the [DONE] that some servers append."""
    name, lines = "message", []
    for line in block.split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            lines.append(value)
    data = "\n".join(lines)
    if not data or data == "[DONE]":
        return None
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise Failed(f"the data of an event are no JSON object: {printable(data[:80])}")
    return Event(name, given)
