"""A runner's statement of how much it can take at once, and how far it works ahead of the loop."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Capacity:
    """The limits of the machine behind a runner, for the loop and the scheduler. Each runner states one."""

    steps_ahead: int
    """Steps that may begin before the loop waits for the oldest. 0: `launch` does all the work itself. 1: a device
    works beside the host, and the loop learns one step late that a frame was the last of its speech."""
    shares_pages: bool
    """True if rows share the pages of one KV cache. False if each row has room for a whole context of its own."""
    prefill_tokens: int
    """Most prompt tokens that start in one step, unless a single prompt has more. Longer prefills would stall running
    streams."""
    piece_frames: int | None = None
    """Largest piece of audio of each row, in frames; None leaves the limit to the configuration."""
    few_rows: int = 0
    """Most rows with pieces of `piece_frames`; with more rows, a piece has one frame."""
    frames_at_once: bool = False
    """True if `launch` returns when the frames are made, so that audio alone is waited for. No frame is void then."""

    def __post_init__(self) -> None:
        assert self.steps_ahead >= 0
        assert self.prefill_tokens > 0
        assert self.few_rows >= 0
        assert self.piece_frames is None or self.piece_frames > 0

    def largest_piece(self, rows: int, max_chunk_frames: int) -> int:
        """Frames of the largest piece of audio where `rows` run, at most the configuration's `max_chunk_frames`."""
        if self.piece_frames is None:
            return max_chunk_frames
        return min(max_chunk_frames, self.piece_frames if rows <= self.few_rows else 1)


HOST = Capacity(steps_ahead=0, shares_pages=False, prefill_tokens=512, piece_frames=4, few_rows=2)
"""A CPU that does one thing at a time. The next frame of every row waits for Code2Wav, so it decodes little at once. A
call of four frames, or of one frame each of three rows, keeps a CPU busy; longer calls cost as much a frame (measured
in LOG.md). Memory is taken when it is first written, so a whole context for each row costs nothing before it is
used."""
CORES = replace(HOST, steps_ahead=1, frames_at_once=True)
"""A CPU with a core for Code2Wav, which decodes one step while the next makes its frames. The core that makes frames
helps where decoding takes longer."""
DEVICE = Capacity(steps_ahead=1, shares_pages=True, prefill_tokens=1024)
"""A GPU. Code2Wav runs beside the next frame, so the length of a piece delays nobody else."""
