"""A runner without a model. It speaks a steady tone whose pitch depends on the seed. For tests and client work."""

import re
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.messages import AudioChunk, WordTime
from vivavoce_engine.batching.runner import ImmediateRunner, Outcome
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.config import RefTextCheck
from vivavoce_engine.errors import Rejected
from vivavoce_engine.model import Model, Parts
from vivavoce_engine.request import (
    ModelInfo,
    Sampling,
    SpeakerInfo,
    SynthesisRequest,
    UtteranceOptions,
    VoiceReference,
)
from vivavoce_engine.text.answer import AnswerFrontend, AnswerTokens
from vivavoce_engine.text.prompt import NO_ID, Prompt
from vivavoce_engine.text.transcript import NO_FIT, too_long
from vivavoce_engine.text.words import TextWord
from vivavoce_engine.voices.recognizer import Recognizer
from vivavoce_engine.voices.registry import Voices
from vivavoce_engine.voices.store import VoiceStore

SAMPLE_RATE = 24000
SAMPLES_PER_FRAME = 1920
EMBEDDING_SIZE = 8
FAKE_FIT = 4.0
"""Fit of a transcript, in nats a frame, unless it is too long for its recording."""
FAKE_INFO = ModelInfo(
    name="fake",
    task="custom_voice",
    speakers=("heart", "michael"),
    languages=("auto", "english"),
    takes_instructions=True,
    sampling=Sampling(),
    max_frames=8192,
    sample_rate=SAMPLE_RATE,
    samples_per_frame=SAMPLES_PER_FRAME,
    embedding_size=EMBEDDING_SIZE,
    clones=True,
    word_times=True,
    speaker_infos={
        "heart": SpeakerInfo("female", "American", "english", "A steady tone"),
        "michael": SpeakerInfo("male", "British", "english", "The same tone"),
    },
)


FAKE_CHAT_INFO = replace(
    FAKE_INFO,
    name="fake-chat",
    task="chat",
    languages=("auto",),
    takes_instructions=False,
    embedding_size=0,
    clones=False,
    word_times=False,
)
"""A chat model whose token ids are code points; ids of control tokens come behind them."""
_CONTROL = count(sys.maxunicode + 1)
FAKE_ANSWERS = AnswerFrontend(
    AnswerTokens(
        im_start=next(_CONTROL),
        user=next(_CONTROL),
        assistant=next(_CONTROL),
        newline=ord("\n"),
        audio=next(_CONTROL),
        image=next(_CONTROL),
        video=next(_CONTROL),
        vision_start=next(_CONTROL),
        tts_pad=next(_CONTROL),
        tts_bos=next(_CONTROL),
        tts_eos=next(_CONTROL),
        ends=(next(_CONTROL), next(_CONTROL)),
        vocab_size=next(_CONTROL),
        codec_open=(0, 1, 2),
        codec_pad=3,
        codec_bos=4,
    ),
    {"heart": 5, "michael": 6},
    EMBEDDING_SIZE,
)


def tone(seed: int, first_frame: int, frames: int) -> NDArray[np.float32]:
    """Audio of a fake utterance with this seed: `frames` frames from `first_frame` on, [samples] float32."""
    start, stop = first_frame * SAMPLES_PER_FRAME, (first_frame + frames) * SAMPLES_PER_FRAME
    frequency_hz = 200 + seed % 400
    wave: NDArray[np.float64] = 0.3 * np.sin(2 * np.pi * frequency_hz / SAMPLE_RATE * np.arange(start, stop))
    return wave.astype(np.float32)


@dataclass(frozen=True, slots=True)
class FakeText:
    """A text frontend with one token for each character. It checks speaker and language as a real one does."""

    info: ModelInfo

    def prompt(self, request: SynthesisRequest) -> Prompt:
        if not request.text.strip():
            raise Rejected("text", "the text is blank")
        if request.reference is None and request.speaker not in self.info.speakers:
            raise Rejected("speaker", f"there is no speaker {request.speaker!r}")
        if request.language.lower() not in self.info.languages:
            raise Rejected("language", f"there is no language {request.language!r}")
        return self.build(request, [ord(character) for character in request.text], complete=True)

    end_of_text_id = 0

    def live_text(self, word_times: bool = False) -> "FakeText":
        return self

    def append(self, text: str, word_ends: bool = False) -> list[int]:
        return [ord(character) for character in text]

    def close(self) -> list[int]:
        return []

    def take_words(self, complete: bool) -> list[TextWord]:
        return []  # FakeRunner finds them itself

    def tokens_to_start(self, options: UtteranceOptions) -> int:
        return 1

    def build(self, options: UtteranceOptions, text: SequenceOf[int], complete: bool) -> Prompt:
        if options.reference is None and options.speaker not in self.info.speakers:
            raise Rejected("speaker", f"there is no speaker {options.speaker!r}")
        if options.language.lower() not in self.info.languages:
            raise Rejected("language", f"there is no language {options.language!r}")
        trailing = (*text[1:], *([self.end_of_text_id] if complete else [])) if options.streaming_text else ()
        return Prompt((text[0],), (NO_ID,), trailing, len(text))


