"""Finds the voice of a request: `speaker` and `reference` of the engine's request. Every route uses this module.

A request names its voice, or sends it. `voice` names a speaker, a stored voice, a mix `a(2)+b(1)`, or one of OpenAI's
voices. `ref_audio` sends a recording, which `ref_text` lets the speech continue; `speaker_embedding` sends an
embedding. A voice sent in the request wins over `voice`, because OpenAI's clients always send one. If `voice` names a
voice that exists here, the request is ambiguous and refused.
"""

import asyncio
import base64
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from vivavoce_engine import (
    MAX_BLEND_PARTS,
    MAX_REFERENCE_BYTES,
    MAX_TRANSCRIPT_CHARS,
    MAX_WAITING_RECORDINGS,
    Rejected,
    SpeechEngine,
    VoiceReference,
    blend_embeddings,
    check_characters,
    embedding_of,
    is_mismatch,
    mismatch_message,
    parse_blend,
)

from vivavoce_server.config import ServerConfig
from vivavoce_server.errors import REF_TEXT_MISMATCH, ApiError, invalid, rejected_as
from vivavoce_server.fetching import Fetcher, is_url
from vivavoce_server.openai_voices import voice_aliases
from vivavoce_server.schemas import SpeechOptions, WeightedEmbedding

DECODED_AT_ONCE = 2**20
"""Characters of base64 that are decoded before other threads have their turn."""
BLANKS = b" \t\r\n\f\v"
USUAL_ALPHABET = bytes.maketrans(b"-_", b"+/")
PERCENT_CODES = tuple(
    (code, sign.encode())
    for sign in "+/=-_ \t\r\n"
    for code in {f"%{ord(sign):02x}".encode(), f"%{ord(sign):02X}".encode()}
)
"""Signs of base64 and blanks in percent code. Letters and figures never need it."""
ENCODED_HEAD = re.compile("data%3a[^,]{0,256}?%2c", re.IGNORECASE)
"""The part of a data URL before its data, in percent code."""
Chosen = tuple[str, VoiceReference | None]
"""`speaker` and `reference` of a SynthesisRequest."""
Recording = tuple[SpeechEngine, str, str]
Result = TypeVar("Result")


class References:
    """Finds voices for the requests of one app. Only the event loop uses it; files and encoders run on threads."""

    def __init__(self, config: ServerConfig, engines: int) -> None:
        self.fetcher = Fetcher(config.ref_audio_hosts)
        # These threads are separate from asyncio's own few, where waiting recordings would delay everything else. They
        # suffice for the engines to refuse an excess, so no recording waits for a thread.
        self._threads = ThreadPoolExecutor((engines + 1) * MAX_WAITING_RECORDINGS, "vivavoce-clone")
        self._cloning: dict[Recording, asyncio.Task[VoiceReference]] = {}

    async def voice_of(self, options: SpeechOptions, engine: SpeechEngine) -> Chosen:
        """The voice for the engine.

        Raises:
            ApiError: 400, the voice does not exist, or the reference is unusable; names the field that was sent.
            Overloaded: too many references are being processed.
        """
        _check_together(options)
        if options.ref_audio is None and options.speaker_embedding is None:
            return await self._named(options.voice_name, engine, options.x_vector_only_mode is True)
        field = "speaker_embedding" if options.ref_audio is None else "ref_audio"
        if options.voice_name is not None and await asyncio.to_thread(is_voice, options.voice_name, engine):
            raise invalid("voice", f"{options.voice_name!r} and {field} are two voices; send one of them")
        if options.ref_audio is not None:
            text = "" if options.x_vector_only_mode else options.ref_text or ""
            return "", await self.clone(options.ref_audio, text, engine)
        assert options.speaker_embedding is not None
        try:
            return "", engine.voices.direct(mean_embedding(options.speaker_embedding))
        except Rejected as error:
            raise rejected_as(error, reference="speaker_embedding") from error

    async def clone(self, ref_audio: str, text: str, engine: SpeechEngine) -> VoiceReference:
        """The voice in a client's `ref_audio`. Items of a batch with the same recording share the work.

        Raises the errors of `voice_of`.
        """
        key = (engine, ref_audio, text)
        task = self._cloning.get(key)
        if task is None:
            task = self._cloning[key] = asyncio.create_task(self._clone(*key))
            task.add_done_callback(lambda _: self._forget(key))
        # A client that leaves must not cancel the task for the others.
        return await asyncio.shield(task)

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Runs work that may wait for an encoder."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _forget(self, key: Recording) -> None:
        task = self._cloning.pop(key)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, even if no client waits for it any more

    async def _clone(self, engine: SpeechEngine, ref_audio: str, text: str) -> VoiceReference:
        if is_url(ref_audio):
            audio = await self.fetcher.fetch(ref_audio)
        else:
            audio = await asyncio.to_thread(decode_audio, ref_audio)
        try:
            return await self.in_thread(partial(engine.voices.clone, audio, text))
        except Rejected as error:
            raise rejected_as(error, reference="ref_audio") from error

    async def _named(self, voice: str | None, engine: SpeechEngine, x_vector_only: bool) -> Chosen:
        if voice is not None and (speaker := engine.voices.speaker(voice)) is not None:
            return speaker, None  # a speaker needs no file
        aliases = voice_aliases(engine.info)
        if voice is None:
            if engine.info.task == "voice_design":
                return "", None
            names = await asyncio.to_thread(engine.voices.names)
            known = f"there are {', '.join([*names, *aliases][:24])}" if names else "or send ref_audio"
            raise invalid("voice", f"Missing required field: voice; {known}", "missing_required_parameter")
        try:
            # A mix may have to wait until its model is loaded.
            return await self.in_thread(partial(engine.voices.resolve, voice, aliases, x_vector_only))
        except Rejected as error:
            exists = voice.casefold() in aliases or await asyncio.to_thread(is_voice, voice, engine)
            raise rejected_as(error, "invalid_value" if exists else "voice_not_found") from error


