"""Settings of the server, each with its default and unit. The engine's settings are in EngineConfig.

`Settings` combines both in one flat namespace. `load_settings` reads them from the command line, VIVAVOCE_* variables
and a TOML file.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

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
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType
from vivavoce_client.arguments import near_match
from vivavoce_engine import SEED_MAX, EngineConfig

from vivavoce_server.fetch_hosts import checked_hosts
from vivavoce_server.root_path import checked_root_path
from vivavoce_server.server_names import checked_names
from vivavoce_server.setting_sources import Given, SettingError, flag_of, gather
from vivavoce_server.setting_texts import (
    attribute_docs,
    choices_of,
    default_text,
    description,
    is_number,
    is_optional,
)
from vivavoce_server.stage_names import StageSetting

LeadingSilenceChoice = Literal["trim", "keep"]
MarkChoice = Literal["off", "metadata", "on"]
MAX_WAIT_S = 86_400.0
"""Upper limit of `max_wait_s` and of the x-request-timeout header, in seconds."""
MAX_TEXT_CHARS = 2**20
"""Upper limit of `max_input_chars`."""
MAX_BATCH_ITEMS = 1024
"""Upper limit of `max_batch_items`."""
MAX_WORKERS = 256
"""Upper limit of `workers`."""
MAX_FRONTS = 64
"""Upper limit of `fronts`."""
MAX_TOLD_CHARS = 400
"""Most characters of what is wrong with a value."""
ENGINE_MAXIMA = {"max_streams": 4096, "max_context": 2**20, "kv_positions": 2**30, "max_prefills_per_step": 4096}
"""Upper limits of settings by which an engine takes memory. A machine with less refuses after it has read the model."""
PYDANTIC_ERRORS = frozenset(get_args(ErrorType))
"""Errors whose words are pydantic's. Others are those of our own checks."""


def _split_commas(value: object) -> object:
    return tuple(filter(None, (part.strip() for part in value.split(",")))) if isinstance(value, str) else value


def _checked_aliases(entries: tuple[str, ...]) -> tuple[str, ...]:
    for entry in entries:
        name, _, voice = entry.partition("=")
        if not name.strip() or not voice.strip():
            raise ValueError(f"must be NAME=VOICE, not {entry!r}")
    return entries


def _number_or_auto(value: object) -> object:
    """Reads a number or `auto`. pydantic would report an error for each member of a union."""
    if isinstance(value, str) and value != "auto":
        value = int(value)
    if isinstance(value, bool) or (isinstance(value, int) and value <= 0) or not isinstance(value, int | str):
        raise ValueError
    return value


CommaList = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
HostList = Annotated[tuple[str, ...], BeforeValidator(_split_commas), AfterValidator(checked_hosts)]
NameList = Annotated[tuple[str, ...], BeforeValidator(_split_commas), AfterValidator(checked_names)]
AliasList = Annotated[tuple[str, ...], BeforeValidator(_split_commas), AfterValidator(_checked_aliases)]
SecretList = Annotated[tuple[SecretStr, ...], BeforeValidator(_split_commas)]


