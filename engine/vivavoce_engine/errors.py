"""Everything that can go wrong, as one tree. The engine knows no HTTP; the server maps these in one table.

EngineError
├── CheckpointError   the folder is not a servable checkpoint (says which file, key or tensor)
├── Rejected          this model cannot serve this request (names the field)
├── Overloaded        the queue is full, or memory beside running speech; try again after `retry_after_s`
├── StoreFull         no room for another stored voice
├── StoreFailed       the folder of stored voices cannot be written to: a full disk, most likely
├── NotServing        the engine is starting, draining, stopped, or broke down
└── SynthesisFailed   this utterance broke while it was running
    └── EndlessSpeech the model would not stop
"""


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose. They cross processes with all that they carry."""

    def __reduce__(self) -> tuple[object, ...]:
        return _revive, (type(self), self.args, self.__dict__)


def _revive(kind: type[EngineError], args: tuple[object, ...], fields: dict[str, object]) -> EngineError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class CheckpointError(EngineError):
    """The checkpoint folder is missing, incomplete, or of another layout."""


class Rejected(EngineError):
    """The request asks for something that this model does not have.

    `param` is the SynthesisRequest field at fault.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class Overloaded(EngineError):
    """The queue is full, or running speech finds no room to go on beside the others."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StoreFull(EngineError):
    """The folder of stored voices holds as many as it may; delete one first."""


class StoreFailed(EngineError):
    """A voice could not be written or deleted, for a reason outside of this program."""


class NotServing(EngineError):
    """The engine takes no requests now, or broke down under those that it had; it may soon be there again."""


class SynthesisFailed(EngineError):
    """An utterance failed after it had been accepted."""


class EndlessSpeech(SynthesisFailed):
    """The model went on past what the text can need, or repeated itself: another seed most likely ends."""
