"""Settings of the server: each default is written once, here, with its unit. The engine's own are EngineConfig's.

`Settings` is both together, flat, read from VIVAVOCE_* variables; flags given on the command line come first.
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
    create_model,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from vivavoce_engine import EngineConfig

from vivavoce_server.allowed_hosts import checked_hosts

ENV_PREFIX = "VIVAVOCE_"
MAX_WAIT_S = 86_400.0
"""Longest wait for a turn that anybody may ask for."""
CLIENT_VARIABLES = frozenset({"VIVAVOCE_URL", "VIVAVOCE_API_KEY"})
"""Read by the client, which may share the server's environment."""


def _split_commas(value: object) -> object:
    return tuple(filter(None, (part.strip() for part in value.split(",")))) if isinstance(value, str) else value


# NoDecode: an environment variable holds the list as text, not as JSON.
CommaList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas)]
HostList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas), AfterValidator(checked_hosts)]
SecretList = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split_commas)]


class ServerConfig(BaseModel):
    """How one server process listens and what it lets through."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every interface."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    model: CommaList = ()
    """Checkpoint folder or hub id, or NAME=CHECKPOINT; repeated (in a variable: separated by commas), the server has
    several. The voice that ships with Vivavoce by default; `fake` plays tones without torch."""
    model_name: str | None = None
    """Name under which a single model is served; the checkpoint's own name by default."""
    load: Literal["start", "on-demand"] = "start"
    """When models are loaded: all before the server is ready, or each at its first request."""
    model_ttl_s: float = Field(default=600.0, gt=0)
    """Seconds without use after which a model that was loaded on demand is unloaded."""
    workers: int = Field(default=1, gt=0)
    """Processes for each model, which share its requests: for a CPU with more cores than one process uses."""
    max_input_chars: int = Field(default=4096, gt=0)
    """Longest `input` of a request, in characters."""
    max_part_chars: int = Field(default=1000, gt=0)
    """Longest text spoken in one go; a longer one is split between sentences."""
    max_batch_items: int = Field(default=32, gt=0)
    """Most texts of one batch request."""
    max_wait_s: float = Field(default=120.0, gt=0, le=MAX_WAIT_S)
    """Seconds that a request may wait for its turn, where it does not say so itself (`x-request-timeout`); one that
    would wait longer is refused at once, as far as can be told."""
    max_body_bytes: int = Field(default=16 * 2**20, gt=0)
    """Largest request body: 10 MiB of reference audio in base64 fit."""
    stall_s: float = Field(default=30.0, gt=0)
    """Seconds that a client may read nothing of a response, once the buffers are full, before it is disconnected."""
    live_max_sessions: int = Field(default=256, gt=0)
    """Live (WebSocket) connections at the same time; the next one is told to try again later."""
    live_max_chars: int = Field(default=65536, gt=0)
    """Longest text of a live utterance, in characters."""
    live_idle_s: float = Field(default=30.0, gt=0)
    """Seconds that a live utterance which has said all its text waits for more before it gives up its row."""
    live_max_unsent_bytes: int = Field(default=4 * 2**20, gt=0)
    """Audio that waits for a live listener; until it is read, the utterance rests."""
    live_stall_s: float = Field(default=10.0, gt=0)
    """Seconds that a live listener with so much waiting may take nothing before it is disconnected."""
    ref_audio_hosts: HostList = ()
    """Hosts that `ref_audio` may be fetched from, separated by commas: a name, *.name, * for any public host, an
    address or a network, :port after it. None by default."""
    voices_dir: Path | None = None
    """Folder of stored voices, which servers may share; vivavoce/voices in $XDG_DATA_HOME or ~/.local/share by
    default."""
    max_voices: int = Field(default=1000, ge=0)
    """Most voices that are stored; 0 stores none."""
    cors_origins: CommaList = ()
    """Web origins whose pages may call the server, separated by commas; * is any."""
    api_keys: SecretList = ()
    """Keys that callers must send as Bearer tokens, separated by commas; without any, everybody may call."""
    api_keys_file: Path | None = None
    """TOML file of keys, with a limit for each: [name] key, max_concurrent, requests_per_minute."""
    key_max_concurrent: int | None = Field(default=None, gt=0)
    """Speech that one key may have running at once, where the file says nothing else."""
    key_requests_per_minute: int | None = Field(default=None, gt=0)
    """Requests for speech that one key may make in a minute, where the file says nothing else."""
    grace_s: float = Field(default=30.0, ge=0)
    """Seconds that running speech may go on after SIGTERM."""
    address_file: Path | None = None
    """File that receives the server's URL once it is ready; for whoever started it on port 0."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe messages that are logged."""
    log_format: Literal["text", "json"] = "text"
    """Lines for people or for machines."""


class UnknownVariable(ValueError):
    """The environment holds a VIVAVOCE_* name that nothing reads: most likely a typing error."""


class _EnvironmentSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid")


def _settings_type() -> type[BaseSettings]:
    server = {name: (field.annotation, field) for name, field in ServerConfig.model_fields.items()}
    engine = {field.name: (field.type, field.default) for field in fields(EngineConfig)}
    assert not server.keys() & engine.keys(), "one flat namespace of flags and variables"
    definitions: dict[str, Any] = {**server, **engine}
    return create_model("Settings", __base__=_EnvironmentSettings, **definitions)


Settings = _settings_type()


def load_settings(flags: Mapping[str, Any]) -> tuple[ServerConfig, EngineConfig]:
    """Flags, then environment, then defaults.

    Raises:
        ValueError: a value is wrong (pydantic's ValidationError) or a variable is unknown.
    """
    for name in os.environ:
        known = name in CLIENT_VARIABLES or name.removeprefix(ENV_PREFIX).lower() in Settings.model_fields
        if name.startswith(ENV_PREFIX) and not known:
            raise UnknownVariable(f"the environment variable {name} is not a setting of Vivavoce")
    values = dict(Settings(**flags))
    engine = EngineConfig(**{field.name: values.pop(field.name) for field in fields(EngineConfig)})
    return ServerConfig(**values), engine


def setting_help() -> dict[str, str]:
    """Setting → its docstring and default, for the command line's help."""
    docs = {**_attribute_docs(ServerConfig), **_attribute_docs(EngineConfig)}
    return {name: f"{docs[name]} [{field.default}]" for name, field in Settings.model_fields.items()}


def _attribute_docs(cls: type) -> dict[str, str]:
    """The string below each attribute of a class: Python keeps these in the source alone."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for attribute, below in zip(tree.body, tree.body[1:], strict=False):
        match attribute, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = doc
    return docs
