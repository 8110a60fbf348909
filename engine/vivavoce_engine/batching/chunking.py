"""When collected frames become a piece of audio. No clock of its own."""

import math


def chunk_frames(delivered_frames: int, first_frames: int, max_frames: int) -> int:
    """Frames of the next piece: the first piece is small, and each later one as long as all before it.

    Doubling is the steepest ramp without gaps at a real-time factor up to 0.5: 2 d frames are made in d frames' time,
    when the listener, who began with the first piece, is not past the d that it has. On a slower machine pieces are
    cut before (EngineLoop).
    """
    return min(max_frames, max(first_frames, delivered_frames))


HOST_CHUNK_FRAMES = 4
FEW_ROWS = 2


def host_chunk_frames(rows: int) -> int:
    """The largest piece of each of so many rows, where everybody's next frame waits for Code2Wav.

    A call of a few frames has enough to do, be they of one row or one each of several: a frame of a longer call takes a
    CPU as long, and everybody waits longer at a time (LOG.md has the measurements).
    """
    return HOST_CHUNK_FRAMES if rows <= FEW_ROWS else 1


class Playback:
    """A listener who plays from the first piece on, and waits whenever there is nothing to play."""

    def __init__(self) -> None:
        self.runs_dry_s = math.inf
        """When all that was heard is played; infinite before the first piece."""

    def hear(self, at_s: float, length_s: float) -> float:
        """A piece of `length_s` comes. Returns for how long there was nothing to play before it."""
        late_s = max(0.0, at_s - self.runs_dry_s)
        begins_s = at_s if late_s or math.isinf(self.runs_dry_s) else self.runs_dry_s
        self.runs_dry_s = begins_s + length_s
        return late_s