class FakeEncoder:
    """Encodes a recording as the loudness of its eight equal parts. Its codes are zeros, one a frame."""

    def encode(self, audio: NDArray[np.float32]) -> VoiceReference:
        parts = np.array_split(np.abs(audio), EMBEDDING_SIZE)
        embedding = np.array([part.mean() for part in parts], np.float32)
        return VoiceReference(embedding, np.zeros((-(-len(audio) // SAMPLES_PER_FRAME), 1), np.int16))

    def fit(self, reference: VoiceReference) -> float | None:
        """A text fits unless it has more characters than can be said in the recording."""
        assert reference.codes is not None
        return NO_FIT if too_long(len(reference.text), len(reference.codes)) else FAKE_FIT


def fake_presets(info: ModelInfo = FAKE_INFO) -> dict[str, NDArray[np.float32]]:
    return {name: np.full(EMBEDDING_SIZE, number, np.float32) for number, name in enumerate(info.speakers, 1)}


def fake_voices(
    store: VoiceStore | None = None,
    info: ModelInfo = FAKE_INFO,
    ref_text_check: RefTextCheck = "flag",
    recognizer: Recognizer | None = None,
) -> Voices:
    """Voices of a fake engine. They can be mixed, cloned and stored like real ones."""
    return Voices(info, fake_presets(info), FakeEncoder(), store, ref_text_check, recognizer)


def fake_model() -> Model:
    """A model that speaks tones, for an engine in a process of its own."""
    return Model(FAKE_INFO, FakeText(FAKE_INFO), fake_parts)


def fake_chat_model() -> Model:
    """A model that speaks the answers of a thinker as tones."""
    return Model(FAKE_CHAT_INFO, FAKE_ANSWERS, fake_chat_parts)


def fake_chat_parts() -> Parts:
    return Parts(FakeRunner(FAKE_CHAT_INFO), {}, identity="fake-chat")


def fake_parts() -> Parts:
    return Parts(FakeRunner(), fake_presets(), FakeEncoder(), identity="fake")


class FakeRunner(ImmediateRunner):
    """Speaks `frames_per_character` frames a character. Calls `before_step` on the engine thread before each step."""

    def __init__(
        self,
        info: ModelInfo = FAKE_INFO,
        frames_per_character: float = 1.0,
        step_s: float = 0.0,
        before_step: Callable[[Plan], None] | None = None,
    ) -> None:
        self.info = info
        self.text: FakeText | AnswerFrontend = FAKE_ANSWERS if info.task == "chat" else FakeText(info)
        self._frames_per_character = frames_per_character
        self._step_s = step_s
        self._before_step = before_step

    def run(self, plan: Plan) -> Outcome:
        if self._before_step is not None:
            self._before_step(plan)
        if self._step_s:
            time.sleep(self._step_s)
        ended = {sequence.utterance_id: self._ends(sequence) for sequence in plan.step}
        audio = {
            sequence.utterance_id: AudioChunk(
                tone(sequence.pending.seed, sequence.frames_vocoded, frames),
                np.arange(sequence.frames_vocoded, sequence.frames_vocoded + frames, dtype=np.int16)[:, None],
                self._words(sequence, sequence.frames_vocoded, sequence.frames_vocoded + frames),
            )
            for sequence, frames in plan.vocode
        }
        return Outcome(plan, ended, audio, {})

    def _words(self, sequence: Sequence, first_frame: int, end_frame: int) -> tuple[WordTime, ...]:
        """The words that end in these frames. The characters of a text take equal times."""
        request = sequence.pending.request
        if not request.word_times:
            return ()
        if isinstance(request, SynthesisRequest):
            text = request.text
        else:
            ids = (*sequence.pending.prompt.text_ids, *sequence.trailing.ids)
            text = "".join(chr(each) for each in ids if each != self.text.end_of_text_id)
        # A part that goes on from nothing is spoken without the blanks at its beginning.
        blanks = len(text) - sequence.trailing.text_tokens if sequence.trailing.complete else 0
        frames = self._frames_per_character
        return tuple(
            WordTime(*word.span(), *((at - blanks) * frames * self.info.frame_s for at in word.span()))
            for word in re.finditer(r"\S+", text)
            if first_frame < max(1, round((word.end() - blanks) * frames)) <= end_frame
        )

    def _ends(self, sequence: Sequence) -> bool:
        prompt, length = sequence.pending.prompt, round(self._frames_per_character * sequence.trailing.text_tokens)
        made = sequence.frames_made + (not prompt.reads_first)
        return sequence.trailing.complete and made >= max(prompt.min_frames, length)
