"""Access control: Bearer keys, each with a limit on concurrent speech and on requests per minute.

Keys come from the settings (each gets a generated name) or from a TOML file:

    [alice]
    key = "sk-..."
    max_concurrent = 4
    requests_per_minute = 120

The file may change while the server runs. `Keyring.replace` takes the new keys and keeps each key's counted use.
"""

import hashlib
import hmac
import logging
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from starlette.requests import HTTPConnection

from vivavoce_server.config import ServerConfig
from vivavoce_server.context import client_address
from vivavoce_server.errors import ApiError
from vivavoce_server.ledger import MAX_KEYS, Account, Ledger, NoPlace, NoTokens
from vivavoce_server.request_lines import note

log = logging.getLogger(__name__)

ELEVENLABS_HEADER = "xi-api-key"
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
"""Limits of the time to come back after."""


class KeyEntry(BaseModel):
    """One key and its limits. None means no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: SecretStr = Field(min_length=1)
    max_concurrent: int | None = Field(default=None, gt=0)
    requests_per_minute: int | None = Field(default=None, gt=0)


class Caller:
    """The holder of a key, and the use so far of the key's limits. Only the event loop's thread uses it.

    `name` is empty if the server has no keys, because callers then cannot be told apart, and have no limits.
    """

    def __init__(
        self,
        name: str,
        entry: KeyEntry | None = None,
        clock: Callable[[], float] = time.monotonic,
        ledger: Ledger | None = None,
    ) -> None:
        """`ledger` None counts for this object alone."""
        self._clock = clock
        self._revoked = False
        self._account: Account | None = None
        if entry is not None:
            self._account = (ledger or Ledger()).account(_digest(entry.key.get_secret_value()))
        self.limit(name, entry)

    @property
    def client(self) -> str:
        """The name by which the engine tells clients apart: that of the key, or else the address of the request.

        Rows go to clients in turn, and each has its share of the queue.
        """
        return self.name or f"address {client_address.get()}"

    def limit(self, name: str, entry: KeyEntry | None) -> None:
        """Sets the name and the limits. A limit that does not change keeps its counted use."""
        self.name = name
        self._max_concurrent = entry.max_concurrent if entry else None
        self._per_minute = entry.requests_per_minute if entry else None

    def revoke(self) -> None:
        """Revokes the key. Running speech continues. New speech is refused, on open connections too."""
        self._revoked = True

    @contextmanager
    def speaking(self, requests: int = 1) -> Iterator[None]:
        """Counts one running speech request until the block ends. `requests` is its cost in requests per minute.

        Raises:
            ApiError: 429 if a limit is reached, with the time to retry after; 401 if the key has been revoked.
        """
        if self._revoked:
            raise _unknown_key()
        if self._account is None:
            yield
            return
        started_s = self._clock()
        try:
            self._account.begin(self._max_concurrent, self._per_minute, requests, started_s)
        except NoPlace as full:
            retry_s = min(MAX_RETRY_S, max(MIN_RETRY_S, full.next_end_s))
            raise _too_many(f"this key may have {self._max_concurrent} running at once", retry_s) from None
        except NoTokens as spent:
            raise _too_many(f"this key may make {self._per_minute} requests a minute", spent.wait_s) from None
        try:
            yield
        finally:
            self._account.end(started_s, self._clock())

    @property
    def has_place(self) -> bool:
        """True if one more request may run now."""
        if self._account is None or self._max_concurrent is None:
            return True
        return self._account.running(self._clock()) < self._max_concurrent

    def occupy(self, places: int) -> None:
        """Counts further parts of a request that `speaking` counts already; below 0, parts that have ended."""
        if self._account is not None:
            self._account.occupy(places, self._clock())


def _too_many(limit: str, retry_after_s: float) -> ApiError:
    message = f"Rate limit reached: {limit}"
    return ApiError(429, message, None, "rate_limit_exceeded", "rate_limit_error", retry_after_s)


class Keyring:
    """All keys of a server. A server without keys treats everybody as one unlimited caller."""

    def __init__(self, entries: Sequence[tuple[str, KeyEntry]], ledger: Ledger | None = None) -> None:
        """`ledger` counts the use of the keys' limits, and the live connections; None makes one for this process."""
        self.ledger = ledger or Ledger()
        self._callers: dict[bytes, Caller] = {}
        self._anybody = Caller("")
        self.replace(entries)

    def replace(self, entries: Sequence[tuple[str, KeyEntry]]) -> None:
        """Replaces the keys. A key that stays keeps its counted use. A key that is gone is revoked."""
        before = self._callers
        self._callers = {}
        for name, entry in entries:
            digest = _digest(entry.key.get_secret_value())
            caller = before.pop(digest, None) or Caller(name, entry, ledger=self.ledger)
            caller.limit(name, entry)
            self._callers[digest] = caller
        for caller in before.values():
            caller.revoke()

    def __len__(self) -> int:
        return len(self._callers)

    @property
    def wanted(self) -> bool:
        """True if callers need a key."""
        return bool(self._callers)

    def find(self, key: str | None) -> Caller:
        """The caller with this key.

        Raises:
            ApiError: 401 if the key is missing or unknown.
        """
        if not self.wanted:
            return self._anybody
        if key is None:
            raise _unauthorized("This server wants an API key: send `Authorization: Bearer KEY`")
        found: Caller | None = None
        digest = _digest(key)
        # Every key is compared, in constant time, so the time taken reveals nothing about any of them.
        for known, caller in self._callers.items():
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise _unknown_key()
        note(key=found.name)
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()  # JSON has halves of characters


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, None, "invalid_api_key")


