"""`vivavoce doctor`: checks everything that `vivavoce serve` needs of this machine, and says what mends a lack.

It takes the flags of `vivavoce serve`, and reads the same environment variables. It changes nothing, and ends with
status 1 if a check found an error. No check can end it: one that raises or hangs becomes a finding of its own.
"""

import argparse
import getpass
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import wrap
from typing import Any, TextIO

import av
import numpy as np
from vivavoce_engine import EngineConfig, Finding, check_voices, checks
from vivavoce_text import missing_packages

from vivavoce_server.access import read_keys
from vivavoce_server.cli import add_arguments as add_serve_arguments
from vivavoce_server.cli import given_flags
from vivavoce_server.config import ServerConfig, load_settings
from vivavoce_server.doctor_parts import OTHERS, Check, check_judge, checks_of_parts
from vivavoce_server.engines import FAKE_MODEL, default_voices_dir, split_entry
from vivavoce_server.formats import FORMATS, AudioFormat
from vivavoce_server.listeners import bind
from vivavoce_server.setting_sources import ENV_PREFIX, SettingError, UnknownVariable

CHECK_S = 30.0
"""Seconds after which a check counts as hung, for example on a network folder or a broken driver."""
ALL_CHECKS_S = 60.0
"""Seconds for all checks together. After them, each further check has LEAST_S."""
LAUNCHES_S = 300.0
"""Both limits where every launch is compiled."""
LEAST_S = 1.0
SAMPLE_RATE = 24000
PORTS_TRIED = 50
SIGNED_BYTES = 64
"""Least size of a tenth of a second in any format."""
SIGNATURES = {"wav": b"RIFF", "opus": b"OggS", "flac": b"fLaC", "mp3": b"\xff", "aac": b"\xff"}
"""Format → first bytes of its files. PCM has no header."""
DEFAULTS = "The other checks take the defaults."
NAME_VOICES_DIR = "vivavoce serve --voices-dir FOLDER"
COLORS = {"ok": "32", "warning": "33", "error": "31"}
FAILURE = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `vivavoce doctor`. Entry point of the command line."""
    parser.description = "Checks what `vivavoce serve` with the same settings needs, and says what mends a lack."
    parser.add_argument("--json", action="store_true", help="print one JSON object, for a report of a fault")
    parser.add_argument(
        "--launches", action="store_true", help="also compile every kernel launch for the card: takes up to a minute"
    )
    add_serve_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Runs all checks and prints their findings. Returns 1 if there is an error among them."""
    findings = examine(given_flags(args), launches=args.launches)
    if args.json:
        print(json.dumps(document(findings), ensure_ascii=False, indent=1))
    else:
        show(findings, sys.stdout)
    return FAILURE if any(finding.state == "error" for finding in findings) else 0


def examine(flags: Mapping[str, Any], *, launches: bool) -> list[Finding]:
    """Runs all checks with these settings."""
    settings, config, engine_config = check_settings(flags)
    check_s, all_s = (LAUNCHES_S, LAUNCHES_S) if launches else (CHECK_S, ALL_CHECKS_S)
    deadline_s = time.monotonic() + all_s
    findings = [settings]
    for name, check in all_checks(config, engine_config, launches=launches):
        findings += attempt(name, check, max(LEAST_S, min(check_s, deadline_s - time.monotonic())))
    return findings


def all_checks(config: ServerConfig, engine_config: EngineConfig, *, launches: bool) -> list[tuple[str, Check]]:
    """Pairs (name, check), in the order in which their findings should be read."""
    lacks_voice = not config.model and importlib.util.find_spec("vivavoce_voice") is None
    names = {} if lacks_voice else dict(map(named_checkpoint, config.model or (None,)))
    checkpoints = {name: checkpoint for name, checkpoint in names.items() if checkpoint != FAKE_MODEL}
    return [
        *([("model", tell_missing_voice)] if lacks_voice else []),
        *checks(engine_config, checkpoints, launches=launches),
        ("codecs", check_codecs),
        ("text", check_text),
        ("voices", partial(check_voices_dir, config)),
        *([] if config.uds is not None else [("port", partial(check_port, config.host, config.port))]),
        *checks_of_parts(config),
        *([("ref_text", partial(check_judge, engine_config))] if engine_config.ref_text_judge == "asr" else []),
        ("keys", partial(check_keys, config)),
    ]


