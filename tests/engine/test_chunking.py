"""The ramp from a small first chunk of audio to large ones, and the audio that a listener has left to play."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vivavoce_engine.batching.chunking import Playback, chunk_frames, host_chunk_frames


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


@pytest.mark.parametrize(("rows", "expected"), [(1, 4), (2, 4), (3, 1), (4, 1), (256, 1)])
def test_many_rows_need_no_long_pieces_on_a_host(rows: int, expected: int) -> None:
    assert host_chunk_frames(rows) == expected


def test_a_listener_starts_with_the_first_piece_and_waits_when_nothing_is_left() -> None:
    playback = Playback()
    assert math.isinf(playback.runs_dry_s)
    assert playback.hear(10.0, 0.5) == 0
    assert playback.runs_dry_s == 10.5
    assert playback.hear(10.25, 0.5) == 0, "it comes before the first is played"
    assert playback.runs_dry_s == 11.0
    assert playback.hear(12.0, 1.0) == 1.0
    assert playback.runs_dry_s == 13.0
