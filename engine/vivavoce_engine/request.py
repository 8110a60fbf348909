"""What a caller may ask for, and what a model can do. Frozen and torch-free: no tensors, tokens or HTTP here."""

import secrets
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

TaskType = Literal["custom_voice", "voice_design", "base"]
AUTO_LANGUAGE = "auto"
RANDOM_BITS = 24
"""Bits of the random number of a draw; float32 holds them exactly."""
SEED_MAX = 2**63 - 1


def draw_seed() -> int:
    """A random seed, from 0 to SEED_MAX, for a request that names none."""
    return secrets.randbelow(SEED_MAX + 1)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one codebook's next code is drawn. `temperature` 0 means greedy.

    The order of operations is the reference's: repetition penalty, minimum length, suppression, temperature,
    top-k (ties at the k-th logit stay), top-p.
    """

    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, not {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0 (0 keeps every code), not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if not self.repetition_penalty > 0:
            raise ValueError(f"repetition_penalty must be above 0, not {self.repetition_penalty}")


@dataclass(frozen=True, slots=True)
class Sampling:
    """`talker` draws code 0 of a frame, `predictor` the others (the reference's subtalker_* values)."""

    talker: SamplingParams = SamplingParams(repetition_penalty=1.05)
    predictor: SamplingParams = SamplingParams()


@dataclass(frozen=True, slots=True, eq=False)
class VoiceReference:
    """A voice given by example instead of by name.

    `embedding` [hidden] float32 is the speaker embedding; alone it is the voice (x-vector only). `codes` [frames,
    code groups] int16 are the recording itself and `text` what is said in it: the model then goes on from there
    (in-context). Arrays are not to be changed: references are cached and shared.
    """

    embedding: NDArray[np.float32]
    codes: NDArray[np.int16] | None = None
    text: str = ""

    @property
    def nbytes(self) -> int:
        return self.embedding.nbytes + (0 if self.codes is None else self.codes.nbytes) + len(self.text.encode())


@dataclass(frozen=True, slots=True, eq=False)
class SpokenContext:
    """Speech of the same model that an utterance goes on from, as if it were one with it.

    `codes` [frames, code groups] int16 are that speech and `text` what is said in it, with the blanks that lie between
    it and the utterance's text.
    """

    text: str
    codes: NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True)
class UtteranceOptions:
    """How an utterance is to be spoken, whatever its text is. `SpeechEngine.open` takes these alone.

    The voice is a `speaker` of the checkpoint or a `reference`, never both; neither for a VoiceDesign checkpoint,
    whose voice is described by `instructions`.
    `streaming_text` feeds one text token a frame after the first instead of all text before the first frame
    (the reference's non_streaming_mode=False); it is the mode that later accepts text as it arrives.
    `seed` None draws one; the same seed gives the same audio in any batch.
    `max_frames` None allows the checkpoint's own maximum; a frame is 80 ms.
    `first_chunk_frames` is the size of the first piece of audio; later pieces grow from there.
    `end_after_text` forbids the end of speech before the text has been read to its end; live text always does (while
    its end is unknown the model must not end), and the reference never.
    `max_wait_s` is how long the request may wait for its turn; past it, or when it is clear that it will be past it,
    the request is refused as Overloaded. None waits as long as it takes.
    `client` tells whose request it is: clients get rows in turn, however many requests each has in the queue.
    `context` is what was said just before, with the same voice; somebody hears it now, so the request is never refused
    for the length of the queue and has the next row. The context is left out where it would take more than half of
    the positions, and for models with `max_utterance_chars`: two texts in one go are too long for them. An utterance
    whose text arrives later takes none.
    """

    speaker: str = ""
    language: str = AUTO_LANGUAGE
    instructions: str = ""
    sampling: Sampling = Sampling()
    seed: int | None = None
    streaming_text: bool = False
    max_frames: int | None = None
    first_chunk_frames: int = 1
    end_after_text: bool = False
    max_wait_s: float | None = None
    client: str = ""
    reference: VoiceReference | None = None
    context: SpokenContext | None = None

    def __post_init__(self) -> None:
        if self.seed is not None and not 0 <= self.seed <= SEED_MAX:
            raise ValueError(f"seed must be from 0 to {SEED_MAX}, not {self.seed}")
        for name, value in (("max_frames", self.max_frames), ("first_chunk_frames", self.first_chunk_frames)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.max_wait_s is not None and not self.max_wait_s >= 0:
            raise ValueError(f"max_wait_s must be at least 0, not {self.max_wait_s}")

    def with_text(self, text: str) -> "SynthesisRequest":
        """A request to speak the text with these options."""
        return SynthesisRequest(text, **{field.name: getattr(self, field.name) for field in fields(UtteranceOptions)})


@dataclass(frozen=True, slots=True)
class SynthesisRequest(UtteranceOptions):
    """One utterance: its text, and how it is to be spoken. The options are given by name."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a loaded checkpoint can do; all that the server needs to know of it.

    `embedding_size` is that of a VoiceReference's embedding, 0 where the checkpoint takes no reference. `clones`
    tells whether it takes reference audio. `max_utterance_chars` is the longest text that it says reliably in one go,
    None where no limit is known.
    """

    name: str
    task: TaskType
    speakers: tuple[str, ...]
    languages: tuple[str, ...]
    takes_instructions: bool
    sampling: Sampling
    max_frames: int
    sample_rate: int
    samples_per_frame: int
    embedding_size: int = 0
    clones: bool = False
    max_utterance_chars: int | None = None

    @property
    def frame_s(self) -> float:
        """Seconds of audio in one codec frame."""
        return self.samples_per_frame / self.sample_rate
