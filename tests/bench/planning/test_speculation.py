"""Passes of the code predictor with guesses, and the frame that is calculated from them."""

from itertools import product

import numpy as np
import pytest
from vivavoce_bench.planning.speculation import CardTimes, count_passes, pass_shares, slowest_of
from vivavoce_bench.planning.step_times import Curve


def test_a_pass_keeps_draws_up_to_the_first_wrong_guess() -> None:
    right = np.zeros((4, 7, 2), np.bool_)
    right[1] = True
    right[2, 0] = (False, True)  # a second guess behind a wrong one is of no use
    right[3, 1] = (True, False)
    right[3, 3] = (True, True)
    # Codes of the passes of frame 3: 1, 2 and 3, 4 to 6, 7.
    assert count_passes(right).tolist() == [7, 3, 7, 4]


@pytest.mark.parametrize("rates", [(0.5,), (0.3, 0.9), (0.0, 1.0), (1.0, 0.25)])
def test_shares_are_those_of_independent_guesses(rates: tuple[float, ...]) -> None:
    codes, k = 4, len(rates)
    shares = np.zeros(codes + 1)
    for flags in product((False, True), repeat=codes * k):
        right = np.array(flags).reshape(1, codes, k)
        chance = np.where(right, rates, 1 - np.array(rates)).prod()
        shares[count_passes(right)[0]] += chance
    np.testing.assert_allclose(pass_shares(codes, rates), shares, atol=1e-12)


def test_bounds_of_passes() -> None:
    assert pass_shares(15, (0.0,)).tolist() == [0.0] * 15 + [1.0]
    assert pass_shares(15, (1.0, 1.0)).tolist() == [0.0] * 5 + [1.0] + [0.0] * 10


def test_rows_wait_for_the_slowest() -> None:
    shares = np.array([0.0, 0.5, 0.25, 0.25])
    pairs = [(a, b) for a in range(4) for b in range(4)]
    assert slowest_of(shares, 1) == 1.75
    assert slowest_of(shares, 2) == sum(max(a, b) * shares[a] * shares[b] for a, b in pairs)


def test_a_frame_is_the_talker_and_its_passes() -> None:
    card = CardTimes(Curve({1: 3.0, 2: 3.5, 4: 4.0, 8: 7.0}), talker_ms=1.0, guess_ms=0.01, skip_ms=0.05, codes=10)
    useless = card.frame(1, (0.0,))
    assert useless.passes == useless.today_ms + 7 == 10
    assert useless.loop_ms == pytest.approx(1.0 + 10 * (3.5 * 2 / 3 / 10 + 0.01))
    assert useless.graph_ms == useless.loop_ms
    perfect = card.frame(2, (1.0, 1.0, 1.0))
    assert perfect.passes == 3
    assert perfect.loop_ms == pytest.approx(3.5 / 3 + 3 * (7.0 * 2 / 3 / 10 + 3 * 0.01))
    assert perfect.graph_ms == pytest.approx(perfect.loop_ms + 7 * 0.05)
