"""Voices: all that an engine can speak with, which are preset speakers, stored voices, mixes and clones. Torch-free.

Methods may be called from any thread except the engine's. Those that read files or encode audio block, so asyncio code
calls them through `asyncio.to_thread`.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vivavoce_engine.config import RefTextCheck
from vivavoce_engine.embeddings import check_embedding
from vivavoce_engine.errors import Overloaded, RefTextMismatch, Rejected
from vivavoce_engine.request import Hearing, ModelInfo, VoiceReference
from vivavoce_engine.runtime import lower_thread_priority
from vivavoce_engine.text.transcript import can_compare, is_mismatch, mismatch_message, words_wrong
from vivavoce_engine.voices.blends import blend_embeddings, embedding_of, parse_blend
from vivavoce_engine.voices.lru import ByteLimitedCache
from vivavoce_engine.voices.recognizer import Recognizer
from vivavoce_engine.voices.reference_reader import ReferenceReader
from vivavoce_engine.voices.store import StoredVoice, VoiceStore, check_voice, key_of

CACHE_BYTES = 64 * 2**20
HEARD_BYTES = 2**20
HEARD_OVERHEAD_BYTES = 256
"""Memory of an entry beside its text, about."""
MAX_WAITING = 16
"""Recordings that may wait to be encoded, including the one at work. The next one is refused as Overloaded."""
RETRY_AFTER_S = 2.0
MAX_NAMES_IN_ERROR = 24
NO_ALIASES: Mapping[str, str] = {}
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Heard:
    """The words that a recognizer heard in a recording. None if it could not tell."""

    text: str | None

    @property
    def nbytes(self) -> int:
        return HEARD_OVERHEAD_BYTES + len((self.text or "").encode())


class AudioEncoder(Protocol):
    def encode(self, audio: NDArray[np.float32]) -> VoiceReference:
        """audio [samples] float32 mono at 24 kHz → embedding and codes, without text."""
        ...

    def fit(self, reference: VoiceReference) -> float | None:
        """The fit of a reference's text and codes, in nats a frame (text/transcript.py). None if it cannot be told."""
        ...


