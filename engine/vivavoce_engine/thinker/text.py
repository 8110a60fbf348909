"""A thinker's text as token ids, and back. Torch-free.

A conversation is ChatML: `<|im_start|>ROLE`, a newline, the content, `<|im_end|>`, a newline. Control tokens are put in
by their ids, and a client's text never becomes one, whatever it says.
"""

import codecs
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vivavoce_engine.checkpoint.json_file import JsonFile
from vivavoce_engine.errors import CheckpointError
from vivavoce_engine.text.prompt import Tokenizer


@dataclass(frozen=True, slots=True)
class MediaTokens:
    """A sound's or a picture's place in a prompt: its kind, and the number of tokens that it takes."""

    kind: Literal["sound", "picture"]
    tokens: int


Content = Sequence[str | MediaTokens]


@dataclass(frozen=True, slots=True)
class ControlTokens:
    """Ids of the tokens that shape a conversation, as config.json has them."""

    im_start: int
    im_end: int
    audio_start: int
    audio: int
    audio_end: int
    vision_start: int
    image: int
    vision_end: int

    @classmethod
    def of(cls, config: JsonFile) -> "ControlTokens":
        thinker = config.section("thinker_config")
        return cls(
            im_start=config.value("im_start_token_id", int),
            im_end=config.value("im_end_token_id", int),
            audio_start=thinker.value("audio_start_token_id", int),
            audio=thinker.value("audio_token_id", int),
            audio_end=thinker.value("audio_end_token_id", int),
            vision_start=thinker.value("vision_start_token_id", int),
            image=thinker.value("image_token_id", int),
            vision_end=thinker.value("vision_end_token_id", int),
        )


class ThinkerText:
    """The text side of a thinker's checkpoint in a folder. Raises CheckpointError if its files cannot be read."""

    def __init__(self, path: Path) -> None:
        self.control = ControlTokens.of(JsonFile(path / "config.json"))
        self._tokenizer = Tokenizer(path)
        self._bytes = _bytes_of_tokens(path)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, never those of control tokens."""
        return self._tokenizer.encode(text)

    def prompt(self, turns: Sequence[tuple[str, Content]]) -> list[int]:
        """Ids of a conversation, each turn a role and its content, up to where its answer begins."""
        control = self.control
        ids: list[int] = []
        for role, content in turns:
            ids += [control.im_start, *self._content(role, content), control.im_end, *self.encode("\n")]
        return [*ids, control.im_start, *self.encode("assistant\n")]

    def _content(self, role: str, content: Content) -> Iterator[int]:
        """Ids of a turn. Text between two control tokens is encoded as one, as the reference does."""
        control, text = self.control, f"{role}\n"
        for part in content:
            if isinstance(part, str):
                text += part
                continue
            yield from self.encode(text)
            text = ""
            if part.kind == "sound":
                yield from (control.audio_start, *[control.audio] * part.tokens, control.audio_end)
            else:
                yield from (control.vision_start, *[control.image] * part.tokens, control.vision_end)
        yield from self.encode(text)

    def decoder(self) -> "TokenDecoder":
        """A decoder of one answer."""
        return TokenDecoder(self._bytes)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a whole answer."""
        decoder = self.decoder()
        return "".join(map(decoder.feed, ids)) + decoder.finish()


class TokenDecoder:
    """Turns token ids into text, one at a time. The bytes of a character may come in several tokens."""

    def __init__(self, token_bytes: dict[int, bytes]) -> None:
        self._bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """The characters that this token completes. Control tokens and unknown ids have none."""
        return self._utf8.decode(self._bytes.get(token_id, b""))

    def finish(self) -> str:
        """The replacement for a character that was never completed, or nothing."""
        return self._utf8.decode(b"", final=True)


def _bytes_of_tokens(path: Path) -> dict[int, bytes]:
    """Id → bytes of each token that is text. Control tokens are left out."""
    signs = _signs_of_bytes()
    try:
        vocabulary = json.loads((path / "vocab.json").read_text(encoding="utf-8"))
        added = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))["added_tokens_decoder"]
        found = {number: bytes(signs[sign] for sign in token) for token, number in vocabulary.items()}
        found |= {int(number): each["content"].encode() for number, each in added.items() if not each["special"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: the tokenizer files cannot be read: {error}") from error
    return found


def _signs_of_bytes() -> dict[str, int]:
    """Sign → the byte that it stands for in a byte-level vocabulary.

    Bytes that Latin-1 prints stand for themselves. The others have the signs from U+0100 on, in their order.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}
