"""Uploads of any bytes give valid samples or a refusal with a reason, never a crash or more than 30 s of audio."""

import base64
import contextlib

import numpy as np
from hypothesis import strategies as st
from vivavoce_engine import Rejected
from vivavoce_engine.checkpoint.files import REFERENCE_SAMPLE_RATE
from vivavoce_engine.voices.reference_audio import MAX_S
from vivavoce_engine.voices.reference_reader import ReferenceReader
from vivavoce_engine.voices.reference_shape import LEAD_S, MIN_SPEECH_S, PEAK, TAIL_S
from vivavoce_server.errors import ApiError
from vivavoce_server.references import decode_audio

from tests.support.fuzzing import fuzz_function
from tests.support.recordings import Samples, encode, voice_like, wav

READER = ReferenceReader()
VOICE = voice_like(1, 1.2, 16000)
FILES = (
    wav(VOICE, 16000),
    encode(VOICE, "wav", "pcm_f32le", 16000),
    encode(VOICE, "wav", "pcm_mulaw", 16000),
    encode(VOICE, "mp3", "libmp3lame", 16000),
    encode(VOICE, "ogg", "libopus", 16000),
    encode(VOICE, "webm", "libopus", 16000),
    encode(VOICE, "adts", "aac", 16000),
    encode(VOICE, "mp4", "aac", 16000),
    encode(VOICE, "flac", "flac", 16000),
    encode(VOICE, "aiff", "pcm_s16be", 16000),
)
HEAD_BYTES = 512
"""Where most of what a decoder believes is written."""


PLACES = st.integers(0, HEAD_BYTES - 1) | st.integers(0, 2**16)
PIECES = st.binary(min_size=1, max_size=8) | st.sampled_from((b"\xff" * 4, b"\x00" * 4, b"\x7f\xff\xff\xff"))
EDITS = st.lists(st.tuples(PLACES, PIECES, st.booleans()), max_size=6)


def damaged(file: bytes, edits: list[tuple[int, bytes, bool]]) -> bytes:
    """A file with pieces written over it, or between its bytes."""
    changed = bytearray(file)
    for place, piece, over in edits:
        at = place % len(changed)
        changed[at : at + (len(piece) if over else 0)] = piece
    return bytes(changed)


def taken(audio: bytes) -> Samples | Rejected:
    try:
        return READER.read(audio)
    except Rejected as refusal:
        return refusal


def check(audio: bytes) -> None:
    samples = taken(audio)
    if isinstance(samples, Rejected):
        assert samples.param == "reference"
        assert str(samples).startswith("the reference audio ")
        return
    assert samples.dtype == np.float32
    assert samples.ndim == 1
    speech_s = len(samples) / REFERENCE_SAMPLE_RATE - LEAD_S - TAIL_S
    assert MIN_SPEECH_S <= speech_s <= MAX_S + 0.2
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() <= PEAK * 1.0001


def check_damaged(number: int, edits: list[tuple[int, bytes, bool]], end: int | None, after: int | None) -> None:
    check(damaged(FILES[number], edits)[:end] + (b"" if after is None else FILES[after]))


def check_text(text: str) -> None:
    with contextlib.suppress(ApiError):
        assert decode_audio(text)


def test_damaged_files() -> None:
    """Good files some of whose bytes, mostly of the header, are others; cut off, or with another one behind them."""
    fuzz_function(
        *("audio: damaged files", 0.39, check_damaged),
        number=st.integers(0, len(FILES) - 1),
        edits=EDITS,
        end=st.none() | st.integers(0, 2**16),
        after=st.none() | st.integers(0, len(FILES) - 1),
    )


def test_any_bytes() -> None:
    fuzz_function("audio: any bytes", 0.15, check, audio=st.binary(max_size=4000))


def test_what_stands_for_a_file() -> None:
    any_text = st.text(max_size=200)
    base64_text = st.binary(max_size=200).map(lambda data: base64.b64encode(data).decode())
    urls = st.tuples(
        st.sampled_from(("data:", "DATA:audio/wav", "data:audio/wav;base64", "data:;base64;base64")),
        st.sampled_from((",", "", ",,")),
        st.text(alphabet="AZaz09+/=\n ", max_size=50),
    ).map("".join)
    fuzz_function("audio: texts for a file", 0.15, check_text, text=any_text | base64_text | urls)
