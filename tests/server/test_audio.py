"""Encoding of samples to files, without HTTP: every format, rate and speed, for audio in pieces of any length."""

import io
import threading
from collections.abc import AsyncIterator

import numpy as np
import pytest
import soundfile
from vivavoce_engine import SynthesisFailed
from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.containers import to_int16, wav_header
from vivavoce_server.effects import Samples, tempo_steps
from vivavoce_server.formats import FORMATS, FormatName

from tests.support.decoding import FRAME_SAMPLES, MODEL_RATE, OPUS_RATE, heard_by_ffmpeg, noise, streamed

TONE_HZ = 440.0

GOLDEN_HEADER = bytes.fromhex(
    "52494646 28000000 57415645 666d7420 10000000 0100 0100 c05d0000 80bb0000 0200 1000 64617461 04000000"
)


def test_wav_header_is_the_golden_one() -> None:
    assert wav_header(24000, 4) == GOLDEN_HEADER


def test_a_length_that_no_field_can_tell_is_left_open() -> None:
    most = 2**32 - 1 - 36
    assert wav_header(48000, most)[40:] == most.to_bytes(4, "little")
    assert wav_header(48000, most + 1) == wav_header(48000, None)


def test_int16_is_rounded_and_clipped() -> None:
    pcm = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 0.5 / 32767, 1.5 / 32767, -0.6 / 32767], np.float32)
    assert np.frombuffer(to_int16(pcm), "<i2").tolist() == [0, 32767, -32767, 32767, -32767, 0, 2, -1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_a_fault(value: float) -> None:
    with pytest.raises(SynthesisFailed, match="not a number"):
        to_int16(np.array([0.0, value], np.float32))


def tone(sample_rate: int, seconds: float = 2.0) -> Samples:
    times_s = np.arange(int(sample_rate * seconds)) / sample_rate
    return (0.5 * np.sin(2 * np.pi * TONE_HZ * times_s)).astype(np.float32)


def encoded(options: AudioOptions, pcm: Samples, piece_samples: int) -> tuple[SpeechEncoder, list[bytes]]:
    encoder = SpeechEncoder(options, MODEL_RATE)
    pieces = [encoder.feed(pcm[at : at + piece_samples]) for at in range(0, len(pcm), piece_samples)]
    return encoder, [*pieces, encoder.flush()]


def worst_jump(pcm: Samples, sample_rate: int) -> float:
    """Largest second difference, over what a pure tone of this height and rate has at most: 1 where nothing jumps."""
    height = 0.5 * (2 * np.pi * TONE_HZ / sample_rate) ** 2
    return float(np.abs(np.diff(pcm, 2)).max() / height)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_decodes_to_the_same_sound(name: FormatName) -> None:
    options = AudioOptions(name)
    pcm = tone(MODEL_RATE)
    _, pieces = encoded(options, pcm, FRAME_SAMPLES)
    sound, rate = heard_by_ffmpeg(b"".join(pieces), options)
    assert rate == (OPUS_RATE if name == "opus" else options.rate_for(MODEL_RATE))
    middle = sound[rate // 4 : -rate // 4]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.06)  # LAME scales by 0.95
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert np.argmax(spectrum) * rate / len(middle) == pytest.approx(TONE_HZ, abs=1)
    # Everything beside the tone: clicks and gaps would stand out here.
    distance = np.abs(np.arange(len(spectrum)) * rate / len(middle) - TONE_HZ)
    assert spectrum[distance > 20].max() < 0.01 * spectrum.max()


@pytest.mark.parametrize("name", FORMATS)
def test_pieces_leave_the_encoder_while_more_are_fed(name: FormatName) -> None:
    _, pieces = encoded(AudioOptions(name), tone(MODEL_RATE), FRAME_SAMPLES)
    assert pieces[0] or pieces[1]
    assert all(pieces[2:-1])


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 3.0, 4.0])
def test_speed_changes_the_length_and_keeps_the_pitch(speed: float) -> None:
    options = AudioOptions("pcm", speed=speed)
    pcm = tone(MODEL_RATE, 4.0)
    _, pieces = encoded(options, pcm, FRAME_SAMPLES)
    sound, _ = heard_by_ffmpeg(b"".join(pieces), options)
    assert len(sound) == round(len(pcm) / speed)
    spectrum = np.abs(np.fft.rfft(sound * np.hanning(len(sound))))
    assert np.argmax(spectrum) * MODEL_RATE / len(sound) == pytest.approx(TONE_HZ, abs=1.5)
    assert worst_jump(sound[FRAME_SAMPLES:-FRAME_SAMPLES], MODEL_RATE) < 1.1


