"""When collected frames become a piece of audio. Pure functions."""


def chunk_frames(delivered_frames: int, first_frames: int, max_frames: int) -> int:
    """Frames of the next piece: the first piece is small, and each later one as long as all before it.

    A piece that is as long as what the listener already has is never late while a frame takes less time to make
    than to play: doubling is the steepest ramp without gaps at a real-time factor up to 1.
    """
    return min(max_frames, max(first_frames, delivered_frames))
