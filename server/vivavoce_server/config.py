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
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic_settings import BaseSettings, SettingsConfigDict
from vivavoce_engine import EngineConfig

ENV_PREFIX = "VIVAVOCE_"
CLIENT_VARIABLES = frozenset({"VIVAVOCE_URL", "VIVAVOCE_API_KEY"})
"""Read by the client, which may share the server's environment."""


class ServerConfig(BaseModel):
    """How one server process listens and what it lets through."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every interface."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    model: str | None = None
    """Checkpoint folder or hub id; the voice that ships with Vivavoce by default; `fake` plays tones without torch."""
    model_name: str | None = None
    """Name under which the model is served; the checkpoint's own name by default."""
    max_input_chars: int = Field(default=4096, gt=0)
    """Longest `input` of a request, in characters."""
    grace_s: float = Field(default=30.0, ge=0)
    """Seconds that running speech may go on after SIGTERM."""
    address_file: Path | None = None
    """File that receives the server's URL once it is ready; for whoever started it on port 0."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe messages that are logged."""


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
