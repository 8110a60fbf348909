"""Faults of a waveform that are found without a judge of speech."""

import numpy as np
import pytest
from vivavoce_eval.acoustics import listen
from vivavoce_eval.gates import ROW_LIMITS
from vivavoce_eval.waves import FRAME_SAMPLES, RATE_HZ, Samples

from tests.support.sounds import speechlike

LIMITS = {field: limit for field, _, _, limit in ROW_LIMITS}


def over_the_limit(samples: Samples) -> list[str]:
    found = listen(samples)
    return [field for field, limit in LIMITS.items() if getattr(found, field) > limit]


def test_clean_sound_is_within_all_limits() -> None:
    found = listen(speechlike(40))
    assert found.duration_s == pytest.approx(3.2)
    assert found.leading_silence_s == pytest.approx(0.1, abs=0.02)
    assert found.trailing_silence_s == pytest.approx(0.1, abs=0.02)
    assert found.longest_pause_s == 0
    assert over_the_limit(speechlike(40)) == []


@pytest.mark.parametrize(
    ("from_s", "to_s", "field"),
    [(1.1, 2.1, "longest_pause_s"), (0.0, 1.0, "leading_silence_s"), (2.2, 3.2, "trailing_silence_s")],
)
def test_a_muted_second_is_found_wherever_it_is(from_s: float, to_s: float, field: str) -> None:
    sound = speechlike(40)
    sound[int(from_s * RATE_HZ) : int(to_s * RATE_HZ)] = 0
    assert getattr(listen(sound), field) == pytest.approx(1.0, abs=0.03)
    assert field in over_the_limit(sound)  # where it is cut off there is a click too


@pytest.mark.parametrize("frame", [5, 17, 30])
def test_a_click_at_a_seam_is_found(frame: int) -> None:
    sound, fade = speechlike(40), np.linspace(1, 0, 240, dtype=np.float32)
    sound[frame * FRAME_SAMPLES : frame * FRAME_SAMPLES + 240] += 0.1 * fade
    assert "seam_click" in over_the_limit(sound)


def test_a_click_elsewhere_is_found_as_such() -> None:
    sound = speechlike(40)
    sound[10 * FRAME_SAMPLES + 700] += 0.3
    assert over_the_limit(sound) == ["click"]


def test_clipping_is_a_share_of_samples() -> None:
    sound = np.clip(speechlike(40) * 20, -1, 1)
    assert listen(sound).clipped == np.mean(np.abs(sound) >= 0.999) > 0.01


@pytest.mark.parametrize("samples", [0, 1, 24_000])
def test_silence_is_all_leading_silence(samples: int) -> None:
    found = listen(np.zeros(samples, np.float32))
    assert found.leading_silence_s == pytest.approx(samples / RATE_HZ, abs=0.01)
    assert (found.trailing_silence_s, found.longest_pause_s, found.clipped, found.seam_click) == (0, 0, 0, 0)