def _check_together(options: SpeechOptions) -> None:
    """Raises a 400 for fields that exclude each other."""
    if options.ref_audio is not None and options.speaker_embedding is not None:
        raise invalid("speaker_embedding", "ref_audio and speaker_embedding are two voices; send one of them")
    text = options.ref_text
    if text is not None and text.strip():
        if options.ref_audio is None:
            raise invalid("ref_text", "ref_text is what is said in ref_audio, which is missing")
        check_ref_text(text)
    elif options.ref_audio is not None and options.x_vector_only_mode is False:
        raise invalid("ref_text", "Missing field: to go on from ref_audio takes ref_text, what is said in it")


def check_ref_text(text: str) -> None:
    """Raises a 400 for a text that cannot be the transcript of a recording."""
    if len(text) > MAX_TRANSCRIPT_CHARS:
        raise invalid("ref_text", f"ref_text has {len(text)} characters; the most is {MAX_TRANSCRIPT_CHARS}")
    check_characters("ref_text", text)


def is_voice(name: str, engine: SpeechEngine) -> bool:
    """True if the engine has a speaker or a stored voice of that name. Reads the disk."""
    if engine.voices.speaker(name) is not None:
        return True
    store = engine.voices.store
    return store is not None and store.get(name) is not None


def meaning_of(name: str, engine: SpeechEngine) -> Hashable:
    """A value that is the same for every name of one voice: in any letter case, OpenAI's, or a mix of such names.

    It is the name in small letters if there is no such voice. Reads the disk.
    """
    if (speaker := engine.voices.speaker(name)) is not None:
        return speaker
    store = engine.voices.store
    if store is not None and (stored := store.get(name)) is not None:
        return "stored", stored.name
    aliases = voice_aliases(engine.info)
    if (alias := aliases.get(name.casefold())) is not None:
        return alias
    try:
        parts = parse_blend(name)
    except Rejected:
        return name.casefold()
    if len(parts) == 1:
        return name.casefold() if parts[0][0] == name else meaning_of(parts[0][0], engine)
    return tuple((meaning_of(part, engine), weight) for part, weight in parts)


def mismatch_warnings(references: Iterable[VoiceReference | None]) -> tuple[str, ...]:
    """Sentences about references whose transcript is most likely of another recording, each once."""
    bad = (each for each in references if each is not None and is_mismatch(each))
    return tuple(dict.fromkeys(f"{REF_TEXT_MISMATCH}: {mismatch_message(each)}" for each in bad))


def facts_of(voice: Chosen) -> Hashable:
    """A value that is the same for the same voice, wherever it comes from."""
    speaker, reference = voice
    if reference is None:
        return speaker, None
    codes = b"" if reference.codes is None else reference.codes.tobytes()
    return speaker, (reference.embedding.tobytes(), codes, reference.text)


def mean_embedding(given: Sequence[float] | Sequence[WeightedEmbedding]) -> NDArray[np.float32]:
    """A client's embedding, or the weighted mean of several, as float32 [size].

    Raises:
        Rejected: the input is not an embedding.
    """
    weighted = [part for part in given if isinstance(part, WeightedEmbedding)]
    if len(weighted) > MAX_BLEND_PARTS:
        raise Rejected("reference", f"a mix of {len(weighted)} embeddings; the most is {MAX_BLEND_PARTS}")
    if weighted:
        return blend_embeddings([part.embedding for part in weighted], [part.weight for part in weighted])
    return embedding_of([value for value in given if isinstance(value, float)])


def decode_audio(text: str) -> bytes:
    """The file in a `data:` URL or in plain base64: RFC 4648 with either alphabet, padded or not, in lines (RFC 2045).

    Signs of base64 may be in percent code, as in any URL, and the signs before it too: programs encode whole URLs.

    Raises:
        ApiError: 400, the text is neither, or the file is too large.
    """
    if text[:7].lower() == "data%3a" and (head := ENCODED_HEAD.match(text)):
        text = unquote(head[0]) + text[head.end() :]
    if text[:5].lower() == "data:":
        kind, comma, text = text.partition(",")
        if not comma or not kind.lower().endswith(";base64"):
            raise _no_audio()
    try:
        plain = _plain_base64(text)
        if len(plain) * 3 // 4 > MAX_REFERENCE_BYTES + 2:
            raise invalid("ref_audio", f"The reference audio is larger than {MAX_REFERENCE_BYTES // 2**20} MiB")
        starts = range(0, len(plain), DECODED_AT_ONCE)
        audio = b"".join([base64.b64decode(plain[at : at + DECODED_AT_ONCE], validate=True) for at in starts])
    except ValueError:
        raise _no_audio() from None
    if not audio:
        raise _no_audio()
    return audio


def _plain_base64(text: str) -> bytes:
    """Base64 in the usual alphabet, padded and without blanks. Each step is a pass of C code.

    Raises:
        ValueError: there are characters that no form of base64 has.
    """
    encoded = text.encode("ascii")
    if b"%" in encoded:
        for code, sign in PERCENT_CODES:
            encoded = encoded.replace(code, sign)
    encoded = encoded.translate(USUAL_ALPHABET, BLANKS).rstrip(b"=")
    if b"=" in encoded:
        raise ValueError("padding is at the end alone")
    return encoded + b"=" * (-len(encoded) % 4)


def _no_audio() -> ApiError:
    return invalid("ref_audio", "ref_audio is a data: URL in base64, plain base64, or an http(s) URL")
