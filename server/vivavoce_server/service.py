"""State of a running server: its models by name, and the speech in progress."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from fastapi import Request
from vivavoce_engine import NotServing, Overloaded, SpeechEngine, Thinker

from vivavoce_server.chat.chats import Chats
from vivavoce_server.config import ServerConfig
from vivavoce_server.errors import SHOWN_CHARS, ApiError
from vivavoce_server.ledger import Ledger
from vivavoce_server.marks import SYNTHETIC_HEADER, AudioMark, Marker, open_marker
from vivavoce_server.metrics import Metrics
from vivavoce_server.phrases import PhraseCache
from vivavoce_server.references import References

SESSION_RETRY_S = 5.0
MODEL_ALIAS = re.compile(r"(?:tts-1|tts-1-hd|gpt-4o-mini-tts)(?:-[0-9]{4}(?:-[0-9]{2}-[0-9]{2})?)?")
"""OpenAI's model names, with a date or without. They mean the first model here, so that clients need no change."""
MAX_SESSIONS_WITHOUT_KEY = 64
"""Most live connections that may wait for the message with their key."""


@dataclass
class Service:
    """The state of one app. Only the event loop uses it."""

    engines: Mapping[str, SpeechEngine]
    config: ServerConfig
    thinkers: Mapping[str, Thinker] = field(default_factory=dict)
    """The thinkers of models that chat, by the models' names."""
    ledger: Ledger = field(default_factory=Ledger)
    """Counts the live connections of all fronts."""
    created_s: int = field(default_factory=lambda: int(time.time()))
    speaking: int = 0
    """Number of speech responses in progress."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the server drains."""
    silence: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is no speech in progress."""

    live_sessions: int = 0
    """Number of this process's open live connections whose key is known, if there are keys."""
    no_sessions: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is no open live connection."""
    _without_key: dict[object, Callable[[], None]] = field(default_factory=dict)
    """The live connections that have not sent a key yet, oldest first, each with what makes it give way."""

    metrics: Metrics = field(init=False)
    references: References = field(init=False)
    phrases: PhraseCache = field(init=False)
    chats: Chats = field(init=False)
    marker: Marker | None = field(init=False)
    """Marks speech as synthetic; None if the settings say no."""

    def __post_init__(self) -> None:
        if not self.engines:
            raise ValueError("a server needs at least one engine")
        self.silence.set()
        self.no_sessions.set()
        engines = tuple(self.engines.values())
        for engine in engines:
            engine.share_queue(engines)
        self.metrics = Metrics(self.engines, self.ledger)
        self.references = References(self.config, len(self.engines))
        self.chats = Chats(self.thinkers, self.references.fetcher)
        self.phrases = PhraseCache(self.config, self.metrics.phrases)
        self.marker = open_marker(self.config.mark_audio)

    def mark(self, model: str, voice: str | None) -> AudioMark | None:
        """The mark of speech of a model; None for none. `voice` is its name; None for one without."""
        return None if self.marker is None else self.marker.mark(model, voice)

    def header_fields(self) -> dict[str, str]:
        """Header fields of a response with any speech."""
        return {} if self.marker is None else {SYNTHETIC_HEADER: self.marker.header()}

    def find_model(self, name: str | None) -> tuple[str, SpeechEngine]:
        """Id and engine for a request's model name. None means the first model that speaks texts, or the first of all.

        Raises:
            ApiError: 404, the model does not exist.
        """
        if name is not None and name in self.engines:
            return name, self.engines[name]
        if name is None or MODEL_ALIAS.fullmatch(name):
            return next(iter(self.speaking_engines().items()), next(iter(self.engines.items())))
        message = f"There is no model {name[:SHOWN_CHARS]!r}; there are {', '.join(self.engines)}"
        raise ApiError(404, message, "model", "model_not_found")

    def speaking_engines(self) -> dict[str, SpeechEngine]:
        """The engines that speak texts: those of models that chat speak the answers of their thinkers alone."""
        return {name: engine for name, engine in self.engines.items() if engine.info.task != "chat"}

    @property
    def draining(self) -> bool:
        return self.stopping.is_set()

    @property
    def ready(self) -> bool:
        return not self.draining and self.chats.ready and all(engine.ready for engine in self.engines.values())

    @property
    def failed(self) -> bool:
        return self.chats.failed or any(engine.failed for engine in self.engines.values())

    def drain(self) -> None:
        """Refuses new speech from now on. Running speech continues, and may still submit its later parts.

        Live connections are closed as soon as they have nothing to say.
        """
        self.stopping.set()

    @contextmanager
    def count_speech(self) -> Iterator[None]:
        """Counts speech while it runs.

        Raises:
            NotServing: the server is about to stop.
        """
        if self.draining:
            raise stopping()
        self.speaking += 1
        self.silence.clear()
        try:
            yield
        finally:
            self.speaking -= 1
            if not self.speaking:
                self.silence.set()

    @contextmanager
    def count_session(self) -> Iterator[None]:
        """Counts a live connection while it is open.

        Raises:
            NotServing: the server is about to stop.
            Overloaded: the maximum number of connections is open.
        """
        if self.draining:
            raise stopping()
        if not self.ledger.take_session(self.config.live_max_sessions):
            raise Overloaded(f"{self.ledger.sessions} live connections are open already", SESSION_RETRY_S)
        self.live_sessions += 1
        self.no_sessions.clear()
        try:
            yield
        finally:
            self.ledger.give_session()
            self.live_sessions -= 1
            if not self.live_sessions:
                self.no_sessions.set()

    @contextmanager
    def count_session_without_key(self, give_way: Callable[[], None]) -> Iterator[None]:
        """Counts a live connection until its key comes. Too many make the oldest give way, by calling its `give_way`.

        A client that has a key sends it at once, so that those that wait for long are the ones that have none. A front
        makes its own connections give way, and may have one where others have them all.

        Raises:
            NotServing: the server is about to stop.
        """
        if self.draining:
            raise stopping()
        if self._without_key and self.ledger.keyless >= MAX_SESSIONS_WITHOUT_KEY:
            self._without_key.pop(next(iter(self._without_key)))()
        place = object()
        self._without_key[place] = give_way
        self.ledger.count_keyless(len(self._without_key))
        try:
            yield
        finally:
            self._without_key.pop(place, None)
            self.ledger.count_keyless(len(self._without_key))

    @property
    def sessions_without_key(self) -> int:
        """Number of this process's live connections that have not sent a key yet. They take no place of others."""
        return len(self._without_key)


def stopping() -> NotServing:
    """The refusal of a server that is about to stop."""
    return NotServing("the server is stopping")


async def get_service(request: Request) -> Service:
    """The app's Service, as a FastAPI dependency."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