@pytest.mark.parametrize("speed", [0.25, 0.3, 0.9, 1.1, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("samples", [24, 480, FRAME_SAMPLES, 50_777])
def test_another_speed_loses_nothing_however_the_sound_is_cut(speed: float, samples: int) -> None:
    options, pcm = AudioOptions("pcm", speed=speed), noise(samples)
    bodies = {streamed(options, pcm, piece_samples)[0] for piece_samples in (FRAME_SAMPLES, 777, samples)}
    sound, _ = heard_by_ffmpeg(bodies.pop(), options)
    assert bodies == set()
    assert len(sound) == round(samples / speed)
    # The end is there. Noise loses loudness where atempo's windows overlap.
    if samples == 50_777:
        end = round(0.2 * MODEL_RATE / speed)
        loudness = [np.sqrt(np.mean(part**2)) for part in (sound[-end:], pcm[-round(0.2 * MODEL_RATE) :])]
        assert loudness[0] > 0.6 * loudness[1]


@pytest.mark.parametrize("sample_rate", [8000, 16000, 48000])
@pytest.mark.parametrize("speed", [1.0, 1.5])
def test_seams_are_nowhere(sample_rate: int, speed: float) -> None:
    options = AudioOptions("pcm", speed, sample_rate)
    pcm = tone(MODEL_RATE)
    wholes = {b"".join(encoded(options, pcm, size)[1]) for size in (FRAME_SAMPLES, 777, len(pcm))}
    assert len(wholes) == 1, "however it is cut, the sound is the same"
    sound, _ = heard_by_ffmpeg(wholes.pop(), options)
    assert worst_jump(sound[sample_rate // 10 : -sample_rate // 10], sample_rate) < 1.1


def completed(encoder: SpeechEncoder, body: bytes) -> bytes:
    head = encoder.complete(len(body))
    return head + body[len(head) :]


@pytest.mark.parametrize("name", ["wav", "flac"])
def test_a_complete_file_knows_its_length(name: FormatName) -> None:
    pcm = tone(MODEL_RATE)
    encoder, pieces = encoded(AudioOptions(name), pcm, FRAME_SAMPLES)
    samples, rate = soundfile.read(io.BytesIO(completed(encoder, b"".join(pieces))), dtype="int16")
    assert rate == MODEL_RATE
    np.testing.assert_array_equal(samples, to_int16(pcm))
    with soundfile.SoundFile(io.BytesIO(completed(encoder, b"".join(pieces)))) as file:
        assert (file.frames, file.seekable()) == (len(pcm), True)
        file.seek(len(pcm) // 2)
        np.testing.assert_array_equal(file.read(dtype="int16"), to_int16(pcm)[len(pcm) // 2 :])


def test_a_streamed_flac_says_that_its_length_is_unknown() -> None:
    pcm = tone(MODEL_RATE)
    encoder, pieces = encoded(AudioOptions("flac"), pcm, FRAME_SAMPLES)
    streamed = b"".join(pieces)
    whole = completed(encoder, streamed)
    total = slice(21, 26)  # the last 36 bits of these bytes
    assert int.from_bytes(streamed[total]) % 2**36 == 0
    assert int.from_bytes(whole[total]) % 2**36 == len(pcm)
    assert (streamed[: total.start], streamed[total.stop :]) == (whole[: total.start], whole[total.stop :])
    for file in (streamed, whole):
        sound, _ = heard_by_ffmpeg(file, AudioOptions("flac"))
        np.testing.assert_array_equal(np.rint(sound * 2**15), to_int16(pcm))
    with soundfile.SoundFile(
        io.BytesIO(streamed)
    ) as in_order:  # it seeks after each read, which the end would not allow
        np.testing.assert_array_equal(in_order.read(len(pcm) - 1, dtype="int16"), to_int16(pcm)[:-1])


@pytest.mark.parametrize("name", FORMATS)
def test_no_audio_is_still_a_file(name: FormatName) -> None:
    encoder = SpeechEncoder(AudioOptions(name, speed=2.0), MODEL_RATE)
    file = completed(encoder, encoder.flush())
    heads = {"wav": b"RIFF", "flac": b"fLaC", "opus": b"OggS", "mp3": b"\xff\xfb\x94\xc4"}
    assert file[:4] == heads.get(name, b""), "a header, in the formats that have one"


@pytest.mark.parametrize("speed", [0.25, 0.3, 0.5, 1.7, 2.0, 3.9, 4.0])
def test_tempo_steps_are_within_the_filters_range(speed: float) -> None:
    steps = tempo_steps(speed)
    assert np.prod(steps) == pytest.approx(speed)
    assert all(0.5 <= step <= 2 for step in steps)


async def cut(pcm: Samples, piece_samples: int) -> AsyncIterator[Samples]:
    for at in range(0, len(pcm), piece_samples):
        yield pcm[at : at + piece_samples]


@pytest.mark.parametrize("name", FORMATS)
async def test_pieces_are_the_file_and_tell_how_long_it_is(name: FormatName) -> None:
    options, pcm = AudioOptions(name, speed=2.0), tone(MODEL_RATE)
    pieces = [piece async for piece in SpeechEncoder(options, MODEL_RATE).pieces(cut(pcm, FRAME_SAMPLES))]
    file, expected = b"".join(piece.content for piece in pieces), b"".join(encoded(options, pcm, FRAME_SAMPLES)[1])
    np.testing.assert_array_equal(heard_by_ffmpeg(file, options)[0], heard_by_ffmpeg(expected, options)[0])
    assert all(piece.content for piece in pieces)
    assert sum(piece.audio_s for piece in pieces) == pytest.approx(len(pcm) / MODEL_RATE / 2)


@pytest.mark.parametrize(
    ("options", "on_loop"),
    [
        (AudioOptions("pcm"), True),
        (AudioOptions("wav"), True),
        (AudioOptions("flac"), True),
        (AudioOptions("pcm", speed=2.0), False),
        (AudioOptions("pcm", sample_rate=8000), False),
        (AudioOptions("mp3"), False),
        (AudioOptions("opus"), False),
        (AudioOptions("aac"), False),
    ],
)
async def test_what_takes_long_leaves_the_event_loop(
    options: AudioOptions, on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def work(*_: object) -> bytes:
        threads.append(threading.get_ident())
        return b"done"

    monkeypatch.setattr(SpeechEncoder, "feed", work)
    monkeypatch.setattr(SpeechEncoder, "flush", work)
    pieces = [piece async for piece in SpeechEncoder(options, MODEL_RATE).pieces(cut(tone(MODEL_RATE), 24000))]
    assert [piece.content for piece in pieces] == [b"done"] * 3
    assert [thread == threading.get_ident() for thread in threads] == [on_loop] * 3
