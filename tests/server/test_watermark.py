"""The watermark in the samples: streams of any cut, files of any format, and what is missing."""

import io
import pickle
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import httpx
import numpy as np
import pytest
from vivavoce_engine import SynthesisFailed
from vivavoce_server import ServerConfig, perth
from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.config import MarkChoice
from vivavoce_server.effects import Samples
from vivavoce_server.formats import FormatName
from vivavoce_server.marks import AudioMark, open_marker
from vivavoce_server.perth import BLOCK_FRAMES, HOP_MS, WINDOW_MS, load_perth
from vivavoce_server.watermarked_files import find
from vivavoce_server.watermarks import NoWatermarker

from tests.support.live_server import live_server

RATE = 24000
FOUND = 0.9


def voiced(seconds: float = 2.5, seed: int = 0, rate: int = RATE) -> Samples:
    """Harmonics of a changing pitch, in syllables."""
    random = np.random.default_rng(seed)
    time_s = np.arange(int(seconds * rate)) / rate
    pitch_hz = 120 + 30 * np.sin(2 * np.pi * 0.7 * time_s) + 10 * np.sin(2 * np.pi * 3 * time_s)
    phase = 2 * np.pi * np.cumsum(pitch_hz) / rate
    hum = sum(np.sin(k * phase + random.random()) / k**1.2 for k in range(1, 30))
    syllables = (0.5 + 0.5 * np.sin(2 * np.pi * 4 * time_s)) ** 2
    return np.asarray(0.1 * hum * syllables + 0.001 * random.standard_normal(len(time_s)), np.float32)


def marked(pcm: Samples, piece_samples: int, rate: int = RATE) -> Samples:
    stream = load_perth().stream(rate)
    pieces = [stream.feed(pcm[at : at + piece_samples]) for at in range(0, len(pcm), piece_samples)]
    return np.concatenate([*pieces, stream.flush()])


def test_a_stream_is_the_same_for_any_cuts() -> None:
    pcm = voiced()
    expected = marked(pcm, len(pcm))
    for piece_samples in (1920, 777, 5000):
        assert np.array_equal(marked(pcm, piece_samples), expected)


@pytest.mark.parametrize("samples", [0, 1, 239, 240, 1535, 1536, 1920, 30_001])
def test_as_many_samples_leave_as_enter(samples: int) -> None:
    pcm = voiced()[:samples]
    assert len(marked(pcm, 500)) == samples


def test_little_waits_for_later_samples() -> None:
    stream = load_perth().stream(RATE)
    fed = left = 0
    for _ in range(100):
        left += len(stream.feed(voiced(0.08)))
        fed += RATE * 8 // 100
        assert 0 <= fed - left < (WINDOW_MS + BLOCK_FRAMES * HOP_MS) * RATE / 1000


def test_streams_do_not_know_each_other() -> None:
    one, other = voiced(seed=1), voiced(seed=2)
    streams = [load_perth().stream(RATE) for _ in range(2)]
    made = [
        [stream.feed(pcm[at : at + 1920]) for stream, pcm in zip(streams, (one, other), strict=True)]
        for at in range(0, len(one), 1920)
    ]
    ends = [stream.flush() for stream in streams]
    for number, pcm in enumerate((one, other)):
        assert np.array_equal(np.concatenate([*(row[number] for row in made), ends[number]]), marked(pcm, len(pcm)))


@pytest.mark.parametrize("rate", [8000, 16000, 24000, 48000])
def test_the_mark_is_found_at_any_rate_and_nowhere_else(rate: int) -> None:
    pcm = voiced(rate=rate)
    watermarker = load_perth()
    assert watermarker.confidence(marked(pcm, 4000, rate), rate) > FOUND
    assert watermarker.confidence(pcm, rate) < 0.5


@pytest.mark.parametrize("pcm", [np.zeros(size, np.float32) for size in (RATE, 100, 0)])
def test_silence_is_neither_marked_nor_changed(pcm: Samples) -> None:
    assert load_perth().confidence(pcm, RATE) == 0.0
    assert np.array_equal(marked(pcm, 1000), pcm)


