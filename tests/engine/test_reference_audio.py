"""Uploaded recordings: all common formats are read alike, and unusable ones are refused with a reason."""

import json
import struct
from collections.abc import Callable

import numpy as np
import pytest
from vivavoce_engine import Rejected
from vivavoce_engine.voices import reference_audio as module
from vivavoce_engine.voices.reference_audio import MAX_BYTES, read_reference, read_samples

from tests.support.recordings import Samples, encode, voice_like, wav
from tests.support.reference_audio import reference_audio

RATE = 24000
VOICE = voice_like(1, 2.0)
ENCODER_DELAY_S = 0.1
SILENCE = np.zeros(2 * RATE, np.float32)


def patched(file: bytes, offset: int, kind: str, value: int) -> bytes:
    """A file with one number of its header changed."""
    changed = bytearray(file)
    struct.pack_into(kind, changed, offset, value)
    return bytes(changed)


# ---- what is taken


@pytest.mark.parametrize(
    ("container", "codec"),
    [("wav", "pcm_s16le"), ("wav", "pcm_s24le"), ("wav", "pcm_f32le"), ("flac", "flac"), ("aiff", "pcm_s16be")],
)
def test_lossless_formats_give_the_same_samples(container: str, codec: str) -> None:
    samples, _ = reference_audio("short")
    assert np.array_equal(read_samples(encode(samples, container, codec)), samples)


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        ("mp3", "libmp3lame", 24000),
        ("ogg", "libopus", 48000),
        ("webm", "libopus", 48000),
        ("adts", "aac", 44100),
        ("mp4", "aac", 22050),
        ("wav", "pcm_mulaw", 8000),
    ],
)
def test_lossy_formats_sound_alike(container: str, codec: str, rate: int) -> None:
    """As long, as loud, and with the pitch in the same place."""
    samples = read_samples(encode(voice_like(1, 2.0, rate), container, codec, rate))
    assert samples.dtype == np.float32
    assert abs(len(samples) / RATE - 2.0) < ENCODER_DELAY_S
    assert abs(samples.std() / VOICE.std() - 1) < 0.1
    peaks = [np.abs(np.fft.rfft(x[: int(1.9 * RATE)])).argmax() for x in (samples, VOICE)]
    assert abs(peaks[0] - peaks[1]) <= 1


def test_eight_channels_are_taken() -> None:
    assert np.allclose(read_samples(wav(np.stack([VOICE] * 8))), read_samples(wav(VOICE)), atol=1e-6)


def test_channels_are_averaged() -> None:
    left, right = voice_like(1, 1.5), voice_like(2, 1.5)
    mono = read_samples(wav(np.stack([left, right])))
    expected = (read_samples(wav(left)) + read_samples(wav(right))) / 2
    assert np.allclose(mono, expected, atol=1e-7)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000, 96000, 192000])
def test_any_rate_becomes_24_khz(rate: int) -> None:
    samples = read_samples(wav(voice_like(1, 1.5, rate), rate))
    assert abs(len(samples) - 1.5 * RATE) <= 1
    assert np.isfinite(samples).all()


def test_the_level_is_kept() -> None:
    for level in (0.01, 0.5):
        samples = read_samples(encode(level * VOICE, "wav", "pcm_f32le"))
        assert np.array_equal(samples, level * VOICE)


def test_a_wav_whose_header_promises_more_is_read_to_its_end() -> None:
    file = patched(patched(wav(VOICE), 4, "<I", 0xFFFFFFFF), 40, "<I", 0xFFFFFFFF)
    assert np.array_equal(read_samples(file), read_samples(wav(VOICE)))


