"""Every voice that an engine can speak with: preset speakers, stored voices, mixes of both, and clones. Torch-free.

All methods may be called from any thread but the engine's; those that read files or encode audio take a while, so
asyncio code calls them through `asyncio.to_thread`.
"""

import hashlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vivavoce_engine.embeddings import check_embedding
from vivavoce_engine.errors import Overloaded, Rejected
from vivavoce_engine.request import ModelInfo, VoiceReference
from vivavoce_engine.voices.blends import blend_embeddings, embedding_of, parse_blend
from vivavoce_engine.voices.lru import ByteLimitedCache
from vivavoce_engine.voices.reference_reader import ReferenceReader
from vivavoce_engine.voices.store import StoredVoice, VoiceStore, check_voice

CACHE_BYTES = 64 * 2**20
MAX_WAITING = 16
"""Recordings that may wait to be encoded; the next one is refused as Overloaded."""
RETRY_AFTER_S = 2.0
NICENESS = 10
"""Of the encoding thread, where the system has it by thread: running streams come first."""
NAMED_IN_ERROR = 24
NO_NAMES: Mapping[str, str] = {}


class AudioEncoder(Protocol):
    def encode(self, audio: NDArray[np.float32]) -> VoiceReference:
        """audio [samples] float32 mono at 24 kHz → embedding and codes, without text."""
        ...


