"""Sounds and pictures of a conversation: fetched or decoded from base64, and read by the process for recordings."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray
from vivavoce_engine import (
    ChatMessage,
    Overloaded,
    Picture,
    ReadPicture,
    ReadSound,
    ReferenceReader,
    Rejected,
    Sound,
)

from vivavoce_server.chat.schemas import ContentPart, Message
from vivavoce_server.chat.spoken_answers import SpokenAnswers
from vivavoce_server.errors import ApiError, invalid
from vivavoce_server.fetching import Fetcher, is_url
from vivavoce_server.references import decode_audio

MAX_MEDIA = 32
"""Most sounds and pictures of one conversation."""
MAX_WAITING = 16
"""Most files that wait for the reader, from all conversations."""
RETRY_S = 2.0
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
FIELD = {"text": "text", "input_audio": "input_audio", "image_url": "image_url", "refusal": "refusal"}


class MediaReader:
    """Reads the messages of conversations for one app. Only the event loop uses it; files are read on a thread."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._reader = ReferenceReader()
        self._thread = ThreadPoolExecutor(1, "vivavoce-media")
        self._waiting = 0

    async def messages(
        self, messages: Sequence[Message], spoken: SpokenAnswers, client: str
    ) -> tuple[ChatMessage, ...]:
        """The conversation, with its sounds and pictures.

        Raises:
            ApiError: 400, a message cannot be read; names its field.
            Overloaded: too many files are being read.
        """
        read = []
        for index, message in enumerate(messages):
            role = ROLES[message.role]
            parts: list[str | Sound | Picture] = []
            if message.audio is not None:
                parts.append(spoken.text_of(message.audio.id, client, f"messages[{index}].audio"))
            elif isinstance(message.content, str):
                parts.append(message.content)
            for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
                parts.append(await self._part(part, f"messages[{index}].content[{place}]"))
            if message.refusal is not None:
                parts.append(message.refusal)
            read.append(ChatMessage(role, tuple(parts)))  # type: ignore[arg-type]
        return tuple(read)

    async def _part(self, part: ContentPart, where: str) -> str | Sound | Picture:
        match part:
            case ContentPart(type="input_audio", input_audio=sound) if sound is not None:
                with _named(f"{where}.input_audio", "sound"):
                    data = await asyncio.to_thread(decode_audio, sound.data)
                    return Sound(await self._decoded(ReadSound(data)))
            case ContentPart(type="image_url", image_url=picture) if picture is not None:
                with _named(f"{where}.image_url", "picture"):
                    url = picture.url
                    fetched = self._fetcher.fetch(url) if is_url(url) else asyncio.to_thread(decode_audio, url)
                    return Picture(await self._decoded(ReadPicture(await fetched)))
            case ContentPart(type="refusal"):
                return part.refusal or ""
        return part.text or ""

    async def _decoded(self, question: ReadSound | ReadPicture) -> NDArray[Any]:
        if self._waiting >= MAX_WAITING:
            raise Overloaded(f"{self._waiting} sounds and pictures are being read already", RETRY_S)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._reader.decode, question)
        finally:
            self._waiting -= 1


@contextmanager
def _named(param: str, what: str) -> Iterator[None]:
    """Makes the errors of a file name the field that had it, and what it was meant to be."""
    try:
        yield
    except Rejected as error:
        message = str(error)
        raise invalid(param, message[:1].upper() + message[1:]) from error
    except ApiError as error:
        message = error.detail.message.replace("The reference audio", f"The {what}").replace("ref_audio", f"the {what}")
        raise ApiError(error.status, message[:1].upper() + message[1:], param, error.detail.code or "") from error


def check_messages(messages: Sequence[Message], *, takes_media: bool) -> None:
    """Raises a 400 for messages that cannot be answered, before any file of theirs is read."""
    media = 0
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.role in ("tool", "function") or message.tool_calls or message.function_call is not None:
            raise invalid(f"{where}.role", "Tools and functions are not supported here", "unsupported_parameter")
        if message.tool_call_id is not None:
            raise invalid(f"{where}.tool_call_id", "Tools are not supported here", "unsupported_parameter")
        if message.audio is not None and (message.role != "assistant" or message.content):
            raise invalid(f"{where}.audio", "A spoken answer is an assistant's, and stands in place of its content")
        if message.content is None and message.audio is None and message.refusal is None:
            raise invalid(f"{where}.content", "Missing required field: content", "missing_required_parameter")
        for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
            media += _check_part(part, message.role, f"{where}.content[{place}]", takes_media=takes_media)
    if media > MAX_MEDIA:
        raise invalid("messages", f"The conversation has {media} sounds and pictures; the most is {MAX_MEDIA}")
    if messages[-1].role != "user":
        raise invalid("messages", "The last message must be the user's, which is answered")


def _check_part(part: ContentPart, role: str, where: str, *, takes_media: bool) -> bool:
    """True if a part is a sound or a picture. Raises as `check_messages`."""
    if part.type == "file":
        raise invalid(f"{where}.file", "Files are not supported here", "unsupported_parameter")
    given = [name for name in FIELD if getattr(part, name) is not None]
    if given != [part.type]:
        raise invalid(where, f"A part of type {part.type!r} has the field {part.type!r}, and no other one beside it")
    if part.type not in ("input_audio", "image_url"):
        return False
    if role != "user":
        raise invalid(where, "Sounds and pictures are in the user's messages alone")
    if not takes_media:
        message = "The thinker of this server is reached by text alone: it is told no sounds and no pictures"
        raise invalid(where, message, "not_available")
    return True
