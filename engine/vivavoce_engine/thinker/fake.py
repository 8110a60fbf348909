"""A thinker without a model, for tests and for work on clients: it repeats what it is told, a character a token."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Sequence

import numpy as np

from vivavoce_engine.fake_runner import EMBEDDING_SIZE, FAKE_ANSWERS
from vivavoce_engine.request import ThinkerMedia, ThinkerPrompt
from vivavoce_engine.thinker.interface import (
    ChatMessage,
    Picture,
    Sound,
    Thinker,
    ThinkerEnd,
    ThinkerToken,
    ThinkOptions,
    Thought,
)
from vivavoce_engine.thinker.text import Content, ControlTokens, MediaTokens, ThinkerText, TokenDecoder

TOKENS = FAKE_ANSWERS.tokens
AUDIO_START, AUDIO_END, VISION_END = 0xFFFE, 0xFFFF, 0x1FFFE
"""Code points that are no characters."""
MEDIA_TOKENS = 4
"""Tokens of any sound, and of any picture, in two rows and two columns."""


class CodePoints(ThinkerText):
    """The text of a fake thinker: its token ids are code points, and a role is one token."""

    def __init__(self) -> None:
        self.control = ControlTokens(
            im_start=TOKENS.im_start,
            im_end=TOKENS.ends[0],
            audio_start=AUDIO_START,
            audio=TOKENS.audio,
            audio_end=AUDIO_END,
            vision_start=TOKENS.vision_start,
            image=TOKENS.image,
            vision_end=VISION_END,
        )

    def encode(self, text: str) -> list[int]:
        for role, token in (("user\n", TOKENS.user), ("assistant\n", TOKENS.assistant)):
            if text.startswith(role):
                return [token, *map(ord, text.removeprefix(role[:-1]))]
        return [*map(ord, text)]

    def decoder(self) -> TokenDecoder:
        return _Characters()


class _Characters(TokenDecoder):
    """A decoder whose tokens are whole characters."""

    def __init__(self) -> None:
        super().__init__({})

    def feed(self, token_id: int) -> str:
        return chr(token_id) if token_id <= sys.maxunicode else ""


def echo(messages: Sequence[ChatMessage]) -> str:
    """The answer of a FakeThinker: the text of the last message, and a count of its sounds and pictures."""
    parts = messages[-1].parts
    told = "".join(part for part in parts if isinstance(part, str))
    media = [type(part).__name__.lower() for part in parts if not isinstance(part, str)]
    return f"You said: {told}" + (f" And I got {', '.join(media)}." if media else "")


class FakeThinker(Thinker):
    """Answers with the text that `answer` makes of a conversation, a character each `token_s` seconds."""

    def __init__(self, answer: Callable[[Sequence[ChatMessage]], str] = echo, token_s: float = 0.0) -> None:
        super().__init__(CodePoints())
        self._answer = answer
        self._token_s = token_s
        self.writing = 0
        """Number of answers that have not ended."""

    @property
    def takes_media(self) -> bool:
        return True

    @property
    def ready(self) -> bool:
        return True

    @property
    def failed(self) -> bool:
        return False

    def start(self) -> None:
        """Nothing is started."""

    def stop(self) -> None:
        """Nothing runs."""

    async def aclose(self) -> None:
        """Nothing is opened on an event loop."""

    async def stream(self, messages: Sequence[ChatMessage], options: ThinkOptions) -> AsyncGenerator[Thought, None]:
        self.writing += 1
        try:
            yield self._prompt(messages)
            text = self._answer(messages)
            for character in text[: options.max_tokens]:
                await asyncio.sleep(self._token_s)
                yield ThinkerToken(ord(character))
            yield ThinkerEnd("length" if len(text) > options.max_tokens else "stop")
        finally:
            self.writing -= 1

    def _prompt(self, messages: Sequence[ChatMessage]) -> ThinkerPrompt:
        turns: list[tuple[str, Content]] = []
        pictures = 0
        for message in messages:
            content: list[str | MediaTokens] = []
            for part in message.parts:
                match part:
                    case Sound():
                        content.append(MediaTokens("sound", MEDIA_TOKENS))
                    case Picture():
                        content.append(MediaTokens("picture", MEDIA_TOKENS))
                        pictures += 1
                    case _:
                        content.append(part)
            turns.append((message.role, content))
        ids = self.text.prompt(turns)
        at = np.flatnonzero(np.isin(ids, (TOKENS.audio, TOKENS.image))).astype(np.int64)
        hidden = np.zeros((len(at), EMBEDDING_SIZE), np.float32)
        return ThinkerPrompt(tuple(ids), ThinkerMedia(at, hidden, ((2, 2),) * pictures) if len(at) else None)
