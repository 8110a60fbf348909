"""Sounds and pictures of conversations: what is read of a file, and what is refused, in the process for recordings."""

import io
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from vivavoce_engine import SOUND_RATE, ReadPicture, ReadSound, ReferenceReader, Rejected
from vivavoce_engine.voices import media
from vivavoce_engine.voices.media import read_picture, read_sound

from tests.support.recordings import voice_like, wav

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)


def file_of(pixels: NDArray[np.uint8], kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def reader() -> Iterator[ReferenceReader]:
    running = ReferenceReader()
    yield running
    running.close()


def test_a_sound_keeps_its_length_its_level_and_its_silence(reader: ReferenceReader) -> None:
    silence = np.zeros(24000, np.float32)
    samples = np.concatenate([silence, voice_like(0, 1.0), silence])
    heard = reader.decode(ReadSound(wav(samples)))
    assert heard.dtype == np.float32
    assert len(heard) == pytest.approx(len(samples) * SOUND_RATE / 24000, abs=2)
    assert np.abs(heard[: SOUND_RATE // 2]).max() < 1e-3
    loudness = [float(np.sqrt(np.mean(np.square(each)))) for each in (samples, heard)]
    assert loudness[1] == pytest.approx(loudness[0], rel=0.05)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no", "the sound is no audio file that can be read"),
        (wav(voice_like(0, 0.05)), "has 0.05 s; at least 0.1 s are needed"),
        (bytes(10 * 2**20 + 1), "the sound is larger than 10 MiB"),
    ],
)
def test_sounds_that_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(Rejected, match=message):
        read_sound(data)


def test_a_sound_may_be_longer_than_a_recording_of_a_voice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read_sound(wav(voice_like(0, 40.0)))) == pytest.approx(40 * SOUND_RATE, abs=2)
    monkeypatch.setattr(media, "MAX_SOUND_S", 2.0)
    with pytest.raises(Rejected, match="the sound is longer than 2 s"):
        read_sound(wav(voice_like(0, 2.5)))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "JPEG"])
def test_pictures_of_every_format(reader: ReferenceReader, kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    seen = reader.decode(ReadPicture(file_of(PIXELS, kind, **options)))
    assert seen.shape == PIXELS.shape
    assert seen.dtype == np.uint8
    if kind in ("PNG", "WEBP"):
        assert np.array_equal(seen, PIXELS)


def test_a_picture_is_upright_and_on_white() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by a quarter
    assert read_picture(file_of(PIXELS, "JPEG", exif=turned)).shape == (30, 40, 3)
    clear = np.zeros((4, 4, 4), np.uint8)
    assert read_picture(file_of(clear)).min() == 255


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no", "cannot be read"),
        (file_of(PIXELS)[:-40], "cannot be read"),
        (file_of(PIXELS, "BMP"), "cannot be read"),
        (file_of(np.zeros((1, 101, 3), np.uint8)), "differ too much"),
        (file_of(np.zeros((4097, 4096, 3), np.uint8)), "the most is 16777216"),
    ],
)
def test_pictures_that_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(Rejected, match=message) as refused:
        read_picture(data)
    assert refused.value.param == "picture"


def test_a_picture_that_lies_about_its_size_costs_nothing(reader: ReferenceReader) -> None:
    """A small file that announces 4096 x 4096 pixels and has none."""
    data = bytearray(file_of(PIXELS))
    data[16:24] = (4096).to_bytes(4, "big") * 2
    with pytest.raises(Rejected):
        reader.decode(ReadPicture(bytes(data)))
    assert np.array_equal(reader.decode(ReadPicture(file_of(PIXELS))), PIXELS)
