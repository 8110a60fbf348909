"""The length of every file, and the place of the speech in it, are those of the samples that it was made of."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.containers import AacEncoder
from vivavoce_server.effects import Samples
from vivavoce_server.formats import FormatName
from vivavoce_server.mp3_info import MPEG1_KBITS, MPEG2_KBITS, InfoFrame, crc16

from tests.support.decoding import (
    FILES,
    FRAME_SAMPLES,
    MODEL_RATE,
    OPUS_RATE,
    RATES,
    READ_BY_SOUNDFILE,
    heard_by_ffmpeg,
    heard_by_soundfile,
    lag,
    noise,
    streamed,
    whole,
)

KEPT_SAMPLES = 480
"""The silence that is left before speech."""
SOUNDS = {
    "speech": noise(50_777, KEPT_SAMPLES),
    "a frame": noise(FRAME_SAMPLES),
    "no silence before it": noise(20_001),
    "short": noise(700),
    "silence": np.zeros(2 * FRAME_SAMPLES, np.float32),
}
EXACT = [(name, rate) for name, rate in FILES if name != "aac"]
EXACT_STREAMS = [(name, rate) for name, rate in EXACT if name != "mp3"]
MP3_DELAY_SAMPLES = 1105
"""Samples before the speech for decoders that do not know the Info frame."""


def made(options: AudioOptions, pcm: Samples, rate: int | None = None) -> Samples:
    """The samples themselves, after speed and rate (Hz), which is the file's unless another one is given."""
    body, _ = streamed(replace(options, format="pcm", sample_rate=rate or options.rate_for(MODEL_RATE)), pcm)
    return np.frombuffer(body, "<i2").astype(np.float32) / np.float32(2**15)


def assert_same(heard: Samples, rate: int, options: AudioOptions, pcm: Samples) -> None:
    """The sound is as long as its samples, and none of it comes late."""
    assert rate in (options.rate_for(MODEL_RATE), OPUS_RATE)
    assert len(heard) * options.rate_for(MODEL_RATE) == len(made(options, pcm)) * rate
    assert not pcm.any() or lag(heard, made(options, pcm, rate)) == 0


@pytest.mark.parametrize("speed", [1.0, 1.5])
@pytest.mark.parametrize(("name", "sample_rate"), EXACT)
def test_a_whole_file_has_the_length_of_its_samples(name: FormatName, sample_rate: int, speed: float) -> None:
    options = AudioOptions(name, speed, sample_rate)
    for pcm in SOUNDS.values():
        file = whole(options, pcm)
        assert_same(*heard_by_ffmpeg(file, options), options, pcm)
        if name in READ_BY_SOUNDFILE:
            assert_same(*heard_by_soundfile(file), options, pcm)


@pytest.mark.parametrize(("name", "sample_rate"), EXACT_STREAMS)
def test_a_stream_of_these_has_the_length_of_its_samples(name: FormatName, sample_rate: int) -> None:
    options, pcm = AudioOptions(name, sample_rate=sample_rate), SOUNDS["speech"]
    assert_same(*heard_by_ffmpeg(streamed(options, pcm)[0], options), options, pcm)


@pytest.mark.parametrize("sample_rate", RATES)
def test_a_streamed_mp3_begins_with_its_first_sample(sample_rate: int) -> None:
    options, pcm = AudioOptions("mp3", sample_rate=sample_rate), SOUNDS["no silence before it"]
    heard, _ = heard_by_ffmpeg(streamed(options, pcm)[0], options)
    expected = made(options, pcm)
    assert lag(heard, expected) == 0
    assert 0 <= len(heard) - len(expected) < (1152 if sample_rate == 48000 else 576)


def test_a_stream_and_a_whole_mp3_differ_in_the_info_frame_alone() -> None:
    options, pcm = AudioOptions("mp3"), SOUNDS["speech"]
    body, file = streamed(options, pcm)[0], whole(options, pcm)
    head = len(InfoFrame(48000, 128_000).open())
    assert body[:head] != file[:head]
    assert body[head:] == file[head:]
    for content in (body, file):
        assert content.find(b"Info") == 4 + 17
        assert content.count(b"Info") == 1
        assert b"Xing" not in content
        assert b"ID3" not in content
    assert lag(heard_by_soundfile(body)[0], made(options, pcm)) == MP3_DELAY_SAMPLES


