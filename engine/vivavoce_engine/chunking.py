"""When collected frames become a piece of audio. Pure functions."""


def chunk_frames(delivered_frames: int, first_frames: int, max_frames: int) -> int:
    """Frames of the next piece: the first piece is small, and each later one as long as all before it.

    Doubling is the steepest ramp without gaps at a real-time factor up to 0.5: 2 d frames are made in d frames' time,
    when the listener, who began with the first piece, is not past the d that it has. On a slower machine a player runs
    dry for a moment in the first pieces.
    """
    return min(max_frames, max(first_frames, delivered_frames))
