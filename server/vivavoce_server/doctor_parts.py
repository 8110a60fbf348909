"""Checks of `vivavoce doctor` for the parts of a server that only some settings turn on."""

import os
import socket
import stat
import sys
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from vivavoce_engine import EngineConfig, Finding, recognizer_for, usable_cores, why_not_writable

from vivavoce_server.certificates import Certificate, files_of
from vivavoce_server.config import ServerConfig
from vivavoce_server.marks import open_marker
from vivavoce_server.phrases.folder import FOLDER
from vivavoce_server.tracing import check_tracing, endpoint_of
from vivavoce_server.unix_socket import UnixSocket
from vivavoce_server.wyoming_announcement import check_announcement

Check = Callable[[], list[Finding]]

MIB = 2**20
COLLECTOR_S = 3.0
"""Seconds in which a collector of spans must take a connection."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO
HTTP_PORTS = {"http": 80, "https": 443}


def checks_of_parts(config: ServerConfig) -> list[tuple[str, Check]]:
    """Pairs (name, check) of the parts that these settings turn on."""
    has_tls = any((config.ssl_certfile, config.ssl_keyfile, config.ssl_keyfile_password, config.ssl_ca_certs))
    parts: list[tuple[str, bool, Callable[[ServerConfig], list[Finding]]]] = [
        ("fronts", config.fronts not in ("auto", 1), check_fronts),
        ("socket", config.uds is not None, check_socket),
        ("tls", has_tls, check_tls),
        ("wyoming", config.wyoming_zeroconf, check_zeroconf),
        ("marks", config.mark_audio != "off", check_marks),
        ("cache", config.cache_dir is not None, check_cache),
        ("spans", config.otlp_endpoint is not None or endpoint_of(config) is not None, check_spans),
    ]
    return [(name, partial(check, config)) for name, is_on, check in parts if is_on]


def would_not_start(name: str, error: object) -> list[Finding]:
    return [Finding(name, "error", f"The server would not start: {error}.")]


def check_fronts(config: ServerConfig) -> list[Finding]:
    """The number of fronts beside that of the cores. More of them than cores take turns."""
    cores = usable_cores()
    told = f"{config.fronts} fronts serve HTTP"
    if int(config.fronts) > cores:
        text = f"{told} on {cores} core{'s' * (cores > 1)}, which they share with the engine: they take turns."
        return [Finding("fronts", "warning", text, "vivavoce serve --fronts auto")]
    return [Finding("fronts", "ok", f"{told}; there are {cores} cores.")]


def check_socket(config: ServerConfig) -> list[Finding]:
    """The socket file, by binding it. A file that a killed server left behind is removed."""
    path = config.uds
    assert path is not None
    try:
        UnixSocket(path, int(config.uds_mode, 8)).remove()
    except OSError as error:
        text = f"The server could not listen on {path}: {error.strerror or error}."
        return [Finding("socket", "error", text, "vivavoce serve --uds FILE  # another one")]
    return [Finding("socket", "ok", f"{path} is free.")]


def check_tls(config: ServerConfig) -> list[Finding]:
    """Certificate and key: they belong together, and nobody else on this machine can read the key."""
    try:
        Certificate.of(config)
    except ValueError as error:
        return would_not_start("tls", error)
    files = files_of(config)
    key = files.get("ssl_keyfile", files["ssl_certfile"])
    if sys.platform != "win32" and key.stat().st_mode & OTHERS:
        return [
            Finding("tls", "warning", f"Other users of this machine can read the key in {key}.", f"chmod 600 {key}")
        ]
    return [Finding("tls", "ok", f"{files['ssl_certfile']} and its key belong together.")]


def check_zeroconf(config: ServerConfig) -> list[Finding]:
    try:
        check_announcement(config)
    except ValueError as error:
        return would_not_start("wyoming", error)
    return [Finding("wyoming", "ok", "The Wyoming port can be announced.")]


def check_marks(config: ServerConfig) -> list[Finding]:
    """The watermark, by loading it."""
    try:
        open_marker(config.mark_audio)
    except ValueError as error:
        return would_not_start("marks", error)
    samples = ", and their samples a watermark" if config.mark_audio == "on" else ""
    return [Finding("marks", "ok", f"Files say that they are synthetic{samples}.")]


def check_judge(config: EngineConfig) -> list[Finding]:
    """The speech recognizer that the settings ask for, without its model."""
    try:
        recognizer_for(config.ref_text_judge)
    except ValueError as error:
        return would_not_start("ref_text", error)
    return [Finding("ref_text", "ok", "A speech recognizer is installed, which judges ref_text.")]


def check_cache(config: ServerConfig) -> list[Finding]:
    """The folder of the phrase cache. Without it the server speaks all the same."""
    folder = config.cache_dir
    assert folder is not None
    inner = folder / FOLDER
    if inner.exists() and (inner.stat().st_uid != os.geteuid() or inner.stat().st_mode & OTHERS):
        text = f"Nothing is cached: {inner} must belong to this user alone."
        return [Finding("cache", "warning", text, f"chmod 700 {inner}")]
    if reason := why_not_writable(inner, config.cache_size_mb * MIB):
        mend = "vivavoce serve --cache-dir FOLDER  # one that has room"
        return [Finding("cache", "warning", f"Less is cached in {folder}, or nothing: {reason}.", mend)]
    which = "with a seed of their own" if config.default_seed is None else "with any seed or none"
    return [Finding("cache", "ok", f"{folder} keeps the speech of requests {which}.")]


def check_spans(config: ServerConfig) -> list[Finding]:
    """The endpoint for spans, by connecting to it. Without a collector only the spans are lost."""
    try:
        check_tracing(config)
    except ValueError as error:
        return would_not_start("spans", error)
    endpoint = endpoint_of(config)
    if endpoint is None:
        return [Finding("spans", "ok", "OTEL_SDK_DISABLED turns spans off.")]
    try:
        url = urlsplit(endpoint)
        where = url.hostname or "", url.port or HTTP_PORTS.get(url.scheme, 0)
        socket.create_connection(where, COLLECTOR_S).close()
    except (OSError, ValueError) as error:
        text = f"Spans are lost: no collector answers at {endpoint} ({error})."
        return [Finding("spans", "warning", text, "vivavoce serve --otlp-endpoint URL")]
    return [Finding("spans", "ok", f"A collector answers at {endpoint}.")]