@pytest.mark.parametrize("bit_rate", [None, 32_000])
def test_a_file_of_several_utterances_has_one_info_frame(bit_rate: int | None) -> None:
    options = AudioOptions("mp3", sample_rate=44100, bit_rate=bit_rate)
    shared = options.new_shared_encoder(MODEL_RATE)
    body = b""
    for pcm in (SOUNDS["speech"], SOUNDS["short"], SOUNDS["a frame"]):
        encoder = SpeechEncoder(options, MODEL_RATE, shared)
        body += encoder.feed(pcm) + encoder.flush()
    assert (body.find(b"Info"), body.count(b"Info")) == (4 + 17, 1)
    heard, rate = heard_by_ffmpeg(body, options)
    expected = made(options, SOUNDS["speech"], rate)
    assert lag(heard[: len(expected)], expected) == 0


@pytest.mark.parametrize("sample_rate", RATES)
@pytest.mark.parametrize("kind", ["silence of a frame of AAC", "no silence before it"])
def test_aac_begins_with_the_speech_where_that_begins_in_silence(kind: str, sample_rate: int) -> None:
    options = AudioOptions("aac", sample_rate=sample_rate)
    silent = -(-AacEncoder.frame_samples * MODEL_RATE // sample_rate) + 48
    pcm = noise(50_777, silent) if kind == "silence of a frame of AAC" else SOUNDS[kind]
    heard, _ = heard_by_ffmpeg(streamed(options, pcm)[0], options)
    expected = made(options, pcm)
    delay = 0 if kind == "silence of a frame of AAC" else AacEncoder.frame_samples
    assert lag(heard, expected) == delay
    assert 0 <= len(heard) - delay - len(expected) < AacEncoder.frame_samples
    assert whole(options, pcm) == streamed(options, pcm, 777)[0]


def test_aac_at_its_own_rate_begins_with_the_speech() -> None:
    options, pcm = AudioOptions("aac"), SOUNDS["speech"]
    heard, rate = heard_by_ffmpeg(whole(options, pcm), options)
    expected = made(options, pcm, rate)
    assert (rate, lag(heard, expected)) == (48000, 0)
    # Nothing is missing where the frame was left out.
    begun = slice(0, rate // 10)
    difference = np.sqrt(np.mean((heard[begun] - expected[begun]) ** 2) / np.mean(expected[begun] ** 2))
    assert difference < 0.1


# ---- the Info frame


def test_the_checksum_is_the_usual_crc16() -> None:
    assert crc16(b"123456789") == 0xBB3D


@pytest.mark.parametrize(
    ("sample_rate", "bit_rate", "size"),
    [(48000, 128_000, 384), (44100, 192_000, 626), (44100, 32_000, 182), (22050, 32_000, 182), (8000, 64_000, 576)],
)
def test_the_info_frame_has_the_files_bit_rate_or_the_next_with_room(
    sample_rate: int, bit_rate: int, size: int
) -> None:
    frame = InfoFrame(sample_rate, bit_rate)
    assert len(frame.open()) == len(frame.complete(10, 5000, 9000)) == size


def test_the_info_frame_tells_delay_padding_and_length() -> None:
    frame = InfoFrame(24000, 128_000).complete(100, 38_784, 100 * 576 - 576 - 700)
    named = frame.index(b"Info")
    assert struct.unpack(">III", frame[named + 4 : named + 16]) == (0xF, 100, 38_784)
    extension = frame[named + 120 :][:36]
    assert extension[:9] == b"LAME3.100"
    assert int.from_bytes(extension[21:24]) == 576 << 12 | 700
    told = named + 120 + 34
    assert int.from_bytes(frame[told : told + 2]) == crc16(frame[:told])
    assert frame[told + 2 :] == bytes(len(frame) - told - 2)


def test_no_mp3_has_a_bit_rate_above_those_of_its_version() -> None:
    for sample_rate, rates in ((44100, MPEG1_KBITS), (22050, MPEG2_KBITS)):
        assert InfoFrame(sample_rate, rates[-1] * 1000).open()
        with pytest.raises(ValueError, match="no bit rate"):
            InfoFrame(sample_rate, rates[-1] * 1000 + 1).open()
