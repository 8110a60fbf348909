"""Settings of the server, each with its default and unit. The engine's settings are in EngineConfig.

`Settings` combines both in one flat namespace. It reads VIVAVOCE_* variables; command-line flags override them.
"""

import ast
import inspect
import os
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    create_model,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from vivavoce_engine import EngineConfig

from vivavoce_server.fetch_hosts import checked_hosts
from vivavoce_server.server_names import checked_names
from vivavoce_server.stage_names import StageSetting

ENV_PREFIX = "VIVAVOCE_"
LeadingSilenceChoice = Literal["trim", "keep"]
MarkChoice = Literal["off", "metadata", "on"]
MAX_WAIT_S = 86_400.0
"""Upper limit of `max_wait_s` and of the x-request-timeout header, in seconds."""
MAX_TEXT_CHARS = 2**20
"""Upper limit of `max_input_chars`."""
MAX_BATCH_ITEMS = 1024
"""Upper limit of `max_batch_items`."""
CLIENT_VARIABLES = frozenset({"VIVAVOCE_URL", "VIVAVOCE_API_KEY"})
"""Variables that the client reads. Client and server may share an environment."""
ENGINE_VARIABLES = frozenset({"VIVAVOCE_CARD"})
"""Variables that the engine reads itself: no settings of a server, but means of proof."""


def _split_commas(value: object) -> object:
    return tuple(filter(None, (part.strip() for part in value.split(",")))) if isinstance(value, str) else value


def _checked_aliases(entries: tuple[str, ...]) -> tuple[str, ...]:
    for entry in entries:
        name, _, voice = entry.partition("=")
        if not name.strip() or not voice.strip():
            raise ValueError(f"must be NAME=VOICE, not {entry!r}")
    return entries


# NoDecode: an environment variable holds the list as text, not as JSON.
CommaList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas)]
HostList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas), AfterValidator(checked_hosts)]
NameList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas), AfterValidator(checked_names)]
AliasList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas), AfterValidator(_checked_aliases)]
SecretList = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split_commas)]


class ServerConfig(BaseModel):
    """Settings of one server process: addresses, limits, voices, keys and logs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 means every interface."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on. 0 selects a free one."""
    wyoming_port: int = Field(default=0, ge=0, le=65535)
    """Port for the Wyoming protocol, by which Home Assistant finds a voice; its usual one is 10200. 0 turns it off."""
    wyoming_host: str = "127.0.0.1"
    """Address to listen on for the Wyoming protocol. It has no keys: everybody who reaches it may speak."""
    wyoming_zeroconf: bool = False
    """Announce the Wyoming port by mDNS, so that Home Assistant finds it by itself. It needs the package zeroconf (the
    extra `zeroconf`)."""
    model: CommaList = ()
    """Checkpoint folder or hub id, or NAME=CHECKPOINT. Repeat the flag (in a variable: separate by commas) to serve
    several. The default is the voice that ships with Vivavoce. `fake` plays tones and needs no torch."""
    model_name: str | None = None
    """Name of the model in requests, if there is only one. The default is the checkpoint's own name."""
    load: Literal["start", "on-demand"] = "start"
    """Time of loading: `start` loads all models before the server is ready, `on-demand` each at its first request."""
    model_ttl_s: float = Field(default=600.0, gt=0)
    """Seconds without use after which a model that was loaded on demand is unloaded."""
    workers: int = Field(default=1, gt=0)
    """Processes per model. They share its requests. Useful on a CPU with more cores than one process can use."""
    max_input_chars: int = Field(default=4096, gt=0, le=MAX_TEXT_CHARS)
    """Maximum length of a request's `input`, in characters."""
    max_part_chars: int = Field(default=1000, gt=0)
    """Maximum length of a text spoken as one utterance, in characters. A longer text is split between sentences."""
    normalize: StageSetting = "checkpoint"
    """Reading of texts whose request does not say how: `checkpoint` (as the model needs it), `true` (all stages),
    `false` (none), or the names of stages, separated by commas."""
    strict_text: bool = True
    """If true, a text that the model cannot speak is refused: without a letter or digit, or in a script that the model
    does not read. If false, it is spoken as well as possible."""
    leading_silence: LeadingSilenceChoice = "trim"
    """Silence that a voice puts before its first word, in speech whose request does not say: `trim` sends the last
    20 ms of it, so that speech is heard at once; `keep` sends all."""
    mark_audio: MarkChoice = "off"
    """Marks of synthetic speech: `metadata` writes into each file, where its format has a place for it, and into a
    header of the response, that software made it; `on` also puts a watermark into the samples (the extra
    `watermark`)."""
    max_batch_items: int = Field(default=32, gt=0, le=MAX_BATCH_ITEMS)
    """Maximum number of texts in one batch request."""
    max_wait_s: float = Field(default=120.0, gt=0, le=MAX_WAIT_S)
    """Seconds that a request may wait for its turn; the header `x-request-timeout` overrides this. A request that is
    expected to wait longer is refused at once."""
    max_body_bytes: int = Field(default=16 * 2**20, gt=0)
    """Maximum size of a request body, in bytes. The default has room for 10 MiB of reference audio in base64."""
    stall_s: float = Field(default=30.0, gt=0)
    """Seconds after which a client that reads nothing of its response is disconnected. They count from the moment that
    the buffers are full."""
    live_max_sessions: int = Field(default=256, gt=0)
    """Maximum number of live (WebSocket) connections. Further ones are told to try again later."""
    live_max_chars: int = Field(default=65536, gt=0)
    """Maximum length of a live utterance's text, in characters."""
    live_idle_s: float = Field(default=30.0, gt=0)
    """Seconds that a live utterance waits for more text, once all its text is spoken, before it gives up its row."""
    live_max_unsent_bytes: int = Field(default=4 * 2**20, gt=0)
    """Maximum size of audio that waits for a live listener, in bytes. The utterance pauses until the listener reads."""
    live_stall_s: float = Field(default=10.0, gt=0)
    """Seconds after which a live listener that reads nothing is disconnected. They count while live_max_unsent_bytes of
    audio wait."""
    ref_audio_hosts: HostList = ()
    """Hosts that `ref_audio` may be fetched from, separated by commas: a name, *.name, * for any public host, an
    address or a network; :port may follow. The default is none."""
    voices_dir: Path | None = None
    """Folder of stored voices. Several servers may share it. The default is vivavoce/voices in $XDG_DATA_HOME or
    ~/.local/share."""
    max_voices: int = Field(default=1000, ge=0)
    """Maximum number of stored voices. 0 turns storing off."""
    voice_aliases: AliasList = ()
    """Voices for names that ElevenLabs' clients send, as NAME=VOICE, separated by commas. NAME is one of ElevenLabs'
    voice ids, or any other name."""
    trusted_proxies: CommaList = ()
    """Addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, separated by commas; *
    means any. Without them, all clients of a proxy are one client."""
    cors_origins: CommaList = ()
    """Web origins whose pages may call the server, separated by commas. * means any."""
    allowed_hosts: NameList = ()
    """Names by which clients may call the server, separated by commas: a name, *.name, or * for any. localhost and the
    address to listen on always work; with another `host` than this machine's own, also every IP address, and names that
    the public DNS does not have. The default adds none, and lets callers with a key use any name."""
    api_keys: SecretList = ()
    """Keys that callers must send as Bearer tokens, separated by commas. Without keys, everybody may call."""
    api_keys_file: Path | None = None
    """TOML file of keys, each with its limits: [name] key, max_concurrent, requests_per_minute."""
    key_max_concurrent: int | None = Field(default=None, gt=0)
    """Maximum number of speech requests that one key may have running at once, unless the file sets another."""
    key_requests_per_minute: int | None = Field(default=None, gt=0)
    """Maximum number of speech requests per minute and key, unless the file sets another."""
    grace_s: float = Field(default=30.0, ge=0)
    """Seconds that running speech may continue after SIGTERM."""
    address_file: Path | None = None
    """File that receives the server's URL once the server is ready. Useful with port 0."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged."""
    log_format: Literal["text", "json"] = "text"
    """Format of log lines: `text` for people, `json` for machines."""


