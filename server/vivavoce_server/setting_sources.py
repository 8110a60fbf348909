"""Sources of the settings' values: the command line, then the environment, then the file of --config."""

import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivavoce_client.arguments import near_match
from vivavoce_engine import CARD_VARIABLE, LEVEL_VARIABLE, card_fields

from vivavoce_server.logs import for_log, printable

ENV_PREFIX = "VIVAVOCE_"
CLIENT_VARIABLES = frozenset({"VIVAVOCE_URL", "VIVAVOCE_API_KEY"})
"""Variables that the client reads. Client and server may share an environment."""
BUILD_VARIABLES = frozenset({"VIVAVOCE_COMMIT", "VIVAVOCE_KERNELS"})
"""Variables that a container's build and an installation are told by."""
ENGINE_VARIABLES = frozenset({CARD_VARIABLE, LEVEL_VARIABLE})
"""Variables that the engine reads itself: no settings of a server, but means of proof."""
OTHER_VARIABLES = CLIENT_VARIABLES | BUILD_VARIABLES | ENGINE_VARIABLES
FILE_SETTING = "config"
"""The setting that names the file. The file cannot name another."""
MAX_FILE_BYTES = 2**20


class SettingError(ValueError):
    """Settings are wrong. The message is one line, which names each setting at fault as the operator wrote it."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class UnknownVariable(SettingError):
    """The environment contains a VIVAVOCE_* variable that is not a setting, most likely a typing error."""

    def __init__(self, variable: str, known: Collection[str]) -> None:
        hint = near_match(variable, (variable_of(name) for name in known))
        super().__init__(f"the environment variable {variable} is not a setting of Vivavoce{hint}")
        self.variable = variable


@dataclass(frozen=True)
class Given:
    """A value, and the place that gave it as an operator knows it: `--port`, `VIVAVOCE_PORT`, `port in FILE`."""

    value: Any
    place: str


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return ENV_PREFIX + name.upper()


def gather(flags: Mapping[str, Any], known: Collection[str]) -> dict[str, Given]:
    """The value of each setting that is given anywhere, by name. Raises SettingError."""
    for name in flags:
        if name not in known:
            raise SettingError(f"there is no setting {name}{near_match(name, known)}")
    by_flag = {name: Given(value, flag_of(name)) for name, value in flags.items()}
    given = {**from_environment(known), **by_flag}
    file = given.get(FILE_SETTING)
    return {**(from_file(file, known) if file is not None and file.value else {}), **given}


def from_environment(known: Collection[str]) -> dict[str, Given]:
    for variable in os.environ:
        name = variable.removeprefix(ENV_PREFIX)
        is_ours = variable.startswith(ENV_PREFIX) and variable not in OTHER_VARIABLES
        if is_ours and (name.lower() not in known or name != name.upper()):
            raise UnknownVariable(variable, known)
    try:
        card_fields(os.environ.get(CARD_VARIABLE, ""))  # an engine on a card would refuse it after the load
    except ValueError as error:
        raise SettingError(str(error)) from None
    return {
        name: Given(os.environ[variable_of(name)], variable_of(name))
        for name in known
        if variable_of(name) in os.environ
    }


def from_file(file: Given, known: Collection[str]) -> dict[str, Given]:
    """Reads a TOML file whose keys are the options' names, with - or _ between words."""
    path = for_log(str(file.value))
    given: dict[str, Given] = {}
    for key, value in read_toml(Path(file.value), file.place).items():
        name, shown = key.replace("-", "_"), for_log(key)
        if name not in known or name == FILE_SETTING:
            options = [flag_of(each)[2:] for each in known if each != FILE_SETTING]
            raise SettingError(f"{path}: there is no setting {shown}{near_match(key, options)}")
        if name in given:
            raise SettingError(f"{path}: {shown} is set twice")
        if isinstance(value, dict):
            raise SettingError(f"{path}: {shown} is a table; settings are plain lines, such as port = 8000")
        given[name] = Given(value, f"{shown} in {path}")
    return given


def read_toml(path: Path, place: str) -> dict[str, Any]:
    """Reads a file of settings. Raises SettingError if it cannot be read, is not regular, is huge, or is no TOML."""
    name = for_log(str(path))
    try:
        if path.exists() and not path.is_file():  # reading a FIFO would wait for a writer
            raise SettingError(f"{place}: {name} is no regular file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SettingError(f"{place}: {name} is larger than {MAX_FILE_BYTES} bytes")
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise SettingError(f"{place}: {name} is not UTF-8") from None
    except (OSError, ValueError) as error:
        if isinstance(error, SettingError):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingError(f"{place}: {name} cannot be read: {reason}") from None
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise SettingError(f"{place}: {name} is no TOML: {error}") from None
