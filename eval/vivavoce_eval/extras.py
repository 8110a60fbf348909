"""The packages of the extra `eval`, imported where they are first needed."""

import importlib
from pathlib import Path
from typing import Any

from vivavoce_eval.errors import MissingJudge


def need(module: str) -> Any:  # noqa: ANN401 (packages without types)
    """Imports a module of the extra.

    Raises:
        MissingJudge: it is not installed. The message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingJudge(module, error) from error


def folder_of(module: str) -> Path:
    """Folder of a package of the extra, where it keeps its data."""
    file = need(module).__file__
    assert file is not None, f"{module} is no plain package"
    return Path(file).parent
