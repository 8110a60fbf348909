"""Everything that can go wrong, as one tree. The engine knows no HTTP; the server maps these in one table.

EngineError
├── CheckpointError   the folder is not a servable checkpoint (says which file, key or tensor)
├── Rejected          this model cannot serve this request (names the field)
├── Overloaded        the queue is full; try again after `retry_after_s`
├── StoreFull         no room for another stored voice
├── NotServing        the engine is starting, draining or stopped
└── SynthesisFailed   this utterance broke while it was running
    └── EndlessSpeech the model would not stop
"""


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose."""


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
    """The queue is full."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StoreFull(EngineError):
    """The folder of stored voices holds as many as it may; delete one first."""


class NotServing(EngineError):
    """The engine takes no requests now."""


class SynthesisFailed(EngineError):
    """An utterance failed after it had been accepted."""


class EndlessSpeech(SynthesisFailed):
    """The model went on past what the text can need, or repeated itself: another seed most likely ends."""
