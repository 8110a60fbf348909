"""The memory of an engine on a card is what was counted before it was loaded: `make test-gpu` on an idle card."""

from pathlib import Path

import pytest
import torch
from vivavoce_bench.cards.memory import MB, Memory, measure_apart, table
from vivavoce_voice import CHECKPOINT

from tests.support.tiny_checkpoints import write_checkpoint

needs_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card: `make test-gpu` on one")
LEAST_SHARE, SLACK_BYTES = 0.7, 400 * MB
"""The count may be above what is measured by a share of it. The constants weigh most in a small model."""


@needs_card
@pytest.mark.parametrize("rows", [2, 64])
@pytest.mark.parametrize("model", ["shipped", "custom_voice", "base"])
def test_the_count_holds_on_a_card(model: str, rows: int, tmp_path: Path) -> None:
    path = CHECKPOINT if model == "shipped" else write_checkpoint(tmp_path, "tiny", model)  # type: ignore[arg-type]
    found = measure_apart(path, rows, "cuda:0")
    print(table([found]))
    assert found.measured <= found.counted
    assert found.reserved_peak <= found.counted_peak
    assert found.counted - found.measured <= max((1 - LEAST_SHARE) * found.counted, SLACK_BYTES)


def test_a_result_tells_what_the_constants_stand_for() -> None:
    mb = 10**6
    found = Memory(8, 8192, 32, 3400 * mb, 3500 * mb, 2860 * mb, 3300 * mb, 3100 * mb, 3060 * mb, 2900 * mb, 550 * mb)
    assert (found.outside, found.fragments) == (240 * mb, 160 * mb)
    assert table([found]).splitlines()[-1] == (
        "| 8 | 8192 | 3400 | 3300 | 1.03 | 2860 / 2900 | 160 | 240 (32) | 3500 / 3100 | 550 |"
    )
