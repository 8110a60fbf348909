"""The recipe's requirements.txt names the packages with which the server reads texts, in the server's versions."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from vivavoce_text.packages import OPTIONAL

ROOT = Path(__file__).parents[2]
NAMES = {"linkify_it": "linkify-it-py", "markdown_it": "markdown-it-py"}
"""Distributions of the packages that are imported under another name."""


def test_the_corpus_is_read_as_the_server_reads() -> None:
    lines = (ROOT / "voice" / "recipe" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    needed = {each.name: each for each in map(Requirement, (line for line in lines if not line.startswith("#")))}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    served = {each.name: each for each in map(Requirement, every)}
    for package in OPTIONAL:
        name = canonicalize_name(NAMES.get(package, package))
        assert needed[name].specifier == served[name].specifier
