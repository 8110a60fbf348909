"""Outputs for speech: loudspeakers, standard output or a file. They take 16-bit PCM, or an encoded file's bytes."""

import importlib
import queue
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from vivavoce_client.protocol import SAMPLE_BYTES, SAMPLE_RATE, VivavoceError

STANDARD = "-"
SOUND_MODULE = "sounddevice"
UNKNOWN_SIZE = 0xFFFFFFFF


class Output(Protocol):
    """An output, which takes speech piece by piece. `name` is for reports."""

    name: str

    def write(self, piece: bytes) -> None: ...

    def finish(self) -> None:
        """Ends the output after the last piece."""
        ...


class NoLoudspeaker(VivavoceError):
    """Playing is impossible: the package sounddevice or a device is missing."""


class Loudspeaker:
    """Plays on a thread of its own. Pieces are accepted at once, so reported times are the server's."""

    name = "loudspeaker"

    def __init__(self) -> None:
        self._stream = open_device()
        self._pieces: queue.Queue[bytes | None] = queue.Queue()
        self._half = b""
        self._player = threading.Thread(target=self._play, name="vivavoce-player", daemon=True)
        self._player.start()

    def write(self, piece: bytes) -> None:
        self._pieces.put(piece)

    def finish(self) -> None:
        """Waits until everything has been played."""
        self._pieces.put(None)
        self._player.join()
        self._stream.stop()
        self._stream.close()

    def _play(self) -> None:
        while (piece := self._pieces.get()) is not None:
            piece = self._half + piece
            whole = len(piece) - len(piece) % SAMPLE_BYTES
            self._half = piece[whole:]
            self._stream.write(piece[:whole])


def open_device() -> Any:  # noqa: ANN401 (sounddevice has no types)
    try:
        sounddevice = importlib.import_module(SOUND_MODULE)
    except (ImportError, OSError) as error:  # OSError: PortAudio, which sounddevice needs, is missing
        raise NoLoudspeaker(f"playing needs the package sounddevice: pip install sounddevice ({error})") from error
    try:
        stream = sounddevice.RawOutputStream(samplerate=SAMPLE_RATE, channels=1, dtype="int16", latency="low")
        stream.start()
    except sounddevice.PortAudioError as error:
        raise NoLoudspeaker(f"there is no sound device: {error}") from error
    return stream


class RawFile:
    """Writes the bytes as they arrive."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self._file = file

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._file.flush()

    def finish(self) -> None:
        pass


class WavFile(RawFile):
    """Writes PCM after a WAV header. A file gets its true sizes at the end. A pipe cannot, because it cannot seek."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        super().__init__(file, name)
        self._pcm_bytes = 0
        self._file.write(wav_header(None))

    def write(self, piece: bytes) -> None:
        super().write(piece)
        self._pcm_bytes += len(piece)

    def finish(self) -> None:
        if self._file.seekable():
            self._file.seek(0)
            self._file.write(wav_header(self._pcm_bytes))


def wav_header(pcm_bytes: int | None) -> bytes:
    """44-byte header of 16-bit mono samples. `pcm_bytes` is None if their number is unknown."""
    riff_bytes = UNKNOWN_SIZE if pcm_bytes is None else pcm_bytes + 36
    fmt = (b"fmt ", 16, 1, 1, SAMPLE_RATE, SAMPLE_RATE * SAMPLE_BYTES, SAMPLE_BYTES, 8 * SAMPLE_BYTES)
    data_bytes = UNKNOWN_SIZE if pcm_bytes is None else pcm_bytes
    return struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", riff_bytes, b"WAVE", *fmt, b"data", data_bytes)


@contextmanager
def open_output(path: str | None, audio_format: str) -> Iterator[Output]:
    """Opens loudspeakers for None, standard output for `-`, or a file. A file keeps what came of broken-off speech."""
    if path is None:
        loudspeaker = Loudspeaker()
        yield loudspeaker
        loudspeaker.finish()
        return
    kind = WavFile if audio_format == "wav" else RawFile
    if path == STANDARD:
        output = kind(sys.stdout.buffer, "standard output")
        yield output
        return
    with Path(path).open("wb") as file:
        output = kind(file, path)
        yield output
        output.finish()
