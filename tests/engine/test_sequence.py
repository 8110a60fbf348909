"""Host state of one utterance: frames made, frames decoded, and its end."""

import pytest
from vivavoce_engine.batching.messages import Finished
from vivavoce_engine.batching.pace import UNHURRIED, next_piece
from vivavoce_engine.batching.sequence import Sequence

from tests.support.utterances import pending, piece


def speak(sequence: Sequence, frames: int, max_chunk_frames: int = 8) -> list[int]:
    """Speaks `frames` frames, the last of which ends the speech, and gives the pieces that are decoded."""
    pieces = []
    for frame in range(1, frames + 1):
        due = next_piece(sequence, 1, max_chunk_frames, UNHURRIED)
        make(sequence, end_of_speech=frame == frames)
        if due:
            decode(sequence, due)
            pieces.append(due)
    while due := next_piece(sequence, 0, max_chunk_frames, UNHURRIED):
        decode(sequence, due)
        pieces.append(due)
    return pieces


def make(sequence: Sequence, end_of_speech: bool = False) -> None:
    """One frame, from its step's beginning to its end."""
    sequence.add_frame()
    sequence.confirm_frame(end_of_speech)


def decode(sequence: Sequence, frames: int) -> None:
    """One piece, likewise."""
    sequence.add_vocoded(frames)
    sent = sequence.send(piece(frames), 1)
    assert sent is not None
    assert sent.frames == frames


@pytest.mark.parametrize(
    ("frames", "first_chunk_frames", "max_chunk_frames", "expected"),
    [
        (16, 1, 8, [1, 1, 2, 4, 8]),
        (23, 1, 8, [1, 1, 2, 4, 8, 7]),
        (3, 1, 8, [1, 1, 1]),
        (16, 4, 8, [4, 4, 8]),
        (2, 4, 8, [2]),
        (5, 1, 1, [1, 1, 1, 1, 1]),
        (20, 30, 8, [8, 8, 4]),
    ],
)
def test_pieces_follow_the_ramp_and_the_tail_is_flushed(
    frames: int, first_chunk_frames: int, max_chunk_frames: int, expected: list[int]
) -> None:
    sequence = Sequence(pending(1, first_chunk_frames=first_chunk_frames), row=0)
    assert speak(sequence, frames, max_chunk_frames) == expected
    assert sequence.complete
    assert sequence.finished() == Finished(text_tokens=3, frames=frames, reason="stop")


def test_the_frame_limit_ends_an_utterance() -> None:
    sequence = Sequence(pending(1, max_frames=2), row=0)
    make(sequence)
    assert not sequence.ended
    make(sequence)
    assert sequence.ended
    decode(sequence, 2)
    assert sequence.finished() == Finished(text_tokens=3, frames=2, reason="length")


def test_speech_that_ends_on_the_last_allowed_frame_was_not_cut() -> None:
    sequence = Sequence(pending(1, max_frames=2), row=0)
    make(sequence)
    make(sequence, end_of_speech=True)
    decode(sequence, 2)
    assert sequence.finished().reason == "stop"


def test_an_utterance_is_complete_only_when_all_its_audio_is_out() -> None:
    sequence = Sequence(pending(1), row=0)
    make(sequence)
    make(sequence, end_of_speech=True)
    assert (sequence.frames_waiting, sequence.complete) == (2, False)
    decode(sequence, 1)
    assert (sequence.frames_waiting, sequence.complete) == (1, False)
    with pytest.raises(AssertionError):
        sequence.finished()
    decode(sequence, 1)
    assert (sequence.frames_waiting, sequence.complete) == (0, True)


def test_impossible_moves_are_refused() -> None:
    with pytest.raises(AssertionError):
        Sequence(pending(1, max_frames=0), row=0)
    sequence = Sequence(pending(1), row=0)
    with pytest.raises(AssertionError):
        sequence.add_vocoded(1)
    make(sequence, end_of_speech=True)
    with pytest.raises(AssertionError):
        sequence.add_vocoded(0)
    with pytest.raises(AssertionError, match="makes no frames"):
        sequence.add_frame()


def test_what_was_begun_before_the_end_was_known_is_no_speech() -> None:
    """Frame 3 is under way, and a piece of 1 to 3, when frame 2 turns out to have been the last."""
    sequence = Sequence(pending(1, first_chunk_frames=3), row=0)
    for _ in range(3):
        sequence.add_frame()
    sequence.add_vocoded(3)
    sequence.confirm_frame(end_of_speech=False)
    sequence.confirm_frame(end_of_speech=True)
    assert (sequence.ended, sequence.frames_made, sequence.frames_waiting, sequence.complete) == (True, 2, 0, False)
    sequence.confirm_frame(end_of_speech=False)
    sent = sequence.send(piece(3), 1)
    assert sent is not None
    assert (sent.pcm.tolist(), sent.codes.tolist()) == ([0, 1], [[0], [1]])
    assert sequence.complete
    assert sequence.finished() == Finished(text_tokens=3, frames=2, reason="stop")


def test_a_piece_of_nothing_but_void_frames_is_not_sent() -> None:
    sequence = Sequence(pending(1), row=0)
    make(sequence)
    decode(sequence, 1)
    sequence.add_frame()
    sequence.add_vocoded(1)
    sequence.add_frame()
    sequence.add_vocoded(1)
    sequence.confirm_frame(end_of_speech=True)
    assert sequence.send(piece(1), 1) is not None
    assert sequence.complete
    sequence.confirm_frame(end_of_speech=False)
    assert sequence.send(piece(1), 1) is None


def test_the_last_allowed_frame_is_complete_when_it_is_known() -> None:
    sequence = Sequence(pending(1, max_frames=1), row=0)
    sequence.add_frame()
    sequence.add_vocoded(1)
    assert (sequence.ended, sequence.complete) == (True, False)
    sequence.confirm_frame(end_of_speech=False)
    assert sequence.send(piece(1), 1) is not None
    assert sequence.complete
    assert sequence.finished().reason == "length"


def test_waiting_frames_can_be_given_up() -> None:
    sequence = Sequence(pending(1), row=0)
    for _ in range(5):
        make(sequence)
    sequence.drop_waiting(keep=2)
    assert (sequence.frames_made, sequence.frames_vocoded, sequence.frames_waiting) == (5, 3, 2)
    with pytest.raises(AssertionError):
        sequence.drop_waiting(keep=3)
