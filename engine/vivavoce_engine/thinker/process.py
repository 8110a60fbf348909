"""ThinkerProcess: a thinker in a process of its own, by transformers. Torch-free; this is the callers' half.

The process belongs to a `Watcher`, as an engine's does. A thinker that breaks costs its own answers alone.
"""

import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path

from vivavoce_engine.errors import EngineError, Overloaded
from vivavoce_engine.process.carrier import Phase
from vivavoce_engine.process.watcher import Program, Watcher
from vivavoce_engine.process.wire import Answer, Ready, SignOfLife
from vivavoce_engine.thinker.interface import ChatMessage, Thinker, ThinkerEnd, ThinkOptions, Thought
from vivavoce_engine.thinker.text import ThinkerText
from vivavoce_engine.thinker.wire import Forget, LoadThinker, Think, ThinkerConfig, Thoughts

log = logging.getLogger(__name__)

RETRY_S = 5.0


class _Reader:
    """The parts of one answer on their way to the task that reads them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parts: asyncio.Queue[Thought | EngineError] = asyncio.Queue()

    def put(self, part: Thought | EngineError) -> None:
        """Called on the watching thread. A loop that has closed has no reader left."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._parts.put_nowait, part)

    async def get(self) -> Thought:
        part = await self._parts.get()
        if isinstance(part, EngineError):
            raise part
        return part


class ThinkerProcess(Thinker):
    """The thinker of a checkpoint in a folder, in a process that is restarted when it breaks."""

    def __init__(self, path: Path, config: ThinkerConfig, name: str | None = None) -> None:
        super().__init__(ThinkerText(path))
        self.config = config
        self._numbers = itertools.count(1)
        self._gate = threading.Lock()
        self._readers: dict[int, _Reader] = {}

        def load() -> LoadThinker:
            return LoadThinker(path, config, log.getEffectiveLevel())

        program = Program(
            name or path.resolve().name, "thinker", "vivavoce_engine.thinker.worker", load, config.max_step_s
        )
        self._watcher = Watcher(program, None, self._gate, self)

    @property
    def takes_media(self) -> bool:
        return True

    @property
    def ready(self) -> bool:
        return self._watcher.phase is Phase.SERVING

    @property
    def failed(self) -> bool:
        return self._watcher.failed

    @property
    def writing(self) -> int:
        """Number of answers that have not ended."""
        return len(self._readers)

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        return self._watcher.pid

    def start(self) -> None:
        self._watcher.start()
        self._watcher.wait_until_started()

    def stop(self) -> None:
        self._watcher.stop()

    async def aclose(self) -> None:
        """Nothing is opened on an event loop."""

    async def stream(self, messages: Sequence[ChatMessage], options: ThinkOptions) -> AsyncGenerator[Thought, None]:
        number, reader = next(self._numbers), _Reader()
        with self._gate:
            if len(self._readers) >= self.config.conversations + self.config.waiting:
                raise Overloaded(f"{len(self._readers)} answers are being written already", RETRY_S)
            self._watcher.require()
            self._readers[number] = reader
            self._watcher.send(Think(number, tuple(messages), options))
        try:
            while True:
                part = await reader.get()
                yield part
                if isinstance(part, ThinkerEnd):
                    return
        finally:
            with self._gate:
                if self._readers.pop(number, None) is not None:
                    self._watcher.send(Forget(number))

    # ---- watching thread: see Owner ---------------------------------------------------------------------------

    def on_report(self, report: SignOfLife) -> None:
        assert isinstance(report, Thoughts)
        for number, part in report.parts:
            reader = self._readers.get(number)
            if reader is None:  # its reader has left
                continue
            if isinstance(part, EngineError | ThinkerEnd):
                self._readers.pop(number, None)
            reader.put(part)

    def on_answer(self, answer: Answer) -> None:
        raise AssertionError("a thinker is asked nothing")

    def on_loading(self, now_s: float) -> None:
        pass

    def on_loaded(self, loaded: Ready) -> None:
        pass

    def last_needed_s(self) -> float:
        raise AssertionError("a thinker is never unloaded")

    def on_gone(self, error: EngineError) -> None:
        assert self._gate.locked()
        lost = list(self._readers.values())
        self._readers.clear()
        for reader in lost:
            reader.put(error)
