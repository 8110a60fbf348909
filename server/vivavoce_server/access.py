"""Who may call, and how much: Bearer keys, each with a limit on speech at once and on requests a minute.

Keys come from settings (a name is made up for each) or from a TOML file:

    [alice]
    key = "sk-..."
    max_concurrent = 4
    requests_per_minute = 120
"""

import hashlib
import hmac
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from starlette.requests import HTTPConnection

from vivavoce_server.config import ServerConfig
from vivavoce_server.errors import ApiError

CONCURRENCY_RETRY_S = 1.0
SECONDS_A_MINUTE = 60.0


class KeyEntry(BaseModel):
    """One key and its limits; None is no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: SecretStr = Field(min_length=1)
    max_concurrent: int | None = Field(default=None, gt=0)
    requests_per_minute: int | None = Field(default=None, gt=0)


class Caller:
    """Somebody who may speak, and what they have used of their limits. Used on the event loop alone.

    `name` is empty where the server wants no keys: then nobody can be told apart.
    """

    def __init__(self, name: str, entry: KeyEntry | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._max_concurrent = entry.max_concurrent if entry else None
        self._per_minute = entry.requests_per_minute if entry else None
        self._clock = clock
        self._speaking = 0
        # A bucket that holds one minute's requests and refills steadily.
        self._tokens = float(self._per_minute or 0)
        self._filled_s = clock()

    @contextmanager
    def speaking(self, requests: int = 1) -> Iterator[None]:
        """Counts speech while it runs.

        Raises:
            ApiError: 429, a limit is reached; says when to come back.
        """
        if self._max_concurrent is not None and self._speaking >= self._max_concurrent:
            raise _too_many(f"this key may have {self._max_concurrent} running at once", CONCURRENCY_RETRY_S)
        self._take_tokens(requests)
        self._speaking += 1
        try:
            yield
        finally:
            self._speaking -= 1

    def _take_tokens(self, requests: int) -> None:
        if self._per_minute is None:
            return
        now_s = self._clock()
        per_s = self._per_minute / SECONDS_A_MINUTE
        self._tokens = min(float(self._per_minute), self._tokens + (now_s - self._filled_s) * per_s)
        self._filled_s = now_s
        # A batch larger than the bucket is let through when the bucket is full; it then owes the rest.
        needed = min(requests, self._per_minute)
        if self._tokens < needed:
            message = f"this key may make {self._per_minute} requests a minute"
            raise _too_many(message, (needed - self._tokens) / per_s)
        self._tokens -= requests


def _too_many(limit: str, retry_after_s: float) -> ApiError:
    message = f"Rate limit reached: {limit}"
    return ApiError(429, message, None, "rate_limit_exceeded", "rate_limit_error", retry_after_s)


class Keyring:
    """All keys of a server. Without any, everybody is the same unlimited caller."""

    def __init__(self, entries: Sequence[tuple[str, KeyEntry]]) -> None:
        self._callers = [(_digest(entry.key.get_secret_value()), Caller(name, entry)) for name, entry in entries]
        self._anybody = Caller("")

    @property
    def wanted(self) -> bool:
        """Whether a caller needs a key."""
        return bool(self._callers)

    def find(self, key: str | None) -> Caller:
        """The caller with this key.

        Raises:
            ApiError: 401, the key is missing or unknown.
        """
        if not self.wanted:
            return self._anybody
        if key is None:
            raise _unauthorized("This server wants an API key: send `Authorization: Bearer KEY`")
        found: Caller | None = None
        digest = _digest(key)
        # Every key is compared, in constant time, so that the time taken tells nothing about any of them.
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise _unauthorized("The API key is not known here")
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, None, "invalid_api_key")


def load_keyring(config: ServerConfig) -> Keyring:
    """The keys that the settings name.

    Raises:
        ValueError: the file of keys is wrong; says where.
    """
    limits = {"max_concurrent": config.key_max_concurrent, "requests_per_minute": config.key_requests_per_minute}
    entries = [(f"key {n}", KeyEntry(key=key, **limits)) for n, key in enumerate(config.api_keys, start=1)]
    if config.api_keys_file is not None:
        entries += _read_keys(config.api_keys_file, limits)
    keys = [entry.key.get_secret_value() for _, entry in entries]
    if len(set(keys)) < len(keys):
        raise ValueError("the same API key is given twice")
    return Keyring(entries)


def _read_keys(path: Path, limits: dict[str, int | None]) -> list[tuple[str, KeyEntry]]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        entries = [(name, KeyEntry.model_validate({**limits, **table})) for name, table in tables.items()]
    except (OSError, tomllib.TOMLDecodeError, TypeError, ValidationError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not entries:
        raise ValueError(f"{path}: there is no key in it, which would leave the server open")
    return entries


BEARER = HTTPBearer(auto_error=False)
"""Tells the OpenAPI page that keys are wanted; `identify` checks them."""


def identify(request: Request) -> Caller:
    """The caller of a request, as a FastAPI dependency."""
    keyring = request.app.state.keyring
    assert isinstance(keyring, Keyring)
    return keyring.find(bearer_key(request))


def bearer_key(connection: HTTPConnection) -> str | None:
    """The key of an Authorization header."""
    scheme, _, key = connection.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


CallerDep = Annotated[Caller, Depends(identify)]
