"""What a running server has: its models by name, and the speech that is under way."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from fastapi import Request
from vivavoce_engine import Engine

from vivavoce_server.config import ServerConfig
from vivavoce_server.errors import ApiError

MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""OpenAI's model names: they mean the first model here, so that clients need no change."""


@dataclass
class Service:
    """The state of one app. Used on the event loop alone."""

    engines: Mapping[str, Engine]
    config: ServerConfig
    created_s: int = field(default_factory=lambda: int(time.time()))
    speaking: int = 0
    """Speech responses that are not yet over."""
    silence: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nothing speaks."""

    def __post_init__(self) -> None:
        self.silence.set()
        if not self.engines:
            raise ValueError("a server needs at least one engine")

    def find_model(self, name: str | None) -> tuple[str, Engine]:
        """Id and engine behind a request's model name; the first model where it names none."""
        if name is not None and name in self.engines:
            return name, self.engines[name]
        if name is None or name in MODEL_ALIASES:
            return next(iter(self.engines.items()))
        message = f"There is no model {name!r}; there are {', '.join(self.engines)}"
        raise ApiError(404, message, "model", "model_not_found")

    @property
    def ready(self) -> bool:
        return all(engine.ready for engine in self.engines.values())

    def drain(self) -> None:
        """Refuses new speech from now on; what runs goes on."""
        for engine in self.engines.values():
            engine.drain()

    @contextmanager
    def count_speech(self) -> Iterator[None]:
        self.speaking += 1
        self.silence.clear()
        try:
            yield
        finally:
            self.speaking -= 1
            if not self.speaking:
                self.silence.set()


def get_service(request: Request) -> Service:
    """The app's Service, as a FastAPI dependency."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
