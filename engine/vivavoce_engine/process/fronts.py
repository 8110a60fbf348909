"""The worker's ends of its links: to the server that started it, and to the fronts that connect to its socket."""

import logging
import math
import selectors
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from vivavoce_engine.batching.line import LoopState, Waiting
from vivavoce_engine.batching.messages import StreamEvent
from vivavoce_engine.ipc.pipe import PatientPipe, Pipe
from vivavoce_engine.ipc.unix_socket import is_own_user
from vivavoce_engine.process.wire import Loaded, Report

log = logging.getLogger(__name__)

STALL_S = 15.0
"""A front that takes nothing of what it is sent for this long is cut off. It may come back."""
ACCEPT_AGAIN_S = 0.5
CHANGES_EVERY_S = 0.02
"""Shortest time between two reports to a front of changes that others have made."""


class RemoteListener:
    """Counts, for the loop, the frames sent to a stream in a front and the frames its reader has taken."""

    def __init__(self, utterance_id: int) -> None:
        self.utterance_id = utterance_id
        self.frames_read = 0
        self._frames_sent = 0

    @property
    def unread_frames(self) -> int:
        return self._frames_sent - self.frames_read

    def count_sent(self, frames: int) -> None:
        self._frames_sent += frames

    def read_to(self, frames: int) -> None:
        """Notes that the reader has taken this many frames since the beginning."""
        assert self.frames_read <= frames <= self._frames_sent
        self.frames_read = frames


class FrontListener(RemoteListener):
    """The listener of a front's utterance. The loop numbers those of all fronts; for its front this is `number`."""

    def __init__(self, utterance_id: int, front: "Front", number: int) -> None:
        super().__init__(utterance_id)
        self.front = front
        self.number = number
        self.waiting = Waiting("", 0.0)
        """The utterance as other fronts see it in the queue."""


class Front:
    """One of those that speak through a worker, with its utterances."""

    def __init__(self, pipe: Pipe, *, is_parent: bool = False, hears_changes: bool = True) -> None:
        self.pipe = pipe
        self.is_parent = is_parent
        self._hears_changes = hears_changes
        self.listeners: dict[int, FrontListener] = {}
        """Its utterances that have not ended, by its own numbers."""
        self.submitted = 0
        """Utterances that it has submitted so far."""
        self.report_due = False
        """True if it has sent a message since the last report."""
        self._left_queue = 0
        self._told = (0, 0, 0)
        self._told_s = -math.inf

    def send(self, message: object) -> None:
        """Sends a message, or drops it if the front has gone, as the next look at its messages tells.

        Raises:
            OSError: the server that started the worker has gone.
        """
        try:
            self.pipe.send(message)
        except OSError:
            if self.is_parent:
                raise

    def is_due(self, state: LoopState, listeners: Mapping[int, FrontListener], now_s: float) -> bool:
        """True if the front is to hear the state though nothing has happened to its utterances.

        It hears an answer to what it has sent, and that its own requests have left the queue, at once. Changes by
        others wait a while, infinite `now_s` apart: a report wakes the front.
        """
        if self.report_due or not self._hears_changes or _outline(state) == self._told:
            return self.report_due
        left_queue = self.submitted - sum(listeners[each].front is self for each in _ids(state))
        return left_queue != self._left_queue or now_s - self._told_s >= CHANGES_EVERY_S

    def report(
        self, state: LoopState, listeners: Mapping[int, FrontListener], events: tuple[tuple[int, StreamEvent], ...]
    ) -> None:
        """Sends the state as this front sees it, and the events of its utterances, each with its own number."""
        queue = [listeners[each] for each in _ids(state)]
        queued = tuple(each.number if each.front is self else each.waiting for each in queue)
        self._left_queue = self.submitted - sum(each.front is self for each in queue)
        self._told, self._told_s, self.report_due = _outline(state), time.monotonic(), False
        self.send(Report(replace(state, queued=queued, left_queue=self._left_queue), events))


def _outline(state: LoopState) -> tuple[int, int, int]:
    """Figures that differ if anything has happened that decides about the next request."""
    return state.running, state.left_queue, len(state.queued)


def _ids(state: LoopState) -> Iterator[int]:
    for each in state.queued:
        assert isinstance(each, int), "the loop itself has one front"
        yield each


class Fronts:
    """All fronts of a worker. One thread takes their messages; any thread may send to one of them."""

    def __init__(self, parent: Pipe, listener: socket.socket | None, greeting: Loaded) -> None:
        self._listener = listener
        self._greeting = greeting
        self._parent = Front(parent, is_parent=True, hears_changes=listener is None)
        self._all = {parent.fileno(): self._parent}
        self._selector = selectors.DefaultSelector()
        self._selector.register(parent, selectors.EVENT_READ, self._parent)
        self._refused_s: float | None = None
        """Time at which the system refused a front, for which it is not asked until ACCEPT_AGAIN_S later."""
        if listener is not None:
            listener.setblocking(False)
        self._listen()

    def __iter__(self) -> Iterator[Front]:
        return iter(list(self._all.values()))

    def wait(self, timeout_s: float | None) -> None:
        """Returns when a message, a front, or the end of one arrives, or after the time. None waits without limit."""
        self._selector.select(timeout_s)

    def messages(self) -> Iterator[tuple[Front, object | None]]:
        """Yields the messages that have arrived, each with its front, and None for a front that has gone.

        Raises:
            EOFError: the server that started the worker has gone.
        """
        if self._refused_s is not None and time.monotonic() - self._refused_s > ACCEPT_AGAIN_S:
            self._listen()
        for key, _ in self._selector.select(0):
            if key.data is None:
                assert isinstance(key.fileobj, socket.socket)
                self._accept(key.fileobj)
            else:
                yield from self._messages_of(key.data)

    def close(self) -> None:
        """Ends the links to all fronts, but not that to the server that started the worker."""
        self._selector.close()
        for front in self:
            if not front.is_parent:
                front.pipe.close()
        if self._listener is not None:
            self._listener.close()

    def _messages_of(self, front: Front) -> Iterator[tuple[Front, object | None]]:
        while True:
            try:
                message = front.pipe.take()
            except (EOFError, ConnectionError):
                if front.is_parent:
                    raise
                self._drop(front)
                yield front, None
                return
            if message is None:
                return
            yield front, message

    def _listen(self) -> None:
        self._refused_s = None
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ, None)

    def _accept(self, listener: socket.socket) -> None:
        try:
            end, _ = listener.accept()
        except OSError as error:  # no descriptor is free, for example: the engine goes on all the same
            log.warning("a front could not be accepted: %s", error)
            self._selector.unregister(listener)
            self._refused_s = time.monotonic()
            return
        if not is_own_user(end):
            end.close()
            return
        front = Front(PatientPipe(end, STALL_S))
        self._all[end.fileno()] = front
        self._selector.register(end.fileno(), selectors.EVENT_READ, front)
        front.send(self._greeting)

    def _drop(self, front: Front) -> None:
        del self._all[front.pipe.fileno()]
        self._selector.unregister(front.pipe.fileno())
        front.pipe.close()
