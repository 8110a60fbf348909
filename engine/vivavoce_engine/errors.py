"""Errors of the engine, as one tree. The engine does not know HTTP: the server maps errors to statuses in one table.

EngineError
├── CheckpointError   the folder is not a usable checkpoint (names the file, key or tensor)
│   └── NoRoom        the device has too little memory for it (names settings that would fit)
├── Rejected          this model cannot serve this request (names the field)
│   └── RefTextMismatch  the transcript is of another recording
├── Overloaded        the queue or the memory for running speech is full; try again after `retry_after_s`
├── StoreFull         no room for another stored voice
├── StoreFailed       the folder of stored voices cannot be written to, most likely because the disk is full
├── NotServing        the engine is starting, draining or stopped, or has broken down
├── ThinkerFailed     the thinker wrote something that cannot be spoken, or did not go on
└── SynthesisFailed   this utterance failed while it was running
    └── EndlessSpeech the model did not stop

Errors of PyTorch, Triton and CUDA's libraries are recognised by their texts, so that torch need not be imported.
"""

import re

NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|alloc(ation)?[ _]fail|(CUBLAS|CUDNN)_STATUS_NOT_INITIALIZED", re.IGNORECASE
)
"""Texts of errors for lack of memory. CUDA's libraries say that they are not initialised if they find none for their
handles, which they make at their first use in a thread."""
DEVICE = re.compile(r"(CUDA|HIP) error|Triton Error \[(CUDA|HIP)\]")


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or bool(NO_MEMORY.search(str(error)))


def is_device_lost(error: BaseException) -> bool:
    """True if this process can compute nothing any more, because an error of a CUDA context is permanent. A lack of
    memory is not, although CUDA reports it in the same way."""
    return bool(DEVICE.search(str(error))) and not is_out_of_memory(error)


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose. Pickle keeps their attributes, so they cross processes."""

    def __reduce__(self) -> tuple[object, ...]:
        return _revive, (type(self), self.args, self.__dict__)


def _revive(kind: type[EngineError], args: tuple[object, ...], fields: dict[str, object]) -> EngineError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class CheckpointError(EngineError):
    """The checkpoint folder is missing or incomplete, or has another layout."""


class NoRoom(CheckpointError):
    """The checkpoint, with these settings, does not fit the device's memory."""


class Rejected(EngineError):
    """The request asks for something that this model does not have.

    `param` is the SynthesisRequest field at fault.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class RefTextMismatch(Rejected):
    """The transcript of a reference does not fit its recording."""


class Overloaded(EngineError):
    """The queue is full, or the memory is too full for running speech to continue."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StoreFull(EngineError):
    """The folder of stored voices is full. Delete a voice first."""


class StoreFailed(EngineError):
    """A voice could not be written or deleted, for a reason outside this program."""


class NotServing(EngineError):
    """The engine takes no requests now, or broke down while it ran this one. It may serve again soon."""


class ThinkerFailed(EngineError):
    """A thinker's answer broke off, or cannot be spoken."""


class SynthesisFailed(EngineError):
    """An utterance failed after it had been accepted."""


class EndlessSpeech(SynthesisFailed):
    """The model spoke longer than the text can need, or repeated itself. Another seed most likely ends."""
