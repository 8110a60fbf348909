"""The conversation of a Realtime connection: texts of the user, and what was spoken."""

import math
from dataclasses import dataclass, field
from typing import Literal

from vivavoce_server.errors import ApiError, invalid
from vivavoce_server.live.realtime_events import NOT_AVAILABLE, Message, new_id
from vivavoce_server.said import PartTimes, Said

MAX_ITEMS = 500
"""Items that a conversation keeps. The oldest ones go when others come."""
MAX_CHARS = 2**20
"""Characters that a conversation keeps."""
ROOT = "root"
"""A client's name for the place before the first item."""
SPOKEN_PARTS = ("output_audio", "audio")
PARTS = ("input_text", "output_text", "text", *SPOKEN_PARTS)


@dataclass
class ItemAudio:
    """The audio of an item, while it is made and later. The parts of the text end before its characters `ends`."""

    text: str
    ends: list[int]
    times: PartTimes
    sent_s: float = 0.0

    def said(self, seconds: float) -> Said:
        """Text and frames of the first seconds."""
        return self.times.said(self.text, self.ends, seconds)


@dataclass
class Item:
    """A message. Only the assistant's have been spoken."""

    id: str
    role: Literal["user", "assistant", "system"]
    content: list[dict[str, str]]
    status: Literal["in_progress", "completed", "incomplete"] = "completed"
    answered: bool = False
    """True once a response has spoken the text of this item."""
    audio: ItemAudio | None = field(default=None, repr=False)
    is_truncated: bool = False

    @property
    def text(self) -> str:
        return "".join(part.get("text") or part.get("transcript") or "" for part in self.content)

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "object": "realtime.item",
            "type": "message",
            "role": self.role,
            "status": self.status,
            "content": self.content,
        }


def item_of(message: Message, field: str) -> Item:
    """The item in a client's event. `field` is its place there.

    Raises:
        ApiError: 400, the item needs a language model or a microphone; names the field.
    """
    if message.type != "message":
        raise invalid(f"{field}.type", f"Items are messages here, not {message.type!r}", NOT_AVAILABLE)
    content = []
    for index, part in enumerate(message.content):
        if part.type not in PARTS:
            refusal = f"A message has parts of type input_text or output_text here, not {part.type!r}"
            raise invalid(f"{field}.content.{index}.type", refusal, NOT_AVAILABLE)
        spoken = part.type in SPOKEN_PARTS
        text = part.transcript if spoken else part.text
        content.append({"type": part.type, "transcript" if spoken else "text": text or ""})
    return Item(message.id or new_id("item"), message.role, content)


class Conversation:
    """Items in order."""

    def __init__(self) -> None:
        self.id = new_id("conv")
        self._items: list[Item] = []

    def add(self, item: Item, previous_id: str | None = None) -> str | None:
        """Adds an item behind another one, or at the end. Returns the id of the item before it.

        Raises:
            ApiError: 400, there is an item with this id already; 404, there is no item `previous_id`.
        """
        if any(other.id == item.id for other in self._items):
            raise invalid("item.id", f"There is an item {item.id!r} already")
        if previous_id is None:
            index = len(self._items)
        elif previous_id == ROOT:
            index = 0
        else:
            index = self._items.index(self.find(previous_id, "previous_item_id")) + 1
        self._items.insert(index, item)
        before = self._items[index - 1].id if index else None
        while len(self._items) > MAX_ITEMS or sum(len(other.text) for other in self._items) > MAX_CHARS:
            del self._items[0]
        return before

    def find(self, item_id: str, param: str = "item_id") -> Item:
        """The item with this id. Raises a 404 without one."""
        for item in self._items:
            if item.id == item_id:
                return item
        raise ApiError(404, f"There is no item {item_id!r} in the conversation", param, "item_not_found")

    def delete(self, item_id: str) -> None:
        """Removes an item. Raises a 404 without one."""
        self._items.remove(self.find(item_id))

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int) -> None:
        """Forgets the text of a spoken item behind the last word that its listener heard to its end, or the last part.

        Raises:
            ApiError: 404, there is no such item; 400, the item or the part was not spoken, or has less audio.
        """
        item = self.find(item_id)
        if item.role != "assistant":
            raise invalid("item_id", f"The item {item_id!r} was not spoken")
        if content_index >= len(item.content):
            raise invalid("content_index", f"The item {item_id!r} has {len(item.content)} parts")
        sent_ms = math.ceil(round(item.audio.sent_s * 1000, 3)) if item.audio else 0
        if audio_end_ms > sent_ms:
            message = f"The item {item_id!r} has {sent_ms} ms of audio, which is less than {audio_end_ms} ms"
            raise invalid("audio_end_ms", message)
        part = item.content[content_index]
        heard = item.audio.said(audio_end_ms / 1000).text if item.audio else ""
        part["transcript" if part["type"] in SPOKEN_PARTS else "text"] = heard
        item.is_truncated = True

    def unanswered(self) -> list[Item]:
        """The user's items since the last response, and behind the last message of the assistant."""
        items: list[Item] = []
        for item in reversed(self._items):
            if item.role == "assistant":
                break
            if item.role == "user" and not item.answered:
                items.insert(0, item)
        return items
