"""The answer to one request: the arrival time and length of each piece. Times come from the event loop's clock."""

import asyncio

from vivavoce_client.protocol import SAMPLE_BYTES

from vivavoce_bench.listener.onset import Onset


class Incomplete(Exception):
    """The speech is incomplete, or the answer is not speech. The message says why."""


class Reception:
    """Record of one answer. A transport writes it during the request, and metrics.py reads it once afterwards.

    `sent_s` is time zero: the moment of the first byte of the body (HTTP) or of the first text (WebSocket). The audio
    itself is not kept.
    """

    def __init__(self) -> None:
        self.now = asyncio.get_running_loop().time
        """The clock of all times here."""
        self.sent_s: float | None = None
        self.last_text_s: float | None = None
        """Time at which the last text was sent. WebSocket only."""
        self.first_byte_s: float | None = None
        self.ended_s: float | None = None
        self.arrivals: list[tuple[float, int]] = []
        """(time in s, whole samples) of each piece. A sample cut in two counts for the piece that completes it."""
        self._onset = Onset()
        self._bytes = 0

    @property
    def onset(self) -> int | None:
        """The first audible sample."""
        return self._onset.sample

    def mark_sent(self) -> None:
        """Sets time zero to now, unless it is set already."""
        if self.sent_s is None:
            self.sent_s = self.now()

    def mark_text(self) -> None:
        """Notes that a text is about to be sent."""
        self.mark_sent()
        self.last_text_s = self.now()

    def mark_byte(self) -> None:
        """Notes that a byte of the answer's body has arrived."""
        if self.first_byte_s is None:
            self.first_byte_s = self.now()

    def add(self, pcm: bytes) -> None:
        """Adds a piece of audio that has arrived."""
        self.mark_byte()
        whole = (self._bytes + len(pcm)) // SAMPLE_BYTES - self._bytes // SAMPLE_BYTES
        self.arrivals.append((self.now(), whole))
        self._bytes += len(pcm)
        self._onset.add(pcm)

    def end(self) -> None:
        """Ends the record: the server has said that the answer is complete.

        Raises:
            Incomplete: no audio arrived, or it ends within a sample.
        """
        self.ended_s = self.now()
        if not self._bytes:
            raise Incomplete("no audio came")
        if self._bytes % SAMPLE_BYTES:
            raise Incomplete("the audio ends within a sample")
