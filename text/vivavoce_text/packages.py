"""Packages that a stage works without. Each is loaded at its first use."""

import logging
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

log = logging.getLogger(__name__)

OPTIONAL = {
    "anyascii": "letters of other alphabets are left out",
    "emoji": "emoji are no words, but may be heard",
    "linkify_it": "links are read as plain text",
    "markdown_it": "links and code in Markdown are read as plain text",
    "normt2s": "formulas with commands are not said",
    "wetext": "numbers in Chinese and Japanese stay as they are",
}
"""Optional packages, by the names that they are imported under, and what a reading lacks without each."""


def missing_packages() -> dict[str, str]:
    """The optional packages that are not installed, and what a reading lacks without each."""
    return {package: lack for package, lack in OPTIONAL.items() if find_spec(package) is None}


@cache
def optional(module: str) -> ModuleType | None:
    """A module of an optional package, or None. The log says once what is lacking without it."""
    package, dot, _ = module.partition(".")
    if dot and optional(package) is None:
        return None
    try:
        return import_module(module)
    except ImportError as error:
        log.warning("the package %s cannot be used (%s): %s", package, error, OPTIONAL[package])
        return None
