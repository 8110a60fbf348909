"""The loading of a model on a card: one engine at a time, and a clear error if its memory is taken meanwhile."""

import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from vivavoce_engine.device import use_device
from vivavoce_engine.errors import EngineError, NoRoom, is_out_of_memory
from vivavoce_engine.gpu.fitting import GB, CardMemory

log = logging.getLogger(__name__)


@contextmanager
def loading_on(device: torch.device) -> Iterator[None]:
    """Loads a model on a device, in this context: settles its settings, takes its memory, records its graphs.

    A card becomes the current one of this thread. Engines of one user load on it one after the other, because each
    settles on what the others leave free.

    Raises:
        NoRoom: memory ran out although it had sufficed, because another process has taken it meanwhile.
    """
    if device.type != "cuda":
        yield
        return
    try:
        use_device(device)
        with _alone_on(device):
            yield
    except Exception as error:
        if isinstance(error, EngineError) or not is_out_of_memory(error):
            raise
        raise NoRoom(f"{device} ran out of memory while the model was loaded ({_memory_now(device)})") from error


def _memory_now(device: torch.device) -> str:
    """Free memory, and what this process has of the rest, for an error."""
    try:
        memory, own = CardMemory.of(device), torch.cuda.memory_reserved(device)
    except (NoRoom, RuntimeError):  # there is not even room for CUDA's context
        return "other processes hold all of it: nvidia-smi lists them"
    return f"{memory}, and this engine has {own / GB:.1f}; nvidia-smi lists who has the rest"


@contextmanager
def _alone_on(device: torch.device) -> Iterator[None]:
    """Waits until no other engine of this user loads a model on this card. Without a folder for the lock, does not."""
    properties = torch.cuda.get_device_properties(device)
    with ExitStack() as stack:
        try:
            lock = Path(tempfile.gettempdir()) / f"vivavoce-{os.getuid()}-{properties.uuid}.lock"
            file = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, file)
            _wait_for(file, device)
        except OSError as error:  # no folder can be written to, or its file system has no locks
            log.debug("engines that start at once do not wait for each other: %s", error)
        yield


def _wait_for(file: int, device: torch.device) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.info("waiting for another engine to load its model on %s", device)
        fcntl.flock(file, fcntl.LOCK_EX)
