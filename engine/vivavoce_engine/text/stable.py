"""Text that arrives in fragments → token ids that later text cannot change."""

import unicodedata
from typing import Protocol


class PieceTokenizer(Protocol):
    """What StableText needs of a byte-pair tokenizer."""

    def encode(self, text: str) -> list[int]: ...
    def normalize(self, text: str) -> str: ...
    def pieces(self, normalized: str) -> list[str]: ...


class StableText:
    """Commits a piece once no later text can change it, so the ids of any fragmentation are those of the whole text.

    The tokenizer normalises (NFC), splits text into pieces by a regular expression without look-behind, and merges
    bytes inside a piece. So what is behind a piece that cannot grow any more is final. What can still grow:

    - the last piece;
    - white space at the end, however many pieces it is now: a newline or a letter yet to come re-divides it;
    - a piece whose successor begins with a combining mark: a further mark may combine with the letter before it.
    """

    def __init__(self, tokenizer: PieceTokenizer) -> None:
        self._tokenizer = tokenizer
        self._held = ""

    def append(self, text: str) -> list[int]:
        """The ids that this fragment makes final, often none."""
        self._held = self._tokenizer.normalize(self._held + text)
        pieces = self._tokenizer.pieces(self._held)
        stable = "".join(pieces[: self._first_unstable(pieces)])
        self._held = self._held[len(stable) :]
        return self._tokenizer.encode(stable) if stable else []

    def close(self) -> list[int]:
        """The ids of all that is held: no text will follow."""
        held, self._held = self._held, ""
        return self._tokenizer.encode(held) if held else []

    @staticmethod
    def _first_unstable(pieces: list[str]) -> int:
        index = len(pieces)
        while index and pieces[index - 1].isspace():
            index -= 1
        if index == len(pieces):
            index = max(0, index - 1)
        while index and index < len(pieces) and unicodedata.category(pieces[index][0]).startswith("M"):
            index -= 1
        return index