class ServerConfig(BaseModel):
    """Settings of one server process: addresses, limits, voices, keys and logs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. 0.0.0.0 means every interface."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on. 0 selects a free one."""
    uds: Path | None = None
    """Socket file to listen on in place of `host` and `port`, for a proxy on this machine. It is removed at the end."""
    uds_mode: Annotated[Literal["600", "660", "666"], BeforeValidator(str)] = "660"
    """Permissions of the socket file: `600` for this user alone, `660` for the group too, `666` for everybody."""
    root_path: Annotated[str, AfterValidator(checked_root_path)] = ""
    """Path under which a proxy shows the server, such as /speech. The proxy may take it off or leave it."""
    ssl_certfile: Path | None = None
    """Certificate chain in PEM form, for TLS without a proxy. A renewed file is read within 5 s or at SIGHUP, and
    connections stay open."""
    ssl_keyfile: Path | None = None
    """Private key of the certificate in PEM form. The default is the certificate's own file."""
    ssl_keyfile_password: SecretStr | None = None
    """Password of an encrypted private key."""
    ssl_ca_certs: Path | None = None
    """Certificates of authorities in PEM form. Every client must then show a certificate that one of them signed."""
    wyoming_port: int = Field(default=0, ge=0, le=65535)
    """Port for the Wyoming protocol, by which Home Assistant finds a voice; its usual one is 10200. 0 turns it off."""
    wyoming_host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on for the Wyoming protocol. It has no keys: everybody who reaches it may speak."""
    wyoming_zeroconf: bool = False
    """Announce the Wyoming port by mDNS, so that Home Assistant finds it by itself. It needs the package zeroconf (the
    extra `zeroconf`)."""
    model: CommaList = ()
    """Checkpoint folder or hub id, or NAME=CHECKPOINT. Repeat the flag (in a variable: separate by commas) to serve
    several. The default is the voice that ships with Vivavoce. `fake` plays tones and needs no torch;
    `fake-chat` answers conversations in tones."""
    model_name: str | None = None
    """Name of the model in requests, if there is only one. The default is the checkpoint's own name."""
    load: Literal["start", "on-demand"] = "start"
    """Time of loading: `start` loads all models before the server is ready, `on-demand` each at its first request."""
    model_ttl_s: float = Field(default=600.0, gt=0)
    """Seconds without use after which a model that was loaded on demand is unloaded."""
    workers: int = Field(default=1, gt=0, le=MAX_WORKERS)
    """Processes per model. They share its requests. Useful on a CPU with more cores than one process can use."""
    fronts: Annotated[
        Annotated[int, Field(gt=0, le=MAX_FRONTS)] | Literal["auto"], BeforeValidator(_number_or_auto)
    ] = "auto"
    """Processes that serve HTTP and the sockets, each on a core of its own, where one core would be less than a card
    can speak. They are one server to its clients: every limit holds over all of them. `auto` is 1 where a CPU speaks;
    beside a card it leaves two cores to each engine process, and takes at most 8."""
    thinker: str = "process"
    """Thinker of a Qwen3-Omni checkpoint, whose answers its talker speaks: `process` runs it here by transformers, for
    text, sound and pictures; a URL such as http://localhost:8001/v1 uses the same model on another server, for text
    alone. That server must stream token ids, as vLLM does."""
    thinker_model: str | None = None
    """Name of the model on the thinker's server. The default is the first that it lists."""
    thinker_key: SecretStr | None = None
    """API key of the thinker's server."""
    thinker_stall_s: float = Field(default=30.0, gt=0)
    """Seconds after which a thinker's server that sends nothing has failed."""
    thinker_device: str = "auto"
    """Device of a thinker that runs here: a name of PyTorch, or `auto` for the engine's own device."""
    thinker_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of a thinker that runs here: `auto` is bfloat16 on a card and float32 on a CPU."""
    thinker_conversations: int = Field(default=8, gt=0, le=1024)
    """Maximum number of answers that a thinker that runs here writes side by side. Further ones wait."""
    thinker_max_context: int = Field(default=8192, gt=0)
    """Longest conversation with its answer, in tokens, of a thinker that runs here."""
    chat_max_tokens: int = Field(default=1024, gt=0)
    """Maximum length of an answer, in tokens of its text; also that of requests which name none."""
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
    strict: bool = False
    """If true, a field that the model cannot follow is refused: instructions, or the name of a voice while another one
    speaks. If false, it is ignored, and the header X-Vivavoce-Ignored of the answer names it."""
    leading_silence: LeadingSilenceChoice = "trim"
    """Silence that a voice puts before its first word, in speech whose request does not say: `trim` sends the last
    20 ms of it, so that speech is heard at once; `keep` sends all."""
    default_seed: int | None = Field(default=None, ge=0, le=SEED_MAX)
    """Seed of requests that name none: the same text then has the same speech. The default draws another each time."""
    cache_dir: Path | None = None
    """Folder for the speech of requests with a seed (their own, or `default_seed`). The same request is then answered
    without the model. Several servers may share it. The default caches nothing."""
    cache_size_mb: int = Field(default=1024, gt=0)
    """Maximum size of all cached speech, in MiB: three hours of it in 1024. The least recently used leaves first."""
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
    config: Path | None = None
    """TOML file of settings, under the names of the options without their dashes: port = 8000. The environment and the
    command line come before it."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged."""
    log_format: Literal["text", "json"] = "text"
    """Format of log lines: `text` for people, `json` for machines."""
    otlp_endpoint: str | None = None
    """URL of an OpenTelemetry collector (OTLP over HTTP, for instance http://localhost:4318) that receives a span for
    each request. It needs the extra `otel`. The default is the variable OTEL_EXPORTER_OTLP_ENDPOINT, or none."""


