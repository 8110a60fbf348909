"""Requests to the engine and descriptions of its models. Frozen and torch-free: no tensors, tokens or HTTP here."""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

SpeechTask = Literal["custom_voice", "voice_design", "base"]
"""Tasks of checkpoints that speak texts: Qwen3-TTS."""
TaskType = SpeechTask | Literal["chat"]
"""`chat` speaks the answers of a thinker, and no other text: Qwen3-Omni."""
AUTO_LANGUAGE = "auto"
RANDOM_BITS = 24
"""Bits of the random number of a draw; float32 holds them exactly."""
SEED_MAX = 2**63 - 1
ALIGNMENT_OFFSET_MAX_MS = 2000
"""Largest constant error of the times that a talker's attention gives, early or late."""


def draw_seed() -> int:
    """A random seed, from 0 to SEED_MAX, for a request that names none."""
    return secrets.randbelow(SEED_MAX + 1)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters for drawing one codebook's next code. `temperature` 0 means greedy.

    The order of operations is the reference's: repetition penalty, minimum length, suppression, temperature,
    top-k (logits equal to the k-th stay), top-p.
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


@dataclass(frozen=True, slots=True)
class Hearing:
    """Words that a speech recognizer heard in a recording, beside its transcript (voices/recognizer.py).

    `wrong` is the share of words in which the two differ, from 0 to 1. `text` is what was heard, and is "" for stored
    voices: who may speak with a voice need not read its recording.
    """

    text: str
    wrong: float


@dataclass(frozen=True, slots=True, eq=False)
class VoiceReference:
    """A voice given by example instead of by name.

    `embedding` [hidden] float32 is the speaker embedding. Without `codes` it is the whole voice (x-vector only).
    `codes` [frames, code groups] int16 are the codes of a recording, and `text` is its transcript. The model then
    continues from that recording (in-context). Do not change the arrays: references are cached and shared.
    How well the two fit is told by `hearing`, or by `text_fit`, in nats a frame (text/transcript.py). Each is None if
    that judge has not looked.
    """

    embedding: NDArray[np.float32]
    codes: NDArray[np.int16] | None = None
    text: str = ""
    text_fit: float | None = None
    hearing: Hearing | None = None

    @property
    def nbytes(self) -> int:
        texts = self.text + ("" if self.hearing is None else self.hearing.text)
        return self.embedding.nbytes + (0 if self.codes is None else self.codes.nbytes) + len(texts.encode())


@dataclass(frozen=True, slots=True, eq=False)
class SpokenContext:
    """Earlier speech of the same model. The utterance continues it as if the two were one.

    `codes` [frames, code groups] int16 are the codes of the earlier speech. `text` is its text, with the blanks that
    separate it from the utterance's text.
    """

    text: str
    codes: NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True)
