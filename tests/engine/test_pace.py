"""The rule that decides when frames become audio: the ramp of pieces, the cut for a listener who would run dry."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vivavoce_engine.batching.capacity import CORES, DEVICE, HOST, Capacity
from vivavoce_engine.batching.listener import Playback
from vivavoce_engine.batching.pace import UNHURRIED, Moment, StepDurations, next_piece, ramp
from vivavoce_engine.batching.sequence import Sequence

from tests.support.utterances import pending, piece

FRAME_S = 0.08


def ramp_of(first_frames: int, max_frames: int, pieces: int) -> list[int]:
    frames: list[int] = []
    for _ in range(pieces):
        frames.append(ramp(sum(frames), first_frames, max_frames))
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
    assert ramp_of(first_frames, max_frames, 6) == expected


@given(st.integers(1, 40), st.integers(1, 40))
def test_no_later_piece_is_longer_than_what_was_delivered_before_it(first_frames: int, max_frames: int) -> None:
    frames = ramp_of(first_frames, max_frames, 12)
    assert frames == sorted(frames)
    assert frames[0] == min(first_frames, max_frames)
    assert all(frames[piece] <= sum(frames[:piece]) for piece in range(1, 12))
    assert frames[-1] == max_frames


@pytest.mark.parametrize(
    ("capacity", "rows", "max_chunk_frames", "expected"),
    [
        (HOST, 1, 8, 4),
        (HOST, 2, 8, 4),
        (HOST, 2, 3, 3),
        (HOST, 3, 8, 1),
        (HOST, 256, 8, 1),
        (DEVICE, 1, 8, 8),
        (DEVICE, 256, 8, 8),
    ],
)
def test_largest_piece_by_rows(capacity: Capacity, rows: int, max_chunk_frames: int, expected: int) -> None:
    assert capacity.largest_piece(rows, max_chunk_frames) == expected


def spoken(sent: int, waiting: int, heard_at_s: float = 10.0) -> Sequence:
    """An utterance of which `sent` frames have been heard since `heard_at_s`, and `waiting` more are made."""
    sequence = Sequence(pending(1), row=0)
    for _ in range(sent + waiting):
        sequence.add_frame()
        sequence.confirm_frame(end_of_speech=False)
    if sent:
        sequence.add_vocoded(sent)
        sequence.send(piece(sent), 1)
        sequence.playback.add_audio(heard_at_s, sent * FRAME_S)
    return sequence


def at(now_s: float, in_s: float, decoding_s: float = 0.0) -> Moment:
    """A moment from which a piece of the next step is heard after `in_s`."""
    return Moment(now_s, FRAME_S, now_s + in_s, decoding_s)


@pytest.mark.parametrize(
    ("in_s", "decoding_s", "expected"),
    [
        (0.30, 0.0, 0),  # 4 frames sent at 10.0 are played at 10.32
        (0.33, 0.0, 2),  # so a piece at 10.33 would be late: what waits is cut, with the frame that comes
        (0.30, 0.005, 0),  # two more frames decoded before it: 10.31
        (0.30, 0.011, 2),  # 10.322
    ],
)
def test_a_piece_is_cut_before_its_listener_runs_dry(in_s: float, decoding_s: float, expected: int) -> None:
    assert next_piece(spoken(sent=4, waiting=1), 1, 8, at(10.0, in_s, decoding_s)) == expected


def test_a_full_piece_is_cut_whoever_has_audio_left() -> None:
    assert next_piece(spoken(sent=4, waiting=3), 1, 8, UNHURRIED) == 4
    assert next_piece(spoken(sent=4, waiting=2), 1, 8, UNHURRIED) == 0


def test_audio_that_is_being_decoded_counts_as_left() -> None:
    sequence = spoken(sent=4, waiting=5)
    sequence.add_vocoded(4)
    assert next_piece(sequence, 1, 8, at(10.0, 0.33)) == 0, "four more frames are on their way: 10.64"
    assert next_piece(sequence, 1, 8, at(10.0, 0.65)) == 2


def test_what_waits_is_decoded_when_no_frame_follows_for_now() -> None:
    ended = spoken(sent=4, waiting=1)
    ended.add_frame()
    ended.confirm_frame(end_of_speech=True)
    assert next_piece(ended, 0, 8, UNHURRIED) == 2
    out_of_text = Sequence(pending(1, first_chunk_frames=3, live=True), row=0)
    out_of_text.add_frame()
    assert next_piece(out_of_text, 0, 8, UNHURRIED) == 1


def test_nothing_is_decoded_where_nothing_waits() -> None:
    assert next_piece(spoken(sent=4, waiting=0), 0, 8, at(10.0, 99.0)) == 0


def test_a_moment_follows_from_what_steps_took() -> None:
    durations = StepDurations()
    for _ in range(9):
        durations.add(took_s=0.030, decoding_s=0.010, decoded_frames=2)
    assert durations.decoding_s == pytest.approx(0.005)
    assert durations.step_s(rows=2) == pytest.approx(0.030)
    host = durations.moment(100.0, FRAME_S, rows=2, capacity=HOST)
    assert host.now_s == 100.0
    assert host.next_piece_s == pytest.approx(100.0 + 3 * 0.030)
    assert durations.moment(100.0, FRAME_S, rows=2, capacity=DEVICE).next_piece_s == pytest.approx(100.0 + 4 * 0.030)
    for rows, step_s in ((2, 0.020), (8, 0.040)):
        beside = durations.moment(100.0, FRAME_S, rows=rows, capacity=CORES)
        assert beside.next_piece_s == pytest.approx(100.0 + 4 * step_s)


def test_no_piece_is_cut_where_a_step_lasts_longer_than_its_frame() -> None:
    durations = StepDurations()
    for _ in range(9):
        durations.add(took_s=0.080, decoding_s=0.0, decoded_frames=0)
    assert durations.moment(100.0, FRAME_S, rows=1, capacity=HOST).next_piece_s == -math.inf


def test_one_slow_step_changes_nothing() -> None:
    durations = StepDurations()
    for took_s in (*[0.030] * 8, 5.0):
        durations.add(took_s, decoding_s=0.0, decoded_frames=0)
    assert durations.step_s(rows=1) == pytest.approx(0.030)


def test_a_listener_starts_with_the_first_piece_and_waits_when_nothing_is_left() -> None:
    playback = Playback()
    assert math.isinf(playback.runs_dry_s)
    assert playback.add_audio(10.0, 0.5) == 0
    assert playback.runs_dry_s == 10.5
    assert playback.add_audio(10.25, 0.5) == 0, "it comes before the first is played"
    assert playback.runs_dry_s == 11.0
    assert playback.add_audio(12.0, 1.0) == 1.0
    assert playback.runs_dry_s == 13.0
