"""Pages of the talker's KV cache: an utterance's positions lie in pages, each wherever one was free."""

PAGE_POSITIONS = 64
"""Also the chunk that gpu/attention.py takes at once: a chunk's keys and values lie together."""


def pages_of(positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-positions // PAGE_POSITIONS)
