"""Engine: a loop on a thread of this process. Knows no tensors, no HTTP, no JSON.

It serves benchmarks, tests, and programs that speak without a server. A server gives each loop a process of its own
(process/engine_process.py).
"""

import logging
import threading
from collections import Counter, deque

from vivavoce_engine.batching.line import LoopState
from vivavoce_engine.batching.loop import EngineLoop
from vivavoce_engine.batching.messages import Command, Shutdown
from vivavoce_engine.batching.runner import Runner
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EngineError, NotServing
from vivavoce_engine.front.front import EngineFront
from vivavoce_engine.front.stream import AudioStream, deliver
from vivavoce_engine.voices.registry import Voices

log = logging.getLogger(__name__)


class _Inbox:
    """Commands from any thread to the loop's thread."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._arrived = threading.Event()

    def put(self, command: Command) -> None:
        self._commands.append(command)
        self._arrived.set()

    def wake(self) -> None:
        self._arrived.set()

    def take(self) -> list[Command]:
        self._arrived.clear()  # first, so that the next `wait` sees commands put from now on
        taken = []
        while self._commands:
            taken.append(self._commands.popleft())
        return taken

    def wait(self, timeout_s: float | None) -> None:
        self._arrived.wait(timeout_s)


class Engine(EngineFront):
    """An engine on a thread of this process. It does not recover if that thread dies."""

    def __init__(self, runner: Runner, config: EngineConfig, voices: Voices | None = None, identity: str = "") -> None:
        super().__init__(runner.info, runner.text, config, voices or Voices(runner.info))
        self._identity = identity
        self._loop = EngineLoop(runner, config, self._admission, deliver)
        self._inbox = _Inbox()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="vivavoce-engine", daemon=True)

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def ready(self) -> bool:
        """True between `start` and `stop`, while the thread lives."""
        return self._accepting and self._thread.is_alive()

    @property
    def failed(self) -> bool:
        """True if the thread died of an error. Only a new engine helps then."""
        return self._failed

    @property
    def restarts(self) -> Counter[str]:
        return Counter()

    @property
    def processes(self) -> int:
        return int(self._thread.is_alive())

    @property
    def step_s(self) -> float:
        return self._loop.step_s

    def start(self) -> None:
        self._accepting = True
        self._thread.start()

    def stop(self) -> None:
        self.drain()
        if self._thread.is_alive():
            self._send(Shutdown())
            self._thread.join()

    def _loop_state(self) -> LoopState:
        return self._loop.state()

    def _send(self, command: Command) -> None:
        self._inbox.put(command)

    def _on_read(self, stream: AudioStream) -> None:
        self._inbox.wake()

    def _run(self) -> None:
        failure: EngineError = NotServing("the engine was stopped")
        try:
            self._loop.run(self._inbox)
        except Exception as error:
            self._failed = True
            log.exception("the engine stopped")
            failure = NotServing(f"the engine stopped: {error}")
        with self._gate:
            self._accepting = False
        self._loop.apply(command for command in self._inbox.take() if not isinstance(command, Shutdown))
        self._loop.fail_all(failure)