class UnknownVariable(ValueError):
    """The environment contains a VIVAVOCE_* variable that is not a setting, most likely a typing error."""

    def __init__(self, variable: str) -> None:
        super().__init__(f"the environment variable {variable} is not a setting of Vivavoce")
        self.variable = variable


class _EnvironmentSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid")


def _number_or_auto(value: object) -> object:
    if not isinstance(value, str) or value == "auto":
        return value
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"must be a whole number above 0, or auto; not {value!r}") from None


def _parsed(kind: object) -> object:
    """The type of one of the engine's settings. pydantic would report an error for each member of a union."""
    return Annotated[kind, BeforeValidator(_number_or_auto)] if kind == int | Literal["auto"] else kind


def _settings_type() -> type[BaseSettings]:
    server = {name: (field.annotation, field) for name, field in ServerConfig.model_fields.items()}
    engine = {field.name: (_parsed(field.type), field.default) for field in fields(EngineConfig)}
    assert not server.keys() & engine.keys(), "one flat namespace of flags and variables"
    definitions: dict[str, Any] = {**server, **engine}
    return create_model("Settings", __base__=_EnvironmentSettings, **definitions)


Settings = _settings_type()


def load_settings(flags: Mapping[str, Any]) -> tuple[ServerConfig, EngineConfig]:
    """Reads the settings: flags override environment variables, which override defaults.

    Raises:
        ValueError: a value is invalid (pydantic's ValidationError), or a variable is unknown.
    """
    for name in os.environ:
        setting = name.removeprefix(ENV_PREFIX).lower() in Settings.model_fields
        if name.startswith(ENV_PREFIX) and not setting and name not in CLIENT_VARIABLES | ENGINE_VARIABLES:
            raise UnknownVariable(name)
    values = dict(Settings(**flags))
    engine = EngineConfig(**{field.name: values.pop(field.name) for field in fields(EngineConfig)})
    return ServerConfig(**values), engine


def explain(error: ValueError) -> str:
    """An error of `load_settings` in one line that names each setting at fault, without a dot at its end.

    pydantic's own text takes several lines, and repeats the value, which may be a key.
    """
    if not isinstance(error, ValidationError):
        return str(error)
    faults = error.errors(include_input=False, include_url=False, include_context=False)
    lines = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].removeprefix('Value error, ')}" for fault in faults)
    return "; ".join(lines)


def setting_help() -> dict[str, str]:
    """Maps each setting to its docstring and default, for the command line's help."""
    docs = {**_attribute_docs(ServerConfig), **_attribute_docs(EngineConfig)}
    return {name: f"{docs[name]} [{field.default}]" for name, field in Settings.model_fields.items()}


def _attribute_docs(cls: type) -> dict[str, str]:
    """Maps each attribute of a class to the string below it. Python keeps these strings in the source only."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for attribute, below in zip(tree.body, tree.body[1:], strict=False):
        match attribute, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = doc
    return docs
