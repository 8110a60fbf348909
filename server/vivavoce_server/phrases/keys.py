"""Keys of phrases and entity tags of their files: digests of all that decides the samples, or the bytes.

What does not decide them is listed; everything else counts, also a field that is added later.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import numpy as np
import vivavoce_engine
from pydantic import BaseModel
from vivavoce_engine import SpeechEngine, UtteranceOptions

from vivavoce_server.audio import AudioOptions
from vivavoce_server.config import LeadingSilenceChoice, ServerConfig
from vivavoce_server.turns import Script

DIGEST_BYTES = 32
UNHEARD_OPTIONS = frozenset({"client", "max_wait_s", "endless_frames", "following", "silence_s"})
"""Options of an utterance that decide when and for whom it is made."""
UNHEARD_SETTINGS = frozenset(
    {
        "host",
        "port",
        "uds",
        "uds_mode",
        "root_path",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_keyfile_password",
        "ssl_ca_certs",
        "wyoming_port",
        "wyoming_host",
        "wyoming_zeroconf",
        "api_keys",
        "api_keys_file",
        "allowed_hosts",
        "cors_origins",
        "trusted_proxies",
        "model",
        "model_name",
        "load",
        "model_ttl_s",
        "workers",
        "address_file",
        "config",
        "log_level",
        "log_format",
        "otlp_endpoint",
        "cache_dir",
        "cache_size_mb",
    }
)
"""Settings on which no byte of speech depends, and models, which have an identity. Keys are secrets besides."""
ENCODERS = ("av", "numpy", "resemble-perth", "soxr")
"""Packages that make a file of samples."""


class Job(Protocol):
    """The part of a SpeechJob on which its samples and its file depend. Its text has been read."""

    @property
    def model(self) -> str: ...

    @property
    def engine(self) -> SpeechEngine: ...

    @property
    def seed_is_fixed(self) -> bool: ...

    @property
    def audio(self) -> AudioOptions: ...

    @property
    def parts(self) -> Sequence[object]: ...

    @property
    def script(self) -> Script | None: ...

    @property
    def leading_silence(self) -> LeadingSilenceChoice: ...


def phrase_key(identity: str, spoken: Sequence[tuple[UtteranceOptions, str]]) -> bytes:
    """The key of the samples of texts that are spoken one after the other, by the engine with this identity.

    The options of a text hold the voice itself, not its name: the embedding and codes of a stored voice, a mix or a
    recording. Texts with the same options are counted with them once.
    """
    texts: list[tuple[object, list[str]]] = []
    before: UtteranceOptions | None = None
    for options, text in spoken:
        if options is not before:
            heard = {each.name: getattr(options, each.name) for each in fields(options)}
            texts.append(({name: heard[name] for name in heard.keys() - UNHEARD_OPTIONS}, []))
        before = options
        texts[-1][1].append(text)
    return digest_of("phrase", identity, build(), texts)


def settings_digest(config: ServerConfig) -> bytes:
    """A digest of the settings that may decide the bytes of a file."""
    return digest_of(repr(sorted(config.model_dump(exclude=set(UNHEARD_SETTINGS)).items())))


def entity_tag(key: bytes, job: Job, transfer: Sequence[object], settings: bytes) -> str:
    """The strong entity tag of a phrase's file. `transfer` tells how it is sent, `settings` is a settings_digest."""
    assert job.script is not None, "the text of the job has been read"
    tempos = [job.script.tempo(number) for number in range(len(job.parts))]
    file = digest_of("file", key, job.audio, job.parts, tempos, job.leading_silence, transfer, settings)
    return f'"{file.hex()}"'


@cache
def build() -> str:
    """A digest of the code that is running, and of the packages that write files. A new version has another one."""
    digest = hashlib.sha256()
    for root in (Path(__file__).parents[1], Path(vivavoce_engine.__file__).parent):
        for path in sorted(root.rglob("*.py")):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
            digest.update(path.relative_to(root).as_posix().encode() + b"\n")
    for name in ENCODERS:
        digest.update(f"{name} {_version(name)}\n".encode())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def digest_of(*values: object) -> bytes:
    """SHA-256 of values of any form that requests take. Values that differ in type or in content differ in digest.

    Raises:
        TypeError: there is no form for a value.
    """
    digest = hashlib.sha256()
    for part in _encoded(values):
        digest.update(part)
    return digest.digest()


def _encoded(value: object) -> "list[bytes]":
    """A value as bytes, each piece with its type and length before it, so that no two values run together."""
    match value:
        case None | bool() | int() | float():
            return _piece(type(value).__name__, repr(value).encode())
        case str():
            return _piece("str", value.encode(errors="surrogatepass"))
        case bytes():
            return _piece("bytes", value)
        case np.ndarray():
            return [*_piece("array", repr((value.dtype.str, value.shape)).encode()), *_piece("", value.tobytes())]
        case list() | tuple():
            items = [part for item in value for part in _encoded(item)]
            return [*_piece("list", str(len(value)).encode()), *items]
        case Mapping():
            pairs = [part for pair in sorted(value.items()) for part in _encoded(pair)]
            return [*_piece("map", str(len(value)).encode()), *pairs]
        case BaseModel():
            return _encoded((type(value).__name__, value.model_dump()))
        case _ if is_dataclass(value) and not isinstance(value, type):
            return _encoded((type(value).__name__, {each.name: getattr(value, each.name) for each in fields(value)}))
    if isinstance(name := getattr(value, "name", None), str):  # a method of marking samples, as files name it
        return _encoded((type(value).__name__, name))
    raise TypeError(f"a {type(value).__name__} has no form for a digest")


def _piece(kind: str, content: bytes) -> list[bytes]:
    return [f"{kind} {len(content)}:".encode(), content]
