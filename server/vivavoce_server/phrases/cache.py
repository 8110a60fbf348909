"""Puts the speech of requests into the folder of phrases, and takes it out.

A request's speech comes from the engine or from the folder, by the same interface: `submit` gives a stream of chunks
for each of its texts. Speech from the engine is written while it is heard. Nothing here makes speech fail: a disk that
does not serve costs entries, a line in the log and a count in the metrics.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import BinaryIO, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from vivavoce_engine import (
    AudioChunk,
    AudioStream,
    Finished,
    SpeechEngine,
    SynthesisFailed,
    SynthesisRequest,
    UtteranceOptions,
)

from vivavoce_server.config import ServerConfig
from vivavoce_server.metrics import PhraseError, PhraseMetrics, PhraseSource
from vivavoce_server.phrases.entry import BLOCK_BYTES, Damaged, EntryWriter, read_records
from vivavoce_server.phrases.folder import NoRoom, PartialEntry, PhraseFolder
from vivavoce_server.phrases.keys import Job, build, entity_tag, phrase_key, settings_digest

log = logging.getLogger(__name__)

THREADS = 8
Result = TypeVar("Result")


class Utterance(Protocol):
    """A text's speech, as an AudioStream gives it."""

    @property
    def finished(self) -> Finished | None: ...

    def cancel(self) -> None: ...

    async def all_codes(self) -> NDArray[np.int16]: ...

    def __aiter__(self) -> AsyncIterator[AudioChunk]: ...

    async def __anext__(self) -> AudioChunk: ...


