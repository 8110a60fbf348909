"""Errors that a user can correct. The command prints them in one line.

VivavoceError
├── Unusable      a file or a setting that cannot be used
├── MissingJudge  a package that judges speech is not installed
└── WrongWeights  a package holds another model than the reference figures were made with
"""

from vivavoce_client.protocol import VivavoceError


class Unusable(VivavoceError):
    """A file or a setting that cannot be used."""


class MissingJudge(VivavoceError):
    """A package that judges speech is not installed."""

    def __init__(self, module: str, error: ImportError) -> None:
        super().__init__(
            f"{module} is not installed here ({error}). Install the judges with: "
            "pip install 'vivavoce-speech[eval]' && pip install --no-deps Resemblyzer==0.1.4"
        )


class WrongWeights(VivavoceError):
    """A package holds another model than the reference figures were made with."""
