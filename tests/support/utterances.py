"""Utterances without a model, an engine or an event loop, for tests of pure Python."""

import math

import numpy as np
from vivavoce_engine import SynthesisRequest
from vivavoce_engine.batching.messages import AudioChunk, Finished
from vivavoce_engine.batching.pending import Pending, TrailingText
from vivavoce_engine.batching.scheduler import Plan, Scheduler
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.front.stream import AudioStream
from vivavoce_engine.text.prompt import NO_ID, Prompt


class Listener(AudioStream):
    """A stream without an event loop. The test is its reader."""

    def __init__(self, utterance_id: int) -> None:
        self.utterance_id = utterance_id
        self._frames_sent = self.frames_read = 0

    def read(self, frames: int) -> None:
        assert frames <= self.unread_frames
        self.frames_read += frames


def pending(
    utterance_id: int,
    max_frames: int = 100,
    first_chunk_frames: int = 1,
    client: str = "",
    deadline_s: float = math.inf,
    frames: float = 1.0,
    prompt_tokens: int = 1,
    live: bool = False,
) -> Pending:
    """A pending request. `frames` is its estimated length. A `live` one has text for its first frame only."""
    request = SynthesisRequest("text", first_chunk_frames=first_chunk_frames, client=client)
    prompt = Prompt((NO_ID,) * prompt_tokens, (NO_ID,) * prompt_tokens, (), text_tokens=3)
    trailing = TrailingText((NO_ID,), False, 1) if live else TrailingText((), True, 3)
    return Pending(utterance_id, request, prompt, 0, max_frames, Listener(utterance_id), trailing, frames, deadline_s)


def listener(sequence: Sequence | Pending) -> Listener:
    assert isinstance(sequence.stream, Listener)
    return sequence.stream


def piece(frames: int) -> AudioChunk:
    """A chunk with one sample and one code for each frame."""
    return AudioChunk(np.arange(frames, dtype=np.float32), np.arange(frames, dtype=np.int16)[:, None])


def commit(scheduler: Scheduler, plan: Plan, ending: frozenset[int] = frozenset()) -> dict[int, Finished]:
    """Commits a plan as the engine does after it ran. The utterances `ending` end in it. Returns the finished ones."""
    plan.count_begun()
    for sequence in plan.step:
        sequence.confirm_frame(sequence.utterance_id in ending)
    for sequence, frames in plan.vocode:
        sent = sequence.send(piece(frames), 1)
        assert sent is not None
        sequence.stream.count_sent(sent.frames)
    finished = {}
    for sequence in scheduler.running_sequences():
        if sequence.complete:
            finished[sequence.utterance_id] = sequence.finished()
            scheduler.release(sequence)
    return finished
