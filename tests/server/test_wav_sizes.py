"""Readers and the sizes of a WAV whose length is not known: the table of docs/audio_formats.md.

A streamed WAV has 0xFFFFFFFF in both fields. The tests say why: no other value serves more of these readers.
"""

import io
import struct
import warnings
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from scipy.io import wavfile  # type: ignore[import-untyped]
from vivavoce_server.audio import AudioOptions
from vivavoce_server.formats import FORMATS, FormatName

from tests.support.decoding import MODEL_RATE, lag, noise, streamed, whole
from tests.support.programs import needs
from tests.support.served_files import read_by_chromium

SOUND = noise(MODEL_RATE, 480)
STREAM, _ = streamed(AudioOptions("wav"), SOUND)
EXACT = whole(AudioOptions("wav"), SOUND)


def patched(riff_bytes: int, data_bytes: int) -> bytes:
    return STREAM[:4] + struct.pack("<I", riff_bytes) + STREAM[8:40] + struct.pack("<I", data_bytes) + STREAM[44:]


FILES = {
    "0xFFFFFFFF": patched(0xFFFFFFFF, 0xFFFFFFFF),
    "0x7FFFFFFF": patched(0x7FFFFFFF, 0x7FFFFFFF),
    "SoX's 0x7FFFF000": patched(0x7FFFF024, 0x7FFFF000),
    "0": patched(0, 0),
    "exact": EXACT,
}
OPEN_HOURS = {"0xFFFFFFFF": 24.86, "0x7FFFFFFF": 12.43, "SoX's 0x7FFFF000": 12.43}


def read_by_wave(file: bytes) -> tuple[float, int]:
    """The hours that the header promises, and the samples that are read."""
    with wave.open(io.BytesIO(file)) as reader:
        promised = reader.getnframes()
        return promised / MODEL_RATE / 3600, len(reader.readframes(promised)) // 2


def read_by_scipy(file: bytes) -> tuple[int, list[str]]:
    """The samples that are read, and the warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _, samples = wavfile.read(io.BytesIO(file))
    return len(samples), [str(warning.message) for warning in told]


def read_by_ffmpeg(file: bytes) -> tuple[float, int]:
    """The seconds that are stated, and the samples that are read."""
    with av.open(io.BytesIO(file), "r") as container:
        samples = sum(frame.samples for frame in container.decode(audio=0))
        assert container.duration is not None
        return container.duration / 1e6, samples


def test_a_stream_has_the_largest_sizes() -> None:
    assert FILES["0xFFFFFFFF"] == STREAM


@pytest.mark.parametrize("size", OPEN_HOURS)
def test_every_large_size_is_read_to_the_end(size: str) -> None:
    file = FILES[size]
    hours, samples = read_by_wave(file)
    assert (round(hours, 2), samples) == (OPEN_HOURS[size], MODEL_RATE)
    samples, told = read_by_scipy(file)
    assert samples == MODEL_RATE
    assert "Reached EOF prematurely" in told[0]
    with soundfile.SoundFile(io.BytesIO(file)) as reader:
        assert (reader.frames, len(reader.read())) == (MODEL_RATE, MODEL_RATE)
    assert read_by_ffmpeg(file) == (1.0, MODEL_RATE)


def test_a_size_of_0_is_no_file_or_no_sound() -> None:
    with pytest.raises(wave.Error, match="not a WAVE file"):
        read_by_wave(FILES["0"])
    with pytest.raises(wave.Error, match="not a WAVE file"):
        read_by_wave(patched(0, 0xFFFFFFFF))
    assert read_by_wave(patched(0xFFFFFFFF, 0)) == (0.0, 0)
    with pytest.raises(UnboundLocalError):
        read_by_scipy(FILES["0"])
    assert read_by_scipy(patched(0xFFFFFFFF, 0))[0] == 0
    for file in (FILES["0"], patched(0xFFFFFFFF, 0)):
        assert soundfile.read(io.BytesIO(file))[0].shape == (0,)
    assert read_by_ffmpeg(FILES["0"]) == (1.0, MODEL_RATE)


def test_a_whole_file_is_read_by_all_without_a_word() -> None:
    assert read_by_wave(EXACT) == (1 / 3600, MODEL_RATE)
    assert read_by_scipy(EXACT) == (MODEL_RATE, [])
    assert read_by_ffmpeg(EXACT) == (1.0, MODEL_RATE)


# ---- a browser

FORMATS_IN_BROWSERS: tuple[FormatName, ...] = ("mp3", "aac", "flac", "opus")
MARGIN_S = 0.1
"""The last buffers of a player, and the delay and padding of streams."""


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, Any]]:
    """Chromium reads each WAV, and the other formats as streams and as whole files."""
    files = {f"{number}.wav": ("audio/wav", file) for number, file in enumerate(FILES.values())}
    for name in FORMATS_IN_BROWSERS:
        options = AudioOptions(name)
        files[f"stream.{name}"] = (FORMATS[name].media_type, streamed(options, SOUND)[0])
        files[f"whole.{name}"] = (FORMATS[name].media_type, whole(options, SOUND))
    return read_by_chromium(files)


needs_browser = needs("chromium", "node", "tests/web/node_modules")


@needs_browser
def test_chromium_reads_a_wav_of_every_size(seen: dict[str, dict[str, Any]]) -> None:
    for number in range(len(FILES)):
        result = seen[f"{number}.wav"]
        assert len(result["decoded"]) == MODEL_RATE
        assert lag(np.array(result["decoded"], np.float32), SOUND) == 0
        assert (result["played"], result["until"]) == ("ended", pytest.approx(1.0, abs=MARGIN_S))


@needs_browser
@pytest.mark.parametrize("name", FORMATS_IN_BROWSERS)
def test_chromium_hears_no_delay(seen: dict[str, dict[str, Any]], name: FormatName) -> None:
    for kind in ("stream", "whole"):
        result = seen[f"{kind}.{name}"]
        decoded = np.array(result["decoded"], np.float32)
        assert lag(decoded, SOUND) == 0
        assert 0 <= len(decoded) - len(SOUND) < (1 if kind == "whole" and name != "aac" else 576)
        assert (result["played"], result["until"]) == ("ended", pytest.approx(1.0, abs=MARGIN_S))


def test_the_page_of_formats_has_a_row_for_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs/audio_formats.md").read_text(encoding="utf-8")
    for name, audio in FORMATS.items():
        assert f"| {name} | `{audio.media_type}` |" in page
