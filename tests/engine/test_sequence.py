"""Host state of one utterance: what was made, what was decoded, and how it ended."""

import pytest
from vivavoce_engine.messages import Finished
from vivavoce_engine.sequence import Sequence

from tests.engine.utterances import pending


def speak(sequence: Sequence, frames: int, max_chunk_frames: int = 8) -> list[int]:
    """Speaks `frames` frames, the last of which ends the speech, and gives the pieces that are decoded."""
    pieces = []
    for frame in range(1, frames + 1):
        piece = sequence.next_chunk(max_chunk_frames, frames_coming=1)
        sequence.add_frame(end_of_speech=frame == frames)
        if piece:
            sequence.add_vocoded(piece)
            pieces.append(piece)
    while piece := sequence.next_chunk(max_chunk_frames, frames_coming=0):
        sequence.add_vocoded(piece)
        pieces.append(piece)
    return pieces


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
    sequence.add_frame(end_of_speech=False)
    assert not sequence.ended
    sequence.add_frame(end_of_speech=False)
    assert sequence.ended
    sequence.add_vocoded(2)
    assert sequence.finished() == Finished(text_tokens=3, frames=2, reason="length")


def test_speech_that_ends_on_the_last_allowed_frame_was_not_cut() -> None:
    sequence = Sequence(pending(1, max_frames=2), row=0)
    sequence.add_frame(end_of_speech=False)
    sequence.add_frame(end_of_speech=True)
    sequence.add_vocoded(2)
    assert sequence.finished().reason == "stop"


def test_an_utterance_is_complete_only_when_all_its_audio_is_out() -> None:
    sequence = Sequence(pending(1), row=0)
    sequence.add_frame(end_of_speech=False)
    sequence.add_frame(end_of_speech=True)
    assert (sequence.frames_waiting, sequence.complete) == (2, False)
    sequence.add_vocoded(1)
    assert (sequence.frames_waiting, sequence.complete) == (1, False)
    with pytest.raises(AssertionError):
        sequence.finished()
    sequence.add_vocoded(1)
    assert (sequence.frames_waiting, sequence.complete) == (0, True)


def test_impossible_moves_are_refused() -> None:
    with pytest.raises(AssertionError):
        Sequence(pending(1, max_frames=0), row=0)
    sequence = Sequence(pending(1), row=0)
    with pytest.raises(AssertionError):
        sequence.add_vocoded(1)
    sequence.add_frame(end_of_speech=True)
    with pytest.raises(AssertionError):
        sequence.add_vocoded(0)
    with pytest.raises(AssertionError, match="makes no frames"):
        sequence.add_frame(end_of_speech=False)