class Phrase:
    """The speech of one request: `with phrase:`, `submit` for each of its texts in order. This one is never kept."""

    source: PhraseSource = "bypass"

    def __init__(self, engine: SpeechEngine) -> None:
        self._engine = engine

    def submit(self, request: SynthesisRequest) -> Utterance:
        """Begins a text's speech. Raises the errors of SpeechEngine.submit."""
        return self._engine.submit(request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class PhraseCache:
    """The phrases of one app. Its files may belong to several. Only the event loop uses it; files are on threads."""

    def __init__(self, config: ServerConfig, metrics: PhraseMetrics) -> None:
        self._metrics = metrics
        self._has_default_seed = config.default_seed is not None
        self._settings = settings_digest(config)
        self._told = ""
        self._threads = ThreadPoolExecutor(THREADS, "vivavoce-cache")
        self._folder: PhraseFolder | None = None
        if config.cache_dir is None:
            return
        build()  # reads some hundred files, once
        try:
            size_bytes = config.cache_size_mb * 2**20
            self._folder = PhraseFolder(config.cache_dir, size_bytes, metrics.evicted.inc)
        except OSError as error:
            metrics.errors.labels("write").inc()
            log.error("no phrases will be cached: %s", error)
            return
        metrics.size_bytes = partial(getattr, self._folder, "total_bytes")

    @property
    def is_on(self) -> bool:
        return self._folder is not None

    def key_of(self, job: Job, cast: Sequence[UtteranceOptions]) -> bytes | None:
        """The digest of all that decides the samples of a job; None if its speech is never kept.

        The job's text has been read. `cast` are the options of each turn, with its voice.
        """
        texts = texts_of(job)
        is_seeded = job.seed_is_fixed or self._has_default_seed
        if not (self.is_on and is_seeded and texts and job.engine.identity):
            return None
        assert job.script is not None, "the text of the job has been read"
        turns = job.script.part_turns
        spoken = [(cast[turn], part) for turn, part in zip(turns, job.parts, strict=True) if isinstance(part, str)]
        return phrase_key(job.engine.identity, spoken)

    def entity_tag(self, key: bytes, job: Job, *transfer: object) -> str:
        """The strong entity tag of a job's file. `transfer` tells how it is sent."""
        return entity_tag(key, job, transfer, self._settings)

    async def find(self, job: Job, key: bytes | None) -> Phrase:
        """The phrase of a job with this key."""
        folder = self._folder
        if folder is None or key is None:
            self.count(job, "bypass")
            return Phrase(job.engine)
        identity = job.engine.identity  # that of the key; it may be another once the disk has answered
        file = await self._open(folder, key)
        self.count(job, "hit" if file else "miss")
        if file is not None:
            return KeptPhrase(job.engine, file, self)
        return NewPhrase(job.engine, identity, EntryWriter(key), folder.begin(key), len(texts_of(job)), self)

    async def _open(self, folder: PhraseFolder, key: bytes) -> BinaryIO | None:
        try:
            return await self.in_thread(partial(folder.open, key))
        except Damaged as error:
            self.fault("damaged", error)
        except OSError as error:
            self.fault("read", error)
        return None

    # ---- for phrases ------------------------------------------------------------------------------------------

    def in_thread(self, work: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Runs work that waits for the disk. Encoders have other threads: a slow disk delays no other speech."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def count(self, job: Job, source: PhraseSource) -> None:
        if self.is_on:
            self._metrics.requests.labels(job.model, source).inc()

    def count_stored(self) -> None:
        self._metrics.stored.inc()

    def fault(self, kind: PhraseError, error: Exception) -> None:
        """Counts a fault of the cache, and logs it unless the last one was the same."""
        self._metrics.errors.labels(kind).inc()
        told = f"{kind}: {getattr(error, 'strerror', None) or error or type(error).__name__}"
        if told != self._told:
            self._told = told
            log.warning("the phrase cache lost an entry; %s", told)


def texts_of(job: Job) -> list[str]:
    """The texts that the engine speaks, without the pauses between them."""
    return [part for part in job.parts if isinstance(part, str)]


# ---- phrases from the cache -----------------------------------------------------------------------------------


class KeptPhrase(Phrase):
    """A phrase from a file that has been checked."""

    source: PhraseSource = "hit"

    def __init__(self, engine: SpeechEngine, file: BinaryIO, cache: PhraseCache) -> None:
        super().__init__(engine)
        self._file = file
        self._cache = cache
        self._records: deque[AudioChunk | Finished] = deque()

    def submit(self, request: SynthesisRequest) -> Utterance:
        return KeptUtterance(self)

    async def next_record(self) -> AudioChunk | Finished:
        """The next record of the file. Raises SynthesisFailed if somebody has cut the file since it was checked."""
        if not self._records:
            try:
                self._records.extend(await self._cache.in_thread(lambda: list(read_records(self._file))))
            except (OSError, Damaged) as error:
                self._cache.fault("read", error)
                raise SynthesisFailed("the cached speech cannot be read to its end") from error
        return self._records.popleft()

    def __exit__(self, *_: object) -> None:
        self._file.close()


class KeptUtterance:
    """The records of one text. Those of the next one follow in the file, so one is read after the other."""

    def __init__(self, phrase: KeptPhrase) -> None:
        self.finished: Finished | None = None
        self._phrase = phrase
        self._ended = False

    def cancel(self) -> None:
        self._ended = True

    async def all_codes(self) -> NDArray[np.int16]:
        """No codes: the speech that would continue them is in the file too."""
        return np.zeros((0, 0), np.int16)

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __anext__(self) -> AudioChunk:
        if self._ended:
            raise StopAsyncIteration
        record = await self._phrase.next_record()
        if isinstance(record, AudioChunk):
            return record
        self.finished = record
        self._ended = True
        raise StopAsyncIteration


# ---- phrases on their way into the cache ----------------------------------------------------------------------


class NewPhrase(Phrase):
    """A phrase that the engine speaks, and that is stored if all of it is heard and each text ended by itself."""

    source: PhraseSource = "miss"

    def __init__(
        self,
        engine: SpeechEngine,
        identity: str,
        writer: EntryWriter,
        entry: PartialEntry,
        texts: int,
        cache: PhraseCache,
    ) -> None:
        super().__init__(engine)
        self._identity = identity
        self._writer = writer
        self._entry = entry
        self._texts_left = texts
        self._cache = cache
        self._is_kept = True
        """False once the phrase will not be stored, for whatever reason, or is stored."""
        self._is_begun = False
        """True once the disk may have some of it."""

    def submit(self, request: SynthesisRequest) -> Utterance:
        return NewUtterance(self._engine.submit(request), self)

    async def add(self, chunk: AudioChunk) -> None:
        if not np.isfinite(chunk.pcm).all():  # a fault, which the listener's encoder may find later
            self._is_kept = False
        if self._is_kept:
            self._writer.add(chunk)
            if self._writer.waiting_bytes >= BLOCK_BYTES:
                await self._write()

    async def end_utterance(self, finished: Finished | None) -> None:
        """Ends a text's speech. None: it was cancelled."""
        if finished is None or finished.reason != "stop" or self._engine.identity != self._identity:
            self._is_kept = False
        elif self._is_kept:
            self._writer.end_utterance(finished)
            self._texts_left -= 1
            if not self._texts_left:
                await self._write(last=True)

    async def _write(self, *, last: bool = False) -> None:
        self._is_begun = True
        try:
            await self._cache.in_thread(lambda: self._entry.write(self._writer.take(last=last), last=last))
        except NoRoom as error:
            self._is_kept = False
            log.debug("a phrase is not cached: %s", error)
        except OSError as error:
            self._is_kept = False
            self._cache.fault("write", error)
        else:
            if last:
                self._is_begun = self._is_kept = False
                self._cache.count_stored()

    def __exit__(self, *_: object) -> None:
        if self._is_begun:  # and not complete
            with suppress(RuntimeError):  # the server has ended; a later start deletes the file
                self._cache.in_thread(self._entry.abandon)


class NewUtterance:
    """A stream of the engine whose chunks go into the cache as they are heard."""

    def __init__(self, stream: AudioStream, phrase: NewPhrase) -> None:
        self._stream = stream
        self._phrase = phrase
        self.cancel = stream.cancel
        self.all_codes = stream.all_codes

    @property
    def finished(self) -> Finished | None:
        return self._stream.finished

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __anext__(self) -> AudioChunk:
        try:
            chunk = await anext(self._stream)
        except StopAsyncIteration:
            await self._phrase.end_utterance(self._stream.finished)
            raise
        await self._phrase.add(chunk)
        return chunk
