"""Pages of the talker's KV cache. The positions of an utterance lie in pages, which may be anywhere in the cache."""

PAGE_POSITIONS = 64
"""Positions in a page. gpu/attention.py processes chunks of the same length, so that a chunk lies in one page."""


def pages_of(positions: int) -> int:
    """Number of pages that hold this number of positions."""
    return -(-positions // PAGE_POSITIONS)
