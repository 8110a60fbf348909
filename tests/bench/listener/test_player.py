"""The virtual player, and the search for the beginning of sound."""

import pytest
from vivavoce_bench.listener.onset import Onset
from vivavoce_bench.listener.player import Gap, play, safe_start

from tests.support.speech_servers import near, silence, tone

FRAME = 1920


def audible_from(pcm: bytes, piece: int = 1001) -> int | None:
    """The onset of audio that arrives in pieces of odd lengths."""
    onset = Onset()
    for start in range(0, len(pcm), piece):
        onset.add(pcm[start : start + piece])
    return onset.sample


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


def test_a_player_that_holds_audio_starts_when_it_has_it() -> None:
    pieces = [(1.0, FRAME), (1.2, FRAME), (1.21, FRAME), (2.0, FRAME)]
    held = play(pieces, buffer_s=0.2)
    assert held is not None
    assert held.started_s == near(1.21), "three frames are 240 ms"
    assert held.gaps == (Gap(near(1.45), near(0.55)),)
    assert [first for _, first, _ in held.pieces] == [0, FRAME, 2 * FRAME, 3 * FRAME]
    never = play(pieces, buffer_s=10.0)
    assert never is not None
    assert (never.started_s, never.gaps) == (2.0, ()), "the whole answer is less than it would hold"


def test_a_safe_start_is_the_least_with_which_nothing_comes_late() -> None:
    pieces = [(1.0, FRAME), (1.2, FRAME), (1.21, 0), (2.0, FRAME)]
    start_s = safe_start(pieces)
    assert start_s == near(2.0 - 0.16)

    def late(started_s: float) -> int:
        due_s = [started_s + 0.08 * number for number in range(3)]
        return sum(at_s > due + 1e-9 for (at_s, _), due in zip([pieces[0], pieces[1], pieces[3]], due_s, strict=True))

    assert late(start_s) == 0
    assert late(start_s - 0.001) == 1
    assert safe_start([(1.0, FRAME), (1.01, FRAME)]) == 1.0, "what comes in time needs no delay"


@pytest.mark.parametrize("piece", [1, 479, 480, 960, 100_000])
def test_the_onset_does_not_depend_on_the_pieces(piece: int) -> None:
    assert audible_from(silence(0.103) + tone(0.2), piece) == audible_from(silence(0.103) + tone(0.2)) == 2160