@pytest.mark.parametrize("size", [0, 0x7FFF0000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_a_wav_from_a_pipe_states_no_length(size: int) -> None:
    file = patched(patched(wav(VOICE), 4, "<I", size), 40, "<I", size)
    assert np.array_equal(read_samples(file), read_samples(wav(VOICE)))


def whole(container: str) -> bytes:
    codecs = {"wav": "pcm_s16le", "flac": "flac", "aiff": "pcm_s16be", "mp3": "libmp3lame", "webm": "libopus"}
    file = encode(voice_like(1, 6.0, 48000), container, codecs.get(container, "aac"), 48000)
    return with_index_first(file) if container == "mp4" else file


def with_index_first(file: bytes) -> bytes:
    """An mp4 whose index comes before its samples, as on the web. FFmpeg writes it last."""
    index, media = file.index(b"moov") - 4, file.index(b"mdat") - 4
    moov = bytearray(file[index:])
    offsets = moov.index(b"stco") + 8
    (count,) = struct.unpack_from(">I", moov, offsets)
    for at in range(offsets + 4, offsets + 4 + 4 * count, 4):
        struct.pack_into(">I", moov, at, struct.unpack_from(">I", moov, at)[0] + len(moov))
    return file[:media] + bytes(moov) + file[media:index]


@pytest.mark.parametrize("container", ["wav", "flac", "aiff", "mp3", "webm", "mp4"])
def test_half_a_file_is_no_recording(container: str) -> None:
    file = whole(container)
    assert abs(len(read_samples(file)) - 6 * RATE) < RATE * ENCODER_DELAY_S
    with pytest.raises(Rejected, match=r"the reference audio ends after [23]\.\d s, but its header says 6\.0 s"):
        read_samples(file[: len(file) // 2])


@pytest.mark.parametrize(("container", "codec"), [("adts", "aac"), ("ogg", "libopus")])
def test_where_no_header_states_a_length_the_part_is_taken(container: str, codec: str) -> None:
    file = encode(voice_like(1, 6.0, 48000), container, codec, 48000)
    assert len(read_samples(file[: len(file) // 2])) > RATE


def test_tags_behind_an_mp3_are_no_damage() -> None:
    file = encode(VOICE, "mp3", "libmp3lame")
    tagged = file + b"APETAGEX" + np.random.default_rng(1).bytes(3000)
    assert abs(len(read_samples(tagged)) - len(read_samples(file))) < RATE * ENCODER_DELAY_S


@pytest.mark.parametrize("seconds", [1.0, 30.0])
def test_the_shortest_and_the_longest(seconds: float) -> None:
    assert len(read_samples(wav(voice_like(1, seconds)))) == seconds * RATE


# ---- what is refused


def text(_: Samples) -> bytes:
    return b"This is no audio. " * 100


def playlist(_: Samples) -> bytes:
    return b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n"


def infinite(samples: Samples) -> bytes:
    """In stereo, one channel of which is the negative of the other: their mean is no number."""
    endless = np.where(np.arange(len(samples)) % 2, np.inf, -np.inf)
    return patched(patched(encode(endless, "wav", "pcm_f32le"), 22, "<H", 2), 32, "<H", 8)


BAD: list[tuple[str, Callable[[Samples], bytes], str]] = [
    ("empty", lambda _: b"", "is no audio file"),
    ("text", text, "is no audio file"),
    ("json", lambda _: json.dumps({"audio": [0.0] * 100}).encode(), "is no audio file"),
    ("random bytes", lambda _: np.random.default_rng(2).bytes(50_000), "is no audio file"),
    ("a playlist of local files", playlist, "is no audio file"),
    ("a list of files", lambda _: b"ffconcat version 1.0\nfile /etc/hostname\n", "is no audio file"),
    ("half an m4a", lambda x: encode(x, "mp4", "aac")[:10_000], "is no audio file"),
    ("a header alone", lambda _: wav(np.zeros(0)), "holds no sound"),
    ("no such codec", lambda x: patched(wav(x), 20, "<H", 0x7777), "holds no audio that can be decoded"),
    ("no bits", lambda x: patched(wav(x), 34, "<H", 0), "holds no audio that can be decoded"),
    ("65535 channels", lambda x: patched(wav(x), 22, "<H", 65535), "is no audio file"),
    ("9 channels", lambda x: wav(np.stack([x] * 9)), "has 9 channels; the most is 8"),
    ("1 Hz", lambda x: patched(wav(x), 24, "<I", 1), "has a sample rate of 1 Hz"),
    ("268 MHz", lambda x: patched(wav(x), 24, "<I", 0x0FFFFFFF), "has a sample rate of 268435455 Hz"),
    ("a header that promises less", lambda x: patched(wav(x), 40, "<I", 10), "at least 1 s"),
    ("half a second", lambda x: wav(x[: RATE // 2]), "has 0.50 s; at least 1 s"),
    ("31 seconds", lambda _: wav(voice_like(1, 31.0)), "is longer than 30 s"),
    ("silence", lambda _: wav(SILENCE), "is silent"),
    ("a constant", lambda _: wav(np.full(2 * RATE, 0.5)), "is silent"),
    ("a murmur", lambda x: encode(x * 1e-4, "wav", "pcm_f32le"), "is silent"),
    ("a word between silences", lambda x: wav(np.concatenate([SILENCE, x[:4800], SILENCE])), "are not silent"),
    ("no number", lambda x: encode(np.where(x == x[5], np.nan, x), "wav", "pcm_f32le"), "far outside -1..1"),
    ("infinity", lambda x: encode(np.where(x == x[5], np.inf, x), "wav", "pcm_f32le"), "far outside -1..1"),
    ("integers as floats", lambda x: encode(x * 32768, "wav", "pcm_f32le"), "far outside -1..1"),
    ("infinite both ways", infinite, "far outside -1..1"),
    ("11 MiB", lambda _: bytes(MAX_BYTES + 1), "is larger than 10 MiB"),
]


@pytest.mark.parametrize(("make", "message"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_refused(make: Callable[[Samples], bytes], message: str) -> None:
    with pytest.raises(Rejected) as refusal:
        read_reference(make(VOICE))
    assert message in str(refusal.value)
    assert str(refusal.value).startswith("the reference audio ")
    assert refusal.value.param == "reference"


@pytest.mark.parametrize(("container", "codec"), [("flac", "flac"), ("mp3", "libmp3lame")])
def test_of_an_hour_only_the_beginning_is_decoded(container: str, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes of silence stand for it: a small file, as compressed bombs are."""
    taken: list[int] = []
    frames_of = module.decode_frames

    def counting(opened: object) -> object:
        for frame in frames_of(opened):  # type: ignore[arg-type]
            taken.append(frame.samples)
            yield frame

    monkeypatch.setattr(module, "decode_frames", counting)
    file = encode(np.zeros(600 * 8000, np.float32), container, codec, 8000)
    assert len(file) < MAX_BYTES
    with pytest.raises(Rejected, match="is longer than 30 s"):
        read_reference(file)
    assert 31 * 8000 < sum(taken) < 33 * 8000


@pytest.mark.parametrize(("damaged", "taken"), [(2, True), (40, False)])
def test_a_few_undecodable_packets_are_passed_over_and_many_are_not(damaged: int, taken: bool) -> None:
    packets = encode(voice_like(3, 4.0), "adts", "aac").split(b"\xff\xf1")
    assert len(packets) > 90
    for at in range(len(packets) - 41, len(packets) - 41 + damaged):
        head, payload = packets[at][:5], packets[at][5:]
        packets[at] = head + bytes(255 - value for value in payload)
    file = b"\xff\xf1".join(packets)
    if taken:
        assert abs(len(read_samples(file)) - 4 * RATE) < 6 * 1024
    else:
        with pytest.raises(Rejected, match="is damaged"):
            read_reference(file)
