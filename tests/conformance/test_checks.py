"""The list of checks, and measures of sound."""

import math
import os
import sys
from array import array
from pathlib import Path

import pytest
from vivavoce_conformance import sound
from vivavoce_conformance.checks import CHECKS, GROUPS
from vivavoce_conformance.cli import chosen
from vivavoce_conformance.reports import as_markdown
from vivavoce_conformance.rules import LEVELS
from vivavoce_conformance.sse import parse_events
from vivavoce_conformance.target import Failed

from tests.support.faulty_server import encoded, tone, wave

README = Path(__file__).parents[2] / "conformance/README.md"
SPEECH = tone(40, 1.0, 0)


def test_the_readme_has_the_list_of_checks() -> None:
    assert README.read_text(encoding="utf-8").endswith(f"## Checks\n\n{as_markdown(GROUPS)}")


def test_checks_have_ids_of_their_own_and_name_the_source_of_their_rule() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert [check.id for check in CHECKS if not check.source or not check.title or check.level not in LEVELS] == []


def test_checks_are_chosen_by_group_and_id() -> None:
    ids = [check.id for check in chosen(["models,errors.deep", "headers.head"])]
    assert ids[0] == "errors.deep"
    assert set(ids) == {"errors.deep", "headers.head", *(check.id for check in GROUPS[5].checks)}


PROGRAM = """#!{python}
import sys
from vivavoce_conformance import sound

assert sys.argv[1:] == "-v error -i pipe:0 -f s16le -ac 1 -ar 24000 pipe:1".split()
try:
    sys.stdout.buffer.write(sound.decode_by_av(sys.stdin.buffer.read()).tobytes())
except sound.Undecodable as error:
    sys.exit(str(error))
"""
"""Stand-in for FFmpeg's program."""


@pytest.fixture(params=["av", "ffmpeg"])
def decoder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "ffmpeg":
        program = tmp_path / "ffmpeg"
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        monkeypatch.setattr(sound, "has_av", lambda: False)
        monkeypatch.setattr(sound, "ffmpeg", lambda: str(program))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac"])
async def test_decoders_give_the_sound_back(name: str) -> None:
    heard = await sound.decode(encoded(SPEECH, name), name)
    alike = sound.likeness(heard, sound.samples_of(SPEECH))
    assert alike.correlation > 0.95
    assert abs(alike.lag_s) < 0.06


async def test_without_a_decoder_the_format_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound, "has_av", lambda: False)
    monkeypatch.setattr(sound, "ffmpeg", lambda: None)
    with pytest.raises(sound.NoDecoder, match="PyAV"):
        await sound.decode(b"", "mp3")


@pytest.mark.usefixtures("decoder")
async def test_nonsense_is_undecodable() -> None:
    for name in ("mp3", "wav", "flac"):
        with pytest.raises(sound.Undecodable):
            await sound.decode(b"nonsense" * 100, name)


def test_a_shift_is_measured_with_its_sign() -> None:
    samples = sound.samples_of(SPEECH)
    later = array("h", bytes(2 * 1200)) + samples
    assert sound.likeness(later, samples).lag_s == pytest.approx(0.05, abs=0.001)
    assert sound.likeness(samples, later).lag_s == pytest.approx(-0.05, abs=0.001)
    assert sound.likeness(samples, samples).lag_s == 0.0
    assert sound.likeness(samples, samples).correlation == pytest.approx(1.0)


def test_levels_are_in_dbfs() -> None:
    square = array("h", [16384, -16384] * 100)
    assert sound.level_db(square) == pytest.approx(20 * math.log10(0.5))
    assert sound.level_db(array("h", [0] * 10)) == -120.0


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_a_streamed_wave_is_read_to_its_end(size: int) -> None:
    streamed = bytearray(wave(SPEECH))
    streamed[40:44] = size.to_bytes(4, "little")
    assert sound.decode_wave(bytes(streamed)) == sound.samples_of(SPEECH)


def test_events_are_read_as_browsers_read_them() -> None:
    body = b': hello\r\n\r\nevent: a\r\ndata: {"type":\r\ndata: "a"}\r\n\r\ndata:{"type": "b"}\n\ndata: [DONE]\n\n'
    assert [(event.name, event.data) for event in parse_events(body)] == [
        ("a", {"type": "a"}),
        ("message", {"type": "b"}),
    ]


@pytest.mark.parametrize("body", [b"data: 5\n\n", b'data: {"a": 1}', b"\xff\n\n", b"data: " + b"[" * 100_000 + b"\n\n"])
def test_what_is_no_stream_of_objects_is_a_finding(body: bytes) -> None:
    with pytest.raises(Failed):
        parse_events(body)
