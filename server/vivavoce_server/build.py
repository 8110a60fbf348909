"""The version of this software, and the commit that it was built from."""

import os
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DISTRIBUTION = "vivavoce-speech"
COMMIT_VARIABLE = "VIVAVOCE_COMMIT"
"""Variable that the container's build sets."""
COMMIT_CHARS = 12
GIT_S = 5.0
ROOT = Path(__file__).parents[2]
"""The repository's root, if this is a checkout."""


def _version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # a source tree on the path
        return "unknown"


VERSION = _version()


@cache
def build_commit() -> str:
    """The first characters of the git commit of this build; empty if it is not known.

    It comes from the container's build, or from git if this is a checkout.
    """
    given = os.environ.get(COMMIT_VARIABLE, "").strip()
    if given:
        return given[:COMMIT_CHARS]
    if not (ROOT / ".git").exists():
        return ""
    command = ["git", "-C", str(ROOT), "rev-parse", f"--short={COMMIT_CHARS}", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