def _unknown_key() -> ApiError:
    return _unauthorized("The API key is not known here")


def load_keyring(config: ServerConfig) -> Keyring:
    """The keys that the settings name. Raises the errors of `read_keys`."""
    return Keyring(read_keys(config))


def read_keys(config: ServerConfig) -> list[tuple[str, KeyEntry]]:
    """Names and keys from the settings, and from the file that the settings name.

    Raises:
        ValueError: the file of keys is invalid. The message tells where, and repeats nothing of the file's content.
    """
    limits = {"max_concurrent": config.key_max_concurrent, "requests_per_minute": config.key_requests_per_minute}
    entries = [(f"key {n}", KeyEntry(key=key, **limits)) for n, key in enumerate(config.api_keys, start=1)]
    if config.api_keys_file is not None:
        entries += _read_file(config.api_keys_file, limits)
    keys = [entry.key.get_secret_value() for _, entry in entries]
    if len(set(keys)) < len(keys):
        raise ValueError("the same API key is given twice")
    if len(entries) > MAX_KEYS:
        raise ValueError(f"there are {len(entries)} API keys; the most is {MAX_KEYS}")
    return entries


def read_keys_again(config: ServerConfig) -> list[tuple[str, KeyEntry]] | None:
    """The keys as they are now, at a signal. None if they cannot be read, which the log tells."""
    try:
        keys = read_keys(config)
    except ValueError as error:
        log.error("the API keys were not reloaded, the old ones stay: %s", error)
        return None
    log.info("reloaded: there are %d API keys", len(keys))
    return keys


def _read_file(path: Path, limits: dict[str, int | None]) -> list[tuple[str, KeyEntry]]:
    if path.exists() and not path.is_file():  # reading a FIFO would wait for a writer
        raise ValueError(f"{path}: it is no regular file")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        entries = [(name, KeyEntry.model_validate({**limits, **table})) for name, table in tables.items()]
    except ValidationError as error:
        # pydantic's own message repeats the value, which may be a key.
        first = error.errors(include_input=False, include_url=False)[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not entries:
        raise ValueError(f"{path}: there is no key in it, which would leave the server open")
    return entries


BEARER = HTTPBearer(
    auto_error=False, scheme_name="key", description="One of the server's keys, as OpenAI's clients send it"
)
"""Declares in the OpenAPI document that requests need a key. door.py checks the key."""
ELEVENLABS_KEY = APIKeyHeader(
    name=ELEVENLABS_HEADER,
    auto_error=False,
    scheme_name="elevenlabs_key",
    description="One of the server's keys, as ElevenLabs' clients send it",
)
"""Declares the other place of the key, for routes of ElevenLabs."""


async def caller_of(request: Request) -> Caller:
    """The caller whom the door let in, as a FastAPI dependency. FastAPI would run a sync one on a thread."""
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


def bearer_key(connection: HTTPConnection) -> str | None:
    """The key in the Authorization header; None without one."""
    scheme, _, key = connection.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


def header_key(connection: HTTPConnection) -> str | None:
    """The key in the Authorization header, or in the one that ElevenLabs' clients send; None without one."""
    return connection.headers.get(ELEVENLABS_HEADER) or bearer_key(connection)


CallerDep = Annotated[Caller, Depends(caller_of)]