class Voices:
    """The voices of one engine. `presets` are the speakers' embeddings, [hidden] each; a server may give one store to
    several engines."""

    def __init__(
        self,
        info: ModelInfo,
        presets: Mapping[str, NDArray[np.float32]] | None = None,
        encoder: AudioEncoder | None = None,
        store: VoiceStore | None = None,
    ) -> None:
        self.store = store
        self._info = info
        self._presets = {} if presets is None else presets
        self._names = {name.casefold(): name for name in info.speakers}
        self._encoder = encoder
        self._reader = ReferenceReader()
        self._encoded: ByteLimitedCache[bytes, VoiceReference] = ByteLimitedCache(CACHE_BYTES)
        self._worker = ThreadPoolExecutor(1, "vivavoce-encoder", initializer=step_back)
        self._waiting = 0
        self._lock = threading.Lock()

    # ---- by name ----------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Preset speakers, then the stored voices."""
        return [*self._info.speakers, *(self.store.names() if self.store else ())]

    def speaker(self, name: str) -> str | None:
        """The preset speaker of that name in any letter case. Reads no file, so asyncio code may call it as it is."""
        return self._names.get(name.casefold())

    def resolve(
        self, voice: str, aliases: Mapping[str, str] = NO_NAMES, x_vector_only: bool = False
    ) -> tuple[str, VoiceReference | None]:
        """What a client calls a voice → `speaker` and `reference` of a SynthesisRequest.

        A name, in any letter case, or a mix `a(2)+b(1)`. `aliases` maps more names, in lower case, to speakers, or to
        "" for the voice that the instructions design; a voice that has such a name itself comes first.
        `x_vector_only` leaves a stored voice's recording aside.

        Raises:
            Rejected: there is no such voice, or this model cannot speak with it.
        """
        preset = self.speaker(voice)
        if preset is not None:
            return preset, None
        stored = self._stored(voice)
        if stored is not None:
            return "", self._usable(stored, x_vector_only)
        alias = aliases.get(voice.casefold())
        if alias is not None:
            return self.resolve(alias, x_vector_only=x_vector_only) if alias else ("", None)
        parts = parse_blend(voice)
        if len(parts) == 1 and parts[0][0] != voice:  # `a(2)` is `a`
            return self.resolve(parts[0][0], aliases, x_vector_only)
        return "", VoiceReference(self.blend(voice, aliases))

    def blend(self, mix: str, aliases: Mapping[str, str] = NO_NAMES) -> NDArray[np.float32]:
        """[hidden] of `a(2)+b(1)`, the weighted mean of its voices; `a` alone is that voice's embedding.

        Raises:
            Rejected: as `resolve`.
        """
        parts = parse_blend(mix)
        embeddings = [self.embedding(name, aliases) for name, _ in parts]
        return blend_embeddings(embeddings, [weight for _, weight in parts])

    def embedding(self, name: str, aliases: Mapping[str, str] = NO_NAMES) -> NDArray[np.float32]:
        """[hidden] of one preset speaker or stored voice, in any letter case.

        Raises:
            Rejected: there is no such voice.
        """
        preset = self.speaker(name)
        if preset is not None:
            if preset not in self._presets:
                raise Rejected("speaker", "the voices of this model cannot be mixed")
            return self._presets[preset]
        stored = self._stored(name)
        if stored is not None:
            return self._usable(stored, x_vector_only=True).embedding
        if name.casefold() in aliases:
            return self.embedding(aliases[name.casefold()])
        raise self._unknown(name)

    def _stored(self, name: str) -> StoredVoice | None:
        return None if self.store is None else self.store.get(name)

    def _usable(self, stored: StoredVoice, x_vector_only: bool) -> VoiceReference:
        """The stored voice as this model can use it: only one that clones goes on from a recording."""
        reference = stored.reference
        if reference.embedding.size != self._info.embedding_size:
            raise Rejected(
                "speaker",
                f"the voice {stored.name!r} was made for a model with embeddings of {reference.embedding.size}; "
                f"this one's have {self._info.embedding_size}",
            )
        recording = self._info.clones and not x_vector_only
        return reference if recording or reference.codes is None else VoiceReference(reference.embedding)

    def _unknown(self, name: str) -> Rejected:
        names = self.names()
        more = f" and {len(names) - NAMED_IN_ERROR} more" if len(names) > NAMED_IN_ERROR else ""
        known = f"there are {', '.join(names[:NAMED_IN_ERROR])}{more}" if names else "there are none"
        return Rejected("speaker", f"there is no voice {name!r}; {known}")

    # ---- from a recording -------------------------------------------------------------------------------------

    def clone(self, audio: bytes, text: str = "") -> VoiceReference:
        """An audio file's bytes → the voice in it. `text`, what is said in it, is for going on from the recording;
        without it the speaker embedding alone is used. The same bytes are encoded once.

        Raises:
            Rejected: this model does not clone, or the file is no fit reference.
            Overloaded: too many recordings wait already.
        """
        if self._encoder is None:
            raise Rejected("reference", "this model does not clone voices from audio; a Base model does")
        key = hashlib.sha256(audio).digest()
        encoded = self._encoded.get(key) or self._encode_in_turn(key, audio)
        return replace(encoded, text=text) if text.strip() else VoiceReference(encoded.embedding)

    def _encode_in_turn(self, key: bytes, audio: bytes) -> VoiceReference:
        with self._lock:
            if self._waiting >= MAX_WAITING:
                raise Overloaded(f"{MAX_WAITING} recordings are waiting to be encoded", RETRY_AFTER_S)
            self._waiting += 1
        try:
            return self._worker.submit(self._encode, key, audio).result()
        finally:
            with self._lock:
                self._waiting -= 1

    def _encode(self, key: bytes, audio: bytes) -> VoiceReference:
        """On the worker: one recording at a time, alone, since padding a batch would change the shorter ones."""
        assert self._encoder is not None
        encoded = self._encoded.get(key)  # whoever waited before may have brought the same
        if encoded is None:
            encoded = self._encoder.encode(self._reader.read(audio))
            self._encoded.put(key, encoded)
        return encoded

    # ---- to keep ----------------------------------------------------------------------------------------------

    def add(self, name: str, consent: str, voice: bytes | str | ArrayLike, text: str = "") -> StoredVoice:
        """Stores a voice: an audio file's bytes (with what is said in it, or without), a mix `a(2)+b(1)` of other
        voices, or an embedding.

        Raises:
            Rejected: names the argument at fault: name, consent, ref_text or reference.
            StoreFull, Overloaded: try again when there is room.
        """
        name = name.strip().casefold()
        if self.store is None:
            raise Rejected("name", "this server stores no voices")
        if name in self._names:
            raise Rejected("name", f"there is a voice {name!r} already")
        blank = VoiceReference(np.zeros(0, np.float32), None, text)
        check_voice(StoredVoice(name, 0, consent, blank))  # before the work of encoding
        if self.store.get(name) is not None:
            raise Rejected("name", f"there is a voice {name!r} already")
        if isinstance(voice, bytes):
            reference = self.clone(voice, text)
        else:
            reference = self.direct(self.blend(voice) if isinstance(voice, str) else voice, text)
        return self.store.add(StoredVoice(name, int(time.time()), consent, reference))

    def direct(self, embedding: ArrayLike, text: str = "") -> VoiceReference:
        """A voice from a client's own speaker embedding.

        Raises:
            Rejected: not an embedding of this model.
        """
        if text.strip():
            raise Rejected("ref_text", "ref_text is what is said in a recording; an embedding has none")
        values = embedding_of(embedding)
        check_embedding(values, self._info.embedding_size)
        return VoiceReference(values)


def step_back() -> None:
    """Lets the engine's thread go first. Only Linux counts niceness by thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
