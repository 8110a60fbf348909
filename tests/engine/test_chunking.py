"""The ramp from a small first piece of audio to large ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vivavoce_engine.chunking import chunk_frames


def ramp(first_frames: int, max_frames: int, pieces: int) -> list[int]:
    frames: list[int] = []
    for _ in range(pieces):
        frames.append(chunk_frames(sum(frames), first_frames, max_frames))
    return frames


@pytest.mark.parametrize(
    ("first_frames", "max_frames", "expected"),
    [
        (1, 8, [1, 1, 2, 4, 8, 8]),
        (2, 8, [2, 2, 4, 8, 8, 8]),
        (3, 8, [3, 3, 6, 8, 8, 8]),
        (2, 5, [2, 2, 4, 5, 5, 5]),
        (8, 8, [8, 8, 8, 8, 8, 8]),
        (20, 8, [8, 8, 8, 8, 8, 8]),
        (1, 1, [1, 1, 1, 1, 1, 1]),
    ],
)
def test_pieces_grow_from_the_first_to_the_largest(first_frames: int, max_frames: int, expected: list[int]) -> None:
    assert ramp(first_frames, max_frames, 6) == expected


@given(st.integers(1, 40), st.integers(1, 40))
def test_no_later_piece_is_longer_than_what_was_delivered_before_it(first_frames: int, max_frames: int) -> None:
    frames = ramp(first_frames, max_frames, 12)
    assert frames == sorted(frames)
    assert frames[0] == min(first_frames, max_frames)
    assert all(frames[piece] <= sum(frames[:piece]) for piece in range(1, 12))
    assert frames[-1] == max_frames