class UtteranceOptions:
    """Options of an utterance, whatever its text. `SpeechEngine.open` takes these alone.

    The voice is a `speaker` of the checkpoint or a `reference`, never both. A VoiceDesign checkpoint takes neither:
    `instructions` describe its voice.
    `streaming_text` feeds one text token with each frame, instead of the whole text before the first frame (the
    reference's non_streaming_mode=False). Live text needs this mode.
    `seed` None draws a random one. The same seed gives the same samples, bit for bit, in any batch, row and pieces and
    at any load, on one machine with one version of PyTorch: in float32 on a CPU, and in bfloat16 on a card while
    `EngineConfig.deterministic` is set.
    `max_frames` None allows the checkpoint's own maximum. A frame is 80 ms.
    `first_chunk_frames` is the size of the first chunk of audio. Later chunks grow from there.
    `end_after_text` forbids the end of speech before the model has read the whole text. Live text always sets it,
    because the model must not end while the end of the text is unknown. The reference never does.
    `max_wait_s` limits the wait for a row. The request is refused as Overloaded once it has waited longer, or as soon
    as the wait is known to become longer. None waits without a limit.
    `endless_frames` is the length, in frames, past which the speech fails as EndlessSpeech. None leaves the ceiling to
    the number of tokens.
    `client` identifies the sender. Clients get rows in turn, regardless of the number of requests each has queued.
    `context` is the speech just before this utterance, with the same voice. Its listener hears it now, so a request
    with a context gets the next row and is never refused because the queue is long. The engine ignores the context
    if it would take more than half of the positions, and for models with `max_utterance_chars` if the two texts are
    longer than their `max_context_chars`. An utterance whose text arrives later takes no context.
    `follows` says that the listener hears the speech just before this utterance now. The request then gets the next
    row and is never refused, as with a context, but begins an acoustic context of its own.
    `word_times` asks for the times of the words, which ModelInfo.word_times can give. The samples stay the same.
    `following` is the length of the texts that will follow this one in its row, as a multiple of its own, and
    `silence_s` the length of the pauses that the caller puts between them. Admission counts both.
    """

    speaker: str = ""
    language: str = AUTO_LANGUAGE
    instructions: str = ""
    sampling: Sampling = Sampling()
    seed: int | None = None
    streaming_text: bool = False
    max_frames: int | None = None
    endless_frames: int | None = None
    first_chunk_frames: int = 1
    end_after_text: bool = False
    max_wait_s: float | None = None
    client: str = ""
    reference: VoiceReference | None = None
    context: SpokenContext | None = None
    follows: bool = False
    word_times: bool = False
    following: float = 0.0
    silence_s: float = 0.0

    def __post_init__(self) -> None:
        if self.seed is not None and not 0 <= self.seed <= SEED_MAX:
            raise ValueError(f"seed must be from 0 to {SEED_MAX}, not {self.seed}")
        for name in ("max_frames", "endless_frames", "first_chunk_frames"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.max_wait_s is not None and not self.max_wait_s >= 0:
            raise ValueError(f"max_wait_s must be at least 0, not {self.max_wait_s}")
        for name in ("following", "silence_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, not {getattr(self, name)}")

    @property
    def is_next(self) -> bool:
        """True if its listener hears the speech just before it now."""
        return self.follows or self.context is not None

    def with_text(self, text: str) -> "SynthesisRequest":
        """A request to speak the text with these options."""
        return SynthesisRequest(text, **{each.name: getattr(self, each.name) for each in fields(UtteranceOptions)})


@dataclass(frozen=True, slots=True)
class SynthesisRequest(UtteranceOptions):
    """One utterance: its text, and how it is to be spoken. The options are given by name."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class ThinkerMedia:
    """Sound and pictures of a thinker's prompt, as its talker reads them.

    `at` [tokens] int64 are the positions of their tokens in the prompt, ascending. `hidden` [tokens, thinker hidden]
    float32 are the thinker's hidden states there, behind the layer that the talker accepts. `pictures` are the rows and
    columns of each picture's tokens, in the order of the prompt.
    """

    at: NDArray[np.int64]
    hidden: NDArray[np.float32]
    pictures: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ThinkerPrompt:
    """The token ids that a thinker has read: the whole conversation, up to where its answer begins.

    They end with the tokens that ask for an answer. Ids behind those are the first ones of the answer.
    """

    ids: tuple[int, ...]
    media: ThinkerMedia | None = None


@dataclass(frozen=True, slots=True)
class ReadableText:
    """The text that a checkpoint was trained to read.

    `reads` is "words" (no digits, symbols or capitals), "prose" (text as it is printed), or "anything" (also addresses,
    formulas and other scripts). `alphabet` "ascii" limits it to ASCII characters. `letters` is how it wants single
    letters: by their names ("eff bee eye"), with blanks ("F B I"), or as they are written ("FBI").
    """

    reads: Literal["words", "prose", "anything"] = "prose"
    alphabet: Literal["ascii"] | None = None
    letters: Literal["names", "spaced", "as_written"] = "as_written"


@dataclass(frozen=True, slots=True)
class SpeakerInfo:
    """Sound of a preset speaker, for people who choose one. A value that its checkpoint does not state is None.

    `accent` is a word such as American. `language` is the speaker's own, by the checkpoint's name of it.
    """

    sex: Literal["female", "male"] | None = None
    accent: str | None = None
    language: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Description of a loaded checkpoint: everything that the server needs to know about it.

    `embedding_size` is the size of a VoiceReference's embedding, or 0 if the checkpoint takes no reference. `clones`
    is true if it takes reference audio. `max_utterance_chars` is the longest text that it speaks reliably as one
    utterance, or None if no limit is known. `max_context_chars` is the longest text of an utterance with that of its
    context, for a model with that limit; None if it takes no context. `text` is the text that it reads. `speaker_infos`
    describes the speakers about which something is known, by name. `word_times` is true if it can tell when words are
    spoken, from attention that is wrong by `alignment_offset_s` in the mean.
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
    max_context_chars: int | None = None
    text: ReadableText = ReadableText()
    speaker_infos: Mapping[str, SpeakerInfo] = field(default_factory=dict)
    word_times: bool = False
    alignment_offset_s: float = 0.0

    @property
    def spoken_languages(self) -> tuple[str, ...]:
        """The languages by name, without "auto"."""
        return tuple(language for language in self.languages if language != AUTO_LANGUAGE)

    @property
    def frame_s(self) -> float:
        """Seconds of audio in one codec frame."""
        return self.samples_per_frame / self.sample_rate
