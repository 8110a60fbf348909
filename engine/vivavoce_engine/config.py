"""Engine settings: each default is written once, here, with its unit."""

from dataclasses import dataclass, fields

from vivavoce_engine.pages import pages_of

KV_POSITIONS_PER_STREAM = 1024


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How one engine runs one checkpoint."""

    max_streams: int = 8
    """Utterances that run at the same time; each owns one row of every table."""
    max_queue: int = 64
    """Accepted requests that may wait for a row; the next one is refused as Overloaded."""
    max_queue_s: float = 600.0
    """Seconds of speech, as estimated from the texts, that may wait for a row."""
    max_context: int = 4096
    """Most positions of one utterance in the talker's KV cache: prompt tokens plus generated frames."""
    kv_positions: int | None = None
    """On a GPU: positions of talker KV cache that all streams share; where they run short, new utterances wait, then
    running ones. By default 1024 a stream (fewer where max_context is less), but never less than max_context."""
    max_prefills_per_step: int = 8
    """New utterances started between two frames, so that a burst never stalls running streams. They share a prefill
    of 1024 tokens at most, 512 on a CPU, unless a single prompt has more."""
    max_chunk_frames: int = 8
    """Largest piece of audio decoded at once; the ramp from the first chunk ends here. A CPU, whose streams all wait
    for it meanwhile, decodes less at once."""
    max_unread_s: float = 30.0
    """Seconds of audio that a reader may leave unread before its row rests."""
    max_step_s: float = 60.0
    """Seconds that a step may take before the engine's process is taken for hung, and started anew."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto`: cuda where there is one."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, `float16`, or `auto`: bfloat16 on cuda and float32 on cpu."""

    gpu_memory: float = 0.9
    """The share of a GPU's free memory that weights and the keys and values of all streams may take."""
    eager: bool = False
    """On a GPU: launch kernels one by one instead of recording CUDA graphs. Starts sooner, speaks slower."""
    deterministic: bool = False
    """On a GPU: a seeded request gives the same codes whatever else is running, at some cost where few streams run."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
                raise ValueError(f"{field.name} must be above 0, not {value}")
        if self.kv_positions is not None and self.kv_positions < self.max_context:
            raise ValueError(
                f"kv_positions must be {self.max_context} or more, so that one utterance of max_context fits; "
                f"not {self.kv_positions}"
            )

    @property
    def kv_pages(self) -> int:
        """Pages of talker KV cache that all streams share."""
        if self.kv_positions is not None:
            return pages_of(self.kv_positions)
        each = pages_of(min(self.max_context, KV_POSITIONS_PER_STREAM))
        return max(pages_of(self.max_context), self.max_streams * each)
