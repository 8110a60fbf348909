"""What came of one request, with the time of everything. Times are the event loop's clock."""

import asyncio

from vivavoce_client.protocol import SAMPLE_BYTES


class Incomplete(Exception):
    """Not all of the speech came, or what came is no speech; says why."""


class Reception:
    """Written by a transport while it speaks to a server, then read once by metrics.py.

    `sent_s` is time zero: the first byte of the body (HTTP), or the first text (WebSocket).
    """

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self.started_s = self._now()
        self.sent_s: float | None = None
        self.last_text_s: float | None = None
        """When the last text was sent; WebSocket only."""
        self.first_byte_s: float | None = None
        self.ended_s: float | None = None
        self.pieces: list[tuple[float, bytes]] = []

    def mark_sent(self) -> None:
        """Time zero is now, unless it has been."""
        if self.sent_s is None:
            self.sent_s = self._now()

    def mark_text(self) -> None:
        """A text is about to be sent."""
        self.mark_sent()
        self.last_text_s = self._now()

    def mark_byte(self) -> None:
        """A byte of the answer's body is here."""
        if self.first_byte_s is None:
            self.first_byte_s = self._now()

    def add(self, pcm: bytes) -> None:
        """Audio is here."""
        self.mark_byte()
        self.pieces.append((self._now(), pcm))

    def end(self) -> None:
        """The server has said that this was all.

        Raises:
            Incomplete: it was not audio of whole samples.
        """
        self.ended_s = self._now()
        size = sum(len(pcm) for _, pcm in self.pieces)
        if not size:
            raise Incomplete("no audio came")
        if size % SAMPLE_BYTES:
            raise Incomplete("the audio ends within a sample")

    @property
    def pcm(self) -> bytes:
        return b"".join(pcm for _, pcm in self.pieces)

    def arrivals(self) -> list[tuple[float, int]]:
        """(time, whole samples) of each piece; a sample that is cut belongs to the piece that completes it."""
        arrivals = []
        received = samples = 0
        for at_s, pcm in self.pieces:
            received += len(pcm)
            arrivals.append((at_s, received // SAMPLE_BYTES - samples))
            samples = received // SAMPLE_BYTES
        return arrivals
