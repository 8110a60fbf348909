"""Engine settings: each default is written once, here, with its unit."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from vivavoce_engine.pages import pages_of
from vivavoce_engine.request import ALIGNMENT_OFFSET_MAX_MS

KV_POSITIONS_PER_ROW = 1024
ROWS = 8
"""Rows of an engine, until loading has settled `auto`; on a CPU it stays unless a second core decodes."""
NumberOrAuto = int | Literal["auto"]
"""A number, or `auto` until the device's memory is known."""
MOST_THREADS = 1024
"""Most threads of a pool: more than any machine has cores, and less than a system refuses to start."""
RefTextCheck = Literal["refuse", "flag", "off"]
"""Treatment of a transcript that does not fit its recording; `off` does not look."""
RefTextJudge = Literal["auto", "talker", "asr"]
"""Judge of such a transcript. `auto`: a speech recognizer if one is installed, else the talker."""
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")
RUNNERS = ("auto", "triton", "native", "torch")
DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
HEAD = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}")
NO_DEVICE = {
    "mps": "Apple's GPU lacks float64, which drawing a code needs; a Mac speaks on its cpu",
    "rocm": "a ROCm build of PyTorch calls AMD's cards cuda",
    "hip": "a ROCm build of PyTorch calls AMD's cards cuda",
    "gpu": "an NVIDIA card is named cuda",
}
"""Names that people try → what to do instead."""

CARD_VARIABLE = "VIVAVOCE_CARD"
"""Environment variable that overrides fields of the card, to prove on one card what another would do:
`VIVAVOCE_CARD="capability=8.6 shared_bytes=101376 multiprocessors=82"`."""
LEVEL_VARIABLE = "VIVAVOCE_CPU_LEVEL"
"""Environment variable that names the level of the CPU's kernels, such as avx2, for tests and comparisons."""


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def _capability(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


CARD_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "capability": (_capability, "8.6"),
    "shared_bytes": (_count, "101376"),
    "multiprocessors": (_count, "82"),
    "dependent_launch": (lambda text: {"0": False, "1": True}[text], "0 or 1"),
}
"""Field of a card that may be overridden → its reader, and an example."""


