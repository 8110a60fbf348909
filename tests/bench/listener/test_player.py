"""The virtual player, and the search for the beginning of sound."""

import pytest
from vivavoce_bench.listener.player import Gap, audible_from, play

from tests.support.speech_servers import near, silence, tone

FRAME = 1920


def test_what_comes_in_time_is_heard_without_a_gap() -> None:
    playback = play([(1.0, FRAME), (1.08, FRAME), (1.10, 4 * FRAME)])
    assert playback is not None
    assert playback.gaps == ()
    assert (playback.started_s, playback.ended_s) == (1.0, near(1.48))


def test_a_late_piece_is_an_underrun_and_delays_all_after_it() -> None:
    playback = play([(1.0, FRAME), (1.2, FRAME), (1.21, FRAME), (2.0, FRAME)])
    assert playback is not None
    assert playback.gaps == (
        Gap(near(1.08), near(0.12)),
        Gap(near(1.36), near(0.64)),
    )
    assert playback.ended_s == near(2.08)
    assert playback.heard_at(0) == 1.0
    assert playback.heard_at(FRAME) == near(1.2)
    assert playback.heard_at(2 * FRAME + 240) == near(1.29)


def test_pieces_without_a_whole_sample_are_not_played() -> None:
    assert play([(1.0, 0)]) is None
    playback = play([(1.0, 0), (3.0, FRAME)])
    assert playback is not None
    assert playback.started_s == 3.0


@pytest.mark.parametrize("silent_s", [0.0, 0.01, 0.25])
def test_sound_begins_after_the_silence(silent_s: float) -> None:
    """Windows are 20 ms at steps of 10: the one that starts 10 ms before the sound holds enough of it."""
    assert audible_from(silence(silent_s) + tone(0.2)) == max(0, silent_s - 0.01) * 24000


def test_silence_is_no_sound_nor_is_a_click() -> None:
    assert audible_from(silence(1.0)) is None
    click = b"\x00\x03" * 24  # 1 ms at 768: -33 dBFS by itself, -46 dBFS in a window
    assert audible_from(silence(0.1) + click + silence(0.1)) is None
    assert audible_from(b"") is None


def test_a_constant_is_no_sound() -> None:
    assert audible_from(b"\x00\x20" * 24000) is None


def test_quiet_noise_is_no_sound() -> None:
    assert audible_from(b"\x64\x00\x9c\xff" * 12000) is None  # ±100: -50 dBFS
    assert audible_from(b"\xe8\x03\x18\xfc" * 12000) == 0  # ±1000: -30 dBFS