class Voices:
    """The voices of one engine.

    `presets` are the preset speakers' embeddings, [hidden] float32 each. `encoder` is for a model that clones. Several
    engines may share a `store`. A `recognizer` judges transcripts where it can, and the talker the others.
    """

    def __init__(
        self,
        info: ModelInfo,
        presets: Mapping[str, NDArray[np.float32]] | None = None,
        encoder: AudioEncoder | None = None,
        store: VoiceStore | None = None,
        ref_text_check: RefTextCheck = "flag",
        recognizer: Recognizer | None = None,
    ) -> None:
        self.store = store
        self._ref_text_check = ref_text_check
        self._recognizer = recognizer
        self._info = info
        self._presets = {} if presets is None else presets
        self._names = {name.casefold(): name for name in info.speakers}
        self._encoder = encoder
        self._reader = ReferenceReader()
        self._encoded: ByteLimitedCache[bytes, VoiceReference] = ByteLimitedCache(CACHE_BYTES)
        self._heard: ByteLimitedCache[bytes, Heard] = ByteLimitedCache(HEARD_BYTES)
        self._judged: ByteLimitedCache[tuple[bytes, str], VoiceReference] = ByteLimitedCache(CACHE_BYTES)
        self._encoder_thread = ThreadPoolExecutor(1, "vivavoce-encoder", initializer=lower_thread_priority)
        self._waiting_recordings = 0
        self._lock = threading.Lock()

    # ---- by name ----------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Names of the preset speakers, then of the stored voices."""
        return [*self._info.speakers, *(self.store.names() if self.store else ())]

    def speaker(self, name: str) -> str | None:
        """The preset speaker of that name in any letter case, or None. Reads no file, so asyncio code may call it."""
        return self._names.get(name.casefold())

    def resolve(
        self, voice: str, aliases: Mapping[str, str] = NO_ALIASES, x_vector_only: bool = False
    ) -> tuple[str, VoiceReference | None]:
        """Finds a client's voice, and returns `speaker` and `reference` of a SynthesisRequest.

        `voice` is a name, in any letter case, or a mix `a(2)+b(1)`. `aliases` maps further names, in lower case, to
        speakers, or to "" for the voice that the instructions design. A voice of the same name comes before an alias.
        `x_vector_only` uses a stored voice's embedding without its recording.

        Raises:
            Rejected: the voice does not exist, or this model cannot speak with it.
            RefTextMismatch: its text is not what is said in its recording, and the setting refuses that.
        """
        preset = self.speaker(voice)
        if preset is not None:
            return preset, None
        stored = self._stored(voice)
        if stored is not None:
            return "", self._reference_for_model(stored, x_vector_only)
        alias = aliases.get(voice.casefold())
        if alias is not None:
            return self.resolve(alias, x_vector_only=x_vector_only) if alias else ("", None)
        parts = parse_blend(voice)
        if len(parts) == 1 and parts[0][0] != voice:  # `a(2)` is `a`
            return self.resolve(parts[0][0], aliases, x_vector_only)
        return "", VoiceReference(self.blend(voice, aliases))

    def blend(self, mix: str, aliases: Mapping[str, str] = NO_ALIASES) -> NDArray[np.float32]:
        """The embedding of a mix `a(2)+b(1)`, [hidden] float32: the weighted mean of its voices.

        Raises:
            Rejected: as by `resolve`.
        """
        parts = parse_blend(mix)
        embeddings = [self.embedding(name, aliases) for name, _ in parts]
        return blend_embeddings(embeddings, [weight for _, weight in parts])

    def embedding(self, name: str, aliases: Mapping[str, str] = NO_ALIASES) -> NDArray[np.float32]:
        """The embedding, [hidden] float32, of one preset speaker or stored voice, its name in any letter case.

        Raises:
            Rejected: the voice does not exist, or cannot be mixed.
        """
        preset = self.speaker(name)
        if preset is not None:
            if preset not in self._presets:
                raise Rejected("speaker", "the voices of this model cannot be mixed")
            embedding = self._presets[preset]
            assert embedding.shape == (self._info.embedding_size,)
            return embedding
        stored = self._stored(name)
        if stored is not None:
            return self._reference_for_model(stored, x_vector_only=True).embedding
        if name.casefold() in aliases:
            return self.embedding(aliases[name.casefold()])
        raise self._unknown(name)

    def _stored(self, name: str) -> StoredVoice | None:
        return None if self.store is None else self.store.get(name)

    def _reference_for_model(self, stored: StoredVoice, x_vector_only: bool) -> VoiceReference:
        """The reference of a stored voice for this model. Its recording is left out if the model does not clone."""
        reference = stored.reference
        if reference.embedding.size != self._info.embedding_size:
            raise Rejected(
                "speaker",
                f"the voice {stored.name!r} was made for a model with embeddings of {reference.embedding.size}; "
                f"this one's have {self._info.embedding_size}",
            )
        recording = self._info.clones and not x_vector_only
        if reference.codes is None:
            return reference
        return self._checked(reference, "speaker") if recording else VoiceReference(reference.embedding)

    def _unknown(self, name: str) -> Rejected:
        names = self.names()
        more = f" and {len(names) - MAX_NAMES_IN_ERROR} more" if len(names) > MAX_NAMES_IN_ERROR else ""
        known = f"there are {', '.join(names[:MAX_NAMES_IN_ERROR])}{more}" if names else "there are none"
        return Rejected("speaker", f"there is no voice {name!r}; {known}")

    def _checked(self, reference: VoiceReference, param: str) -> VoiceReference:
        """The reference, without what the check found if the setting `ref_text_check` is off.

        A stored one has what was found at its upload.

        Raises:
            RefTextMismatch: the text is not what is said in it, and the setting refuses that.
        """
        if self._ref_text_check == "off":
            return replace(reference, text_fit=None, hearing=None)
        if self._ref_text_check == "refuse" and is_mismatch(reference):
            raise RefTextMismatch(param, mismatch_message(reference))
        return reference

    # ---- from a recording -------------------------------------------------------------------------------------

    def clone(self, audio: bytes, text: str = "") -> VoiceReference:
        """Clones the voice in an audio file. The same bytes are encoded once.

        With `text`, the words of the recording, the model continues the recording. Without it, the model uses only the
        speaker embedding.

        Raises:
            Rejected: this model does not clone, or the file cannot serve as a reference.
            RefTextMismatch: the text is not what is said in it, and the setting `ref_text_check` refuses that.
            Overloaded: too many recordings are waiting.
        """
        if self._encoder is None:
            raise Rejected("reference", "this model does not clone voices from audio; a Base model does")
        key = hashlib.sha256(audio).digest()
        if not text.strip():
            encoded = self._encoded.get(key) or self._in_turn(partial(self._encode, key, audio))
            return VoiceReference(encoded.embedding)
        reference = self._judged.get((key, text)) or self._in_turn(partial(self._judge, key, audio, text))
        return self._checked(reference, "ref_text")

    def _in_turn(self, work: Callable[[], Result]) -> Result:
        """Does work with a recording on the encoder's thread. Raises Overloaded if too many wait."""
        with self._lock:
            if self._waiting_recordings >= MAX_WAITING:
                raise Overloaded(f"{MAX_WAITING} recordings are waiting to be encoded", RETRY_AFTER_S)
            self._waiting_recordings += 1
        try:
            return self._encoder_thread.submit(work).result()
        finally:
            with self._lock:
                self._waiting_recordings -= 1
                assert self._waiting_recordings >= 0

    def _encode(self, key: bytes, audio: bytes) -> VoiceReference:
        """Encodes one recording on the encoder's thread. In a batch, padding would change the shorter ones."""
        assert self._encoder is not None
        encoded = self._encoded.get(key)  # an earlier request in the queue may have had the same bytes
        if encoded is None:
            encoded = self._encoder.encode(self._reader.read(audio))
            assert encoded.embedding.shape == (self._info.embedding_size,)
            assert encoded.codes is not None, "an encoder gives the recording too"
            assert not encoded.text, "only the caller knows it"
            self._encoded.put(key, encoded)
        return encoded

    def _judge(self, key: bytes, audio: bytes, text: str) -> VoiceReference:
        """Encodes one recording with its text, and looks whether they fit, on the encoder's thread."""
        reference = self._judged.get((key, text))
        if reference is None:
            reference = replace(self._encode(key, audio), text=text)
            if self._ref_text_check != "off":
                reference = self._weighed(key, audio, reference)
            self._judged.put((key, text), reference)
        return reference

    def _weighed(self, key: bytes, audio: bytes, reference: VoiceReference) -> VoiceReference:
        """The reference with what the recognizer heard, or else with the talker's fit."""
        heard = self._hear(key, audio)
        if heard is not None and can_compare(reference.text, heard):
            return replace(reference, hearing=Hearing(heard, words_wrong(reference.text, heard)))
        assert self._encoder is not None
        return replace(reference, text_fit=self._encoder.fit(reference))

    def _hear(self, key: bytes, audio: bytes) -> str | None:
        """Words that the recognizer hears in a recording, once for all its transcripts. None if it cannot tell."""
        if self._recognizer is None:
            return None
        heard = self._heard.get(key)
        if heard is None:
            heard = Heard(self._recognizer.hear(partial(self._reader.read, audio)))
            self._heard.put(key, heard)
        return heard.text

    def check_recording(self, audio: bytes) -> None:
        """Decodes a recording that is to be kept, but not cloned.

        Raises:
            Rejected: the file cannot be read, or is no recording that could be cloned.
            Overloaded: too many recordings are waiting.
        """
        self._in_turn(partial(self._reader.read, audio))

    # ---- to store ---------------------------------------------------------------------------------------------

    def add(
        self, name: str, consent: str, voice: bytes | str | ArrayLike, text: str = "", prompt: str = ""
    ) -> StoredVoice:
        """Stores a voice: an audio file's bytes (`text` holds its words, if known), a mix `a(2)+b(1)`, or an embedding.

        A voice that was designed has a `prompt`, and needs no consent.

        Raises:
            Rejected: `param` is the argument at fault: name, consent, ref_text, prompt, speaker or reference.
            StoreFull, Overloaded: try again when there is room.
            StoreFailed: the disk cannot be written to.
        """
        label = " ".join(name.split())
        name = key_of(name)
        if self.store is None:
            raise Rejected("name", "this server stores no voices")
        if name in self._names:
            raise Rejected("name", f"there is a voice {name!r} already")
        blank = VoiceReference(np.zeros(0, np.float32), None, text)
        check_voice(StoredVoice(name, 0, consent, blank, label, prompt))  # before the recording is encoded
        if self.store.has(name):
            raise Rejected("name", f"there is a voice {name!r} already")
        if isinstance(voice, bytes):
            reference = self.clone(voice, text)
        else:
            reference = self.direct(self.blend(voice) if isinstance(voice, str) else voice, text)
        return self.store.add(StoredVoice(name, int(time.time()), consent, reference, label, prompt))

    def direct(self, embedding: ArrayLike, text: str = "") -> VoiceReference:
        """A voice from a client's own speaker embedding, [hidden] numbers.

        Raises:
            Rejected: the values are not an embedding of this model.
        """
        if text.strip():
            raise Rejected("ref_text", "ref_text is what is said in a recording; an embedding has none")
        values = embedding_of(embedding)
        check_embedding(values, self._info.embedding_size)
        return VoiceReference(values)