def test_the_change_is_small_and_below_2_khz() -> None:
    pcm = voiced()
    change = marked(pcm, len(pcm)) - pcm
    assert 0 < np.square(change).sum() < np.square(pcm).sum() / 10
    spectrum = np.square(np.abs(np.fft.rfft(change * np.hanning(len(change)))))
    above = spectrum[int(2100 * len(change) / RATE) :].sum()
    assert above < 1e-3 * spectrum.sum()


def test_samples_that_are_no_numbers_are_still_a_fault() -> None:
    pcm = voiced(0.5)
    pcm[5000] = np.nan
    encoder = SpeechEncoder(AudioOptions("pcm", mark=AudioMark("s", "m", "v", load_perth())), RATE)
    with pytest.raises(SynthesisFailed, match="not a number"):
        encoder.feed(pcm)


@pytest.mark.parametrize(
    ("name", "rate", "bit_rate"),
    [("mp3", 24000, 64_000), ("opus", 48000, 32_000), ("wav", 8000, None), ("flac", 16000, None)],
)
def test_files_keep_the_mark(name: FormatName, rate: int, bit_rate: int | None, tmp_path: Path) -> None:
    found = {}
    for mark in (AudioMark("s", "m", "v", load_perth()), None):
        encoder = SpeechEncoder(AudioOptions(name, sample_rate=rate, bit_rate=bit_rate, mark=mark), RATE)
        file = tmp_path / f"file.{name}"
        file.write_bytes(encoder.feed(voiced()) + encoder.flush())
        method, found[mark is not None] = find(str(file))
        assert method == "perth"
    assert found[True] > FOUND
    assert found[False] < 0.5


def test_a_watermark_takes_its_time_into_account() -> None:
    mark = AudioMark("s", "m", "v", load_perth())
    encoder = SpeechEncoder(AudioOptions("pcm", mark=mark), RATE)
    pcm = voiced()
    left = len(encoder.feed(pcm)) / 2 / RATE
    assert 0 < len(pcm) / RATE - left <= AudioOptions("pcm", mark=mark).held_s(RATE)
    assert AudioOptions("pcm", mark=AudioMark("s", "m", "v")).held_s(RATE) == 0.0


@pytest.mark.parametrize("content", [b"", b"no audio at all", b"RIFF\xff\xff\xff\xffWAVE"])
def test_files_without_audio_are_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="no audio that can be decoded"):
        find(str(file))


def test_a_server_marks_the_samples_of_raw_formats_too() -> None:
    asked = {"input": "Marked.", "voice": "heart", "seed": 1, "response_format": "pcm"}
    answers = {}
    choices: tuple[MarkChoice, ...] = ("metadata", "on")
    for choice in choices:
        with live_server(config=ServerConfig(mark_audio=choice)) as running:
            for stream in (True, False):
                response = httpx.post(running.url + "/v1/audio/speech", json={**asked, "stream": stream})
                answers[choice, stream] = response.content
    assert answers["on", True] == answers["on", False]
    assert len(answers["on", True]) == len(answers["metadata", True]) > 0
    assert answers["on", True] != answers["metadata", True]


# ---- what is missing


def test_a_missing_package_is_told_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    load_perth.cache_clear()
    monkeypatch.setattr(perth, "distribution", missing)
    with pytest.raises(NoWatermarker) as error:
        open_marker("on")
    load_perth.cache_clear()
    assert str(error.value) == (
        "the watermark needs the package resemble-perth: pip install 'vivavoce-speech[watermark]'"
    )


def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    load_perth.cache_clear()
    monkeypatch.setattr(perth, "WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(NoWatermarker, match="not the expected ones"):
        load_perth()


def test_only_tensors_are_read_from_a_checkpoint() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"model": print}))
    with pytest.raises(pickle.UnpicklingError, match="no part of a tensor"):
        perth.read_tensors(buffer.getvalue())
