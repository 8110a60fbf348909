"""Tokenises text that arrives in fragments. Emits only ids that later text cannot change."""

import unicodedata
from itertools import pairwise
from typing import Protocol

from vivavoce_engine.errors import Rejected
from vivavoce_engine.text.words import Span, TextWord, WordSplitter

MAX_HELD_CHARS = 4096
"""Longest text without a place where its tokens are final, in characters."""
OFTEN_SCANNED_CHARS = 64
"""Held text of this length is scanned at each fragment. A longer one has no word's end yet, and may wait."""


class PieceTokenizer(Protocol):
    """The part of a byte-pair tokenizer that StableText uses."""

    def encode(self, text: str) -> list[int]: ...
    def encode_spans(self, text: str) -> tuple[list[int], list[Span]]: ...
    def pieces(self, text: str) -> list[tuple[int, str]]: ...


class StableText:
    """Emits the ids of a piece once no later text can change it. Any fragmentation gives the ids of the whole text.

    The tokenizer normalises (NFC), splits text into pieces by a regular expression without look-behind, and merges
    bytes only within a piece. Pieces are therefore final up to the first one that may still change:

    - the last piece, which may grow;
    - white space at the end, even if it is several pieces: a later newline or letter splits it differently;
    - a piece followed by one that begins with a combining mark: a further mark may combine with the letter before.

    The cost is linear in the length of all fragments: a long text that is held back is scanned again only after it has
    grown by a part of its length.
    """

    def __init__(self, tokenizer: PieceTokenizer, word_times: bool = False) -> None:
        self._tokenizer = tokenizer
        self._held = ""
        """Text whose ids may still change, as it came."""
        self._unscanned = ""
        """Text behind it."""
        self._splitter = WordSplitter() if word_times else None
        self._committed = 0
        """Characters whose ids have been emitted."""
        self._words: list[TextWord] = []

    def append(self, text: str, word_ends: bool = False) -> list[int]:
        """Takes the next fragment. Returns the ids that it makes final, often none.

        `word_ends` says that the fragment ends with a letter or a digit, and that no letter, digit or mark follows it.
        The last word is then final, because a piece with a letter ends before every other character.

        Raises:
            Rejected: the text has more than MAX_HELD_CHARS characters without the end of a word.
        """
        self._unscanned += text
        if word_ends:
            return self.close()
        if not text or 8 * len(self._unscanned) < len(self._held) - OFTEN_SCANNED_CHARS:
            return []
        held = self._held + self._unscanned
        pieces = self._tokenizer.pieces(held)
        ends = [*(start for start, _ in pieces[1:]), len(held)]
        stable = self._first_unstable([piece for _, piece in pieces])
        cut = ends[stable - 1] if stable else 0
        self._held, self._unscanned = held[cut:], ""
        if len(self._held) > MAX_HELD_CHARS:
            message = f"the text has more than {MAX_HELD_CHARS} characters without the end of a word"
            raise Rejected("text", f"{message}: put spaces between its words")
        # Several pieces of white space, as before a digit, would be one piece at the end of a text.
        words = stable
        while words and pieces[words - 1][1].isspace():
            words -= 1
        edges = [0, *(ends[at - 1] for at in range(max(1, words), stable + 1))]
        return [token for edge, end in pairwise(edges) if edge < end for token in self._encode(held[edge:end])]

    def close(self) -> list[int]:
        """Returns the ids of all text still held back, at the text's end."""
        held = self._held + self._unscanned
        self._held = self._unscanned = ""
        return self._encode(held) if held else []

    def take_words(self, complete: bool) -> list[TextWord]:
        """The words that have become certain since the last call; `complete` says that no text follows."""
        if complete and self._splitter is not None:
            self._words += self._splitter.close()
        words, self._words = self._words, []
        return words

    def _encode(self, text: str) -> list[int]:
        """The ids of text that is final."""
        if self._splitter is None:
            return self._tokenizer.encode(text)
        ids, spans = self._tokenizer.encode_spans(text)
        at = self._committed
        self._words += self._splitter.add(text, [(at + start, at + end) for start, end in spans])
        self._committed += len(text)
        return ids

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