def _parsed(name: str, kind: object) -> object:
    """The type of one of the engine's settings, whose numbers are above 0."""
    limits = Field(gt=0, le=ENGINE_MAXIMA.get(name))
    if kind == int | Literal["auto"]:
        return Annotated[Annotated[int, limits] | Literal["auto"], BeforeValidator(_number_or_auto)]
    return Annotated[kind, limits] if kind in (int, float) else kind


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def _settings_type() -> type[BaseModel]:
    server = {name: (field.annotation, field) for name, field in ServerConfig.model_fields.items()}
    engine = {field.name: (_parsed(field.name, field.type), field.default) for field in fields(EngineConfig)}
    assert not server.keys() & engine.keys(), "one flat namespace of flags and variables"
    definitions: dict[str, Any] = {**server, **engine}
    return create_model("Settings", __base__=_Strict, **definitions)


Settings = _settings_type()


def load_settings(flags: Mapping[str, Any]) -> tuple[ServerConfig, EngineConfig]:
    """Reads the settings: flags override environment variables, which override the file, which overrides defaults.

    Raises:
        SettingError: a value is invalid, or the name of a setting is unknown.
    """
    given = gather(flags, Settings.model_fields)
    values = {name: _cleaned(name, each) for name, each in given.items()}
    try:
        settings = dict(Settings(**values))
        engine = EngineConfig(**{field.name: settings.pop(field.name) for field in fields(EngineConfig)})
        return ServerConfig(**settings), engine
    except ValidationError as error:
        faults = {str(fault["loc"][0]): fault for fault in reversed(error.errors(include_url=False))}
        lines = [_told(given[name], Settings.model_fields[name], fault) for name, fault in reversed(faults.items())]
        raise SettingError("; ".join(lines)) from None
    except ValueError as error:  # the engine's own, which begins with the setting's name
        name, _, rest = str(error).partition(" ")
        place = given[name].place if name in given else flag_of(name) if name in Settings.model_fields else name
        raise SettingError(f"{place} {_cut(rest)}") from None


def _cleaned(name: str, given: Given) -> object:
    """A value for pydantic. An empty text stands for None where that is possible.

    Raises:
        SettingError: the value could not be used in a path or an answer, or is a truth value in place of a number.
    """
    field, value = Settings.model_fields[name], given.value
    if isinstance(value, bool) and is_number(field):
        raise SettingError(f"{given.place} must be {description(field)}")
    for text in value if isinstance(value, list | tuple) else [value]:
        if isinstance(text, str) and ("\0" in text or not _is_unicode(text)):
            raise SettingError(f"{given.place} has a character that cannot be used")
    return None if value == "" and is_optional(field) else value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of another encoding, from the command line or the environment
        return False
    return True


def _told(given: Given, field: FieldInfo, fault: ErrorDetails) -> str:
    """The fault of a value, without the value, which may be a key. pydantic's words are for programmers."""
    own_check = fault["type"] == "value_error" or fault["type"] not in PYDANTIC_ERRORS
    if own_check and not is_number(field):
        return f"{given.place}: {_cut(fault['msg'].removeprefix('Value error, '))}"
    return f"{given.place} must be {description(field)}{near_match(str(given.value), choices_of(field))}"


def _cut(text: str) -> str:
    """A check's message, which may repeat a value of any length."""
    return text if len(text) <= MAX_TOLD_CHARS else f"{text[:MAX_TOLD_CHARS]}..."


def setting_help() -> dict[str, str]:
    """Maps each setting to its docstring and default, for the command line's help."""
    docs = {**attribute_docs(ServerConfig), **attribute_docs(EngineConfig)}
    return {name: docs[name] + default_text(field) for name, field in Settings.model_fields.items()}