def named_checkpoint(entry: str | None) -> tuple[str, str]:
    """Name for people, and folder or hub id, of an entry of --model. None is the shipped voice."""
    if entry is None:
        import vivavoce_voice

        return "the shipped voice", str(vivavoce_voice.CHECKPOINT)
    _, checkpoint = split_entry(entry)
    return checkpoint, checkpoint


def attempt(name: str, check: Check, limit_s: float) -> list[Finding]:
    """Runs a check on a thread, which is left behind if it hangs. Never raises."""
    found: list[Finding] = []

    def work() -> None:
        try:
            found.extend(check())
        except Exception as error:
            text = f"The check itself failed: {type(error).__name__}: {error}".rstrip(".") + "."
            found.append(Finding(name, "error", text))

    thread = threading.Thread(target=work, name=f"vivavoce-check-{name}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return [Finding(name, "error", f"The check did not end within {limit_s:g} s.")]
    return found


# ---- the checks


def check_settings(flags: Mapping[str, Any]) -> tuple[Finding, ServerConfig, EngineConfig]:
    """The settings from flags and environment. If they are wrong, the other checks go on with the defaults."""
    try:
        config, engine_config = load_settings(flags)
    except SettingError as error:
        return _wrong_settings(error), ServerConfig(), EngineConfig()
    names = sorted(name for name in os.environ if name.startswith(ENV_PREFIX))
    told = f"The settings are right; of the environment: {', '.join(names)}." if names else "The settings are right."
    return Finding("settings", "ok", told), config, engine_config


def _wrong_settings(error: SettingError) -> Finding:
    mend = f"unset {error.variable}" if isinstance(error, UnknownVariable) else "vivavoce serve --help"
    return Finding("settings", "error", f"The server would not start: {error}. {DEFAULTS}", mend)


def tell_missing_voice() -> list[Finding]:
    text = "The shipped voice is not installed, and no --model is named."
    return [Finding("model", "error", text, "pip install vivavoce-voice")]


def check_codecs() -> list[Finding]:
    """Every format of the server, by encoding a tenth of a second."""
    failed = [finding for name, form in FORMATS.items() for finding in _check_codec(name, form)]
    libraries = f"PyAV {av.__version__}, FFmpeg {av.ffmpeg_version_info}"
    return failed or [Finding("codecs", "ok", f"{', '.join(FORMATS)} are encoded ({libraries}).")]


def _check_codec(name: str, form: AudioFormat) -> list[Finding]:
    mend = f"{sys.executable} -m pip install --force-reinstall av"
    rate = form.sample_rate or SAMPLE_RATE
    tone = np.sin(np.arange(rate // 10, dtype=np.float32))
    try:
        encoder = form.encoder(rate)
        encoded = encoder.feed(tone) + encoder.flush()
    except Exception as error:
        return [Finding("codecs", "error", f"{name} cannot be encoded: {type(error).__name__}: {error}.", mend)]
    if not encoded.startswith(SIGNATURES.get(name, b"")) or len(encoded) < SIGNED_BYTES:
        return [Finding("codecs", "error", f"{name} is encoded, but the result is no {name} file.", mend)]
    return []


def check_text() -> list[Finding]:
    missing = [
        Finding("text", "warning", f"The package {package} is missing: {lack}.", f"pip install {package}")
        for package, lack in missing_packages().items()
    ]
    return missing or [Finding("text", "ok", "Every stage of reading has its packages.")]


def check_voices_dir(config: ServerConfig) -> list[Finding]:
    """The folder of stored voices. If it is not one that the operator named, the server can do without it."""
    if not config.max_voices:
        return [Finding("voices", "ok", "The settings store no voices.")]
    if config.voices_dir is not None:
        return check_voices(config.voices_dir, config.max_voices)
    try:
        found = check_voices(default_voices_dir(), config.max_voices)
    except RuntimeError as error:  # the user has no home folder
        found = [Finding("voices", "error", f"No voices can be stored: {error}.", NAME_VOICES_DIR)]
    return [replace(each, state="warning") if each.state == "error" else each for each in found]


def check_port(host: str, port: int) -> list[Finding]:
    """The address to listen on, by binding it."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bind(host, port).close()
    except OSError as error:
        text = f"The server could not listen on {where}: {error.strerror or error}."
        return [Finding("port", "error", text, _other_port(host, port))]
    return [Finding("port", "ok", f"{where} is free." if port else f"A free port of {host} will be taken.")]


def _other_port(host: str, port: int) -> str:
    """A command with an address that is free; empty if the fault is the host."""
    for other in range(max(port, 8000) + 1, max(port, 8000) + 1 + PORTS_TRIED):
        with suppress(OSError, OverflowError):
            bind(host, other).close()
            return f"vivavoce serve --port {other}"
    return "vivavoce serve --host 127.0.0.1"


def check_keys(config: ServerConfig) -> list[Finding]:
    """API keys: the file is valid, and nobody else on this machine can read it."""
    path = config.api_keys_file
    try:
        count = len(read_keys(config))
    except ValueError as error:
        return [Finding("keys", "error", f"The API keys are wrong: {error}.")]
    if path is not None and sys.platform != "win32" and path.stat().st_mode & OTHERS:
        return [
            Finding("keys", "warning", f"Other users of this machine can read the keys in {path}.", f"chmod 600 {path}")
        ]
    if not count:
        text = f"No API key is set, so everybody who reaches {config.host} may speak."
        return [Finding("keys", "ok", text)]
    return [Finding("keys", "ok", f"{count} API key{'s are' if count > 1 else ' is'} set.")]


# ---- the report


def document(findings: Iterable[Finding]) -> dict[str, Any]:
    """The object of --json. It names neither the user nor the user's home folder."""
    return {
        "vivavoce": package_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "findings": [{name: without_user(value) for name, value in asdict(each).items()} for each in findings],
    }


def package_version() -> str:
    try:
        return version("vivavoce-speech")
    except PackageNotFoundError:
        return "not installed"


def without_user(text: str) -> str:
    """Replaces the home folder by ~, and the user's name in other paths by USER."""
    with suppress(RuntimeError):  # the user has no home folder
        home = str(Path.home())
        if home != "/":
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    text = re.sub(r"/(home|Users)/[^/\s:'\"]+", r"/\1/USER", text)
    with suppress(OSError, KeyError):  # a container's user may have no name
        text = re.sub(rf"(?<=/){re.escape(getpass.getuser())}(?![\w.-])", "USER", text)
    return text


def show(findings: list[Finding], out: TextIO) -> None:
    """Prints aligned lines, and under a finding the command that mends it."""
    colored = out.isatty() and "NO_COLOR" not in os.environ
    columns = shutil.get_terminal_size().columns if out.isatty() else 10_000
    widths = max(len(each.state) for each in findings), max(len(each.name) for each in findings)
    for each in findings:
        state = each.state.ljust(widths[0])
        head = f"\x1b[{COLORS[each.state]}m{state}\x1b[0m" if colored else state
        indent = " " * (sum(widths) + 4)
        lines = wrap(each.text, max(40, columns - len(indent)), break_long_words=False, break_on_hyphens=False)
        print(f"{head}  {each.name.ljust(widths[1])}  {f'{chr(10)}{indent}'.join(lines)}", file=out)
        if each.mend:
            print(f"{indent}mend: {each.mend}", file=out)
    counts = {state: sum(each.state == state for each in findings) for state in ("error", "warning")}
    print(verdict(counts["error"], counts["warning"]), file=out)


def verdict(errors: int, warnings: int) -> str:
    """The last line for people."""
    told = [f"{count} {word}{'s' * (count > 1)}" for count, word in ((errors, "error"), (warnings, "warning")) if count]
    what = "`vivavoce serve` would not work as it should" if errors else "`vivavoce serve` would start"
    return f"{', '.join(told) or 'nothing is wrong'}; {what}"