def card_fields(text: str) -> dict[str, Any]:
    """Reads fields of a card from words `name=value`, as CARD_VARIABLE has them.

    Raises:
        ValueError: names the field that is unknown or cannot be read.
    """
    fields_read: dict[str, Any] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name not in CARD_READERS:
            raise ValueError(f"{CARD_VARIABLE} has an unknown field {name!r}; it knows {', '.join(CARD_READERS)}")
        read, example = CARD_READERS[name]
        try:
            fields_read[name] = read(value)
        except (ValueError, KeyError):
            raise ValueError(f"{CARD_VARIABLE}: {name} must be like {example}, not {value!r}") from None
    return fields_read


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine, which runs one checkpoint."""

    max_streams: NumberOrAuto = "auto"
    """Utterances that run at the same time. Each owns one row of every table. `auto`: on a card as many as suit its
    size and fit its free memory, at most 256; on a CPU 16 of a small model with two cores, and 8 otherwise."""
    max_queue: int = 64
    """Accepted requests that may wait for a row. The next one is refused as Overloaded."""
    max_queue_s: float = 3600.0
    """Seconds of audio that may wait for a row: all texts of the requests that wait, as estimated, and their pauses."""
    max_context: int = 4096
    """Maximum positions of one utterance in the talker's KV cache: prompt tokens plus generated frames."""
    kv_positions: NumberOrAuto = "auto"
    """Positions of the talker's KV cache that all streams share; on a GPU only. When they run out, new utterances wait
    first, then running ones. `auto`: 1024 for each stream (less if max_context is less), but at least max_context; down
    to 512 for each stream where memory is short."""
    max_prefills_per_step: int = 8
    """New utterances started between two frames. The limit keeps a burst of requests from stalling running streams.
    Together they prefill at most 1024 tokens (512 on a CPU), unless a single prompt is longer."""
    max_chunk_frames: int = 8
    """Largest chunk of audio decoded at once; the ramp from the first chunk ends here. A CPU decodes smaller chunks,
    because its streams wait for each other's."""
    max_unread_s: float = 30.0
    """Seconds of unread audio after which the engine pauses an utterance until its reader catches up."""
    max_step_s: float = 60.0
    """Seconds that a step may take. After that the engine's process counts as hung and is restarted."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto`: the first NVIDIA card that can be used, else the CPU."""
    runner: Literal["auto", "triton", "native", "torch"] = "auto"
    """Kernels: Vivavoce's own for NVIDIA cards from Ampere on (`triton`) or for CPUs (`native`), or PyTorch's
    (`torch`), which run everywhere and are slower. `auto` takes the best that can be used."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, `float16`, `int8`, or `auto`: bfloat16 on cards from Ampere on, and float32 elsewhere. On
    a CPU `native` sums in float32 whatever the dtype, which says how weights are kept: `float32` changes none,
    `bfloat16` rounds those that are not bfloat16, and `int8`, for `native` alone, rounds those of talker and code
    predictor further, which costs a little quality and halves memory and time of a wide model."""
    threads: NumberOrAuto = "auto"
    """Threads that compute a model on a CPU. `auto`: two for a small model such as the shipped voice, one for frames
    and one that turns them into audio beside the next ones; for a wider model as many as there are cores that the
    process may use. Several models, or `workers`, need numbers whose sum is no more than the cores."""
    alignment_heads: str | None = None
    """Head of the talker's attention that follows the text, as layer.head counted from 0, such as 3.4: the times of
    words are read from it. Give `alignment_offset_ms` with it. The default is what the checkpoint's
    generation_config.json names, or what `vivavoce eval align` has found."""
    alignment_offset_ms: float | None = None
    """Constant error of that head's times, in milliseconds: -45 if it is 45 ms early."""

    ref_text_check: RefTextCheck = "flag"
    """Check of a transcript (`ref_text`): does it fit the recording that it is sent with? A pair that does not is
    spoken or stored with the warning `ref_text_mismatch` (`flag`), or is answered by an error of that code (`refuse`).
    `off` does not look."""
    ref_text_judge: RefTextJudge = "auto"
    """Judge of that check. `talker`: the model itself, by how likely the recording's codes are with the text, in about
    twice the time of a prompt of the recording's length. `asr`: an installed speech recognizer, which also finds a text
    that lacks the end of what is said, or goes on behind it. `auto`: a recognizer if one is installed (the extra `eval`
    has one for English), else the talker."""
    gpu_memory: float = 0.9
    """Share of a GPU's free memory that the engine may take. What another engine holds is not free."""
    eager: bool = False
    """Launches kernels one by one instead of recording CUDA graphs: starts sooner, speaks slower. On a GPU only."""
    deterministic: bool = True
    """Gives a seeded request the same samples whatever else is spoken. On a GPU only; a CPU always does. Without it a
    frame of one stream takes about a third less time, and of four or more streams the same."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == NumberOrAuto and not isinstance(value, int) and value != "auto":
                raise ValueError(f"{field.name} must be a number above 0, or auto; not {value!r}")
            if field.name == "alignment_offset_ms":
                continue
            if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
                raise ValueError(f"{field.name} must be above 0, not {value}")
        if self.threads != "auto" and self.threads > MOST_THREADS:
            raise ValueError(f"threads must be at most {MOST_THREADS}, not {self.threads}")
        if self.gpu_memory > 1:
            raise ValueError(f"gpu_memory must be a share of at most 1, such as 0.9, not {self.gpu_memory:g}")
        if not DEVICE.fullmatch(self.device):
            hint = NO_DEVICE.get(self.device.partition(":")[0].lower())
            raise ValueError(
                f"device must be auto, cpu, cuda or cuda:N, not {self.device!r}" + (f": {hint}" if hint else "")
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.ref_text_check not in get_args(RefTextCheck):
            raise ValueError(f"ref_text_check must be refuse, flag or off, not {self.ref_text_check!r}")
        if self.ref_text_judge not in get_args(RefTextJudge):
            raise ValueError(f"ref_text_judge must be auto, talker or asr, not {self.ref_text_judge!r}")
        self._check_runner()
        self._check_alignment()
        if self.kv_positions != "auto" and self.kv_positions < self.max_context:
            raise ValueError(
                f"kv_positions must be {self.max_context} or more, so that one utterance of max_context fits; "
                f"not {self.kv_positions}"
            )

    def _check_runner(self) -> None:
        if self.runner not in RUNNERS:
            raise ValueError(f"runner must be {', '.join(RUNNERS[:-1])} or {RUNNERS[-1]}, not {self.runner!r}")
        if self.runner == "triton" and self.device == "cpu":
            raise ValueError("runner triton needs a card, and device is cpu")
        on_card = self.device.startswith("cuda")
        if self.runner == "native" and on_card:
            raise ValueError(f"runner native is for a CPU, and device is {self.device}")
        if self.dtype == "int8" and (on_card or self.runner in ("triton", "torch")):
            raise ValueError("dtype int8 is for the runner native on a CPU")
        if self.dtype == "float16" and self.runner == "native":
            raise ValueError("runner native has no float16; bfloat16 takes as little memory")

    def _check_alignment(self) -> None:
        head, offset_ms = self.alignment_heads, self.alignment_offset_ms
        if head is not None and not HEAD.fullmatch(head):
            raise ValueError(f"alignment_heads must be layer.head, both counted from 0, such as 3.4, not {head!r}")
        if offset_ms is not None and not abs(offset_ms) <= ALIGNMENT_OFFSET_MAX_MS:
            limits = f"from {-ALIGNMENT_OFFSET_MAX_MS} to {ALIGNMENT_OFFSET_MAX_MS}"
            raise ValueError(f"alignment_offset_ms must be {limits}, not {offset_ms:g}")
        if head is not None and offset_ms is None:
            raise ValueError("alignment_heads needs alignment_offset_ms, the constant error of the head's times")
        if offset_ms is not None and head is None:
            raise ValueError("alignment_offset_ms needs alignment_heads, the head whose times it corrects")

    @property
    def rows(self) -> int:
        """Utterances that run at the same time, as a number."""
        return ROWS if self.max_streams == "auto" else self.max_streams

    @property
    def kv_pages(self) -> int:
        """Pages of talker KV cache that all streams share."""
        if self.kv_positions != "auto":
            return pages_of(self.kv_positions)
        return self.pages_for(KV_POSITIONS_PER_ROW)

    def pages_for(self, positions: int) -> int:
        """Pages that give each row this many positions, and one row all of max_context."""
        return max(pages_of(self.max_context), self.rows * pages_of(min(self.max_context, positions)))
