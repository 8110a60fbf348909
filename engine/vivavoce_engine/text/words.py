"""The words of a text, and the tokens that each of them is made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextWord:
    """The characters from `start` to `end` (exclusive), and the tokens from `first_token` to `end_token` (exclusive).

    `sign` is true if the last of its characters is neither a letter nor a digit, so that a pause may follow.
    """

    start: int
    end: int
    first_token: int
    end_token: int
    sign: bool
