"""Findings: what a check of this machine found, and the command that mends it. Torch-free."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    """The checked thing, such as `compiler`."""
    state: State
    """`warning`: works, with a loss. `error`: does not work."""
    text: str
    """One sentence."""
    mend: str = ""
    """The command that mends it, if one does."""
