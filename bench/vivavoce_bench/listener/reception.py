"""The answer to one request, with the arrival time of each piece. Times come from the event loop's clock."""

import asyncio

from vivavoce_client.protocol import SAMPLE_BYTES


class Incomplete(Exception):
    """The speech is incomplete, or the answer is not speech. The message says why."""


class Reception:
    """Record of one answer. A transport writes it during the request, and metrics.py reads it once afterwards.

    `sent_s` is time zero: the moment of the first byte of the body (HTTP) or of the first text (WebSocket).
    """

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self.started_s = self._now()
        self.sent_s: float | None = None
        self.last_text_s: float | None = None
        """Time at which the last text was sent. WebSocket only."""
        self.first_byte_s: float | None = None
        self.ended_s: float | None = None
        self.pieces: list[tuple[float, bytes]] = []

    def mark_sent(self) -> None:
        """Sets time zero to now, unless it is set already."""
        if self.sent_s is None:
            self.sent_s = self._now()

    def mark_text(self) -> None:
        """Notes that a text is about to be sent."""
        self.mark_sent()
        self.last_text_s = self._now()

    def mark_byte(self) -> None:
        """Notes that a byte of the answer's body has arrived."""
        if self.first_byte_s is None:
            self.first_byte_s = self._now()

    def add(self, pcm: bytes) -> None:
        """Adds a piece of audio that has arrived."""
        self.mark_byte()
        self.pieces.append((self._now(), pcm))

    def end(self) -> None:
        """Ends the record: the server has said that the answer is complete.

        Raises:
            Incomplete: no audio arrived, or it ends within a sample.
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
        """(time in s, whole samples) of each piece. A sample cut in two counts for the piece that completes it."""
        arrivals = []
        received = samples = 0
        for at_s, pcm in self.pieces:
            received += len(pcm)
            arrivals.append((at_s, received // SAMPLE_BYTES - samples))
            samples = received // SAMPLE_BYTES
        return arrivals
