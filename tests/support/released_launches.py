"""The launches of the released models: both sizes of Qwen3-TTS, few rows and many, deterministic or not, with and
without word times, and the speech side of Qwen3-Omni, in bfloat16.

    python -m tests.support.released_launches > tests/gpu/launches_h200.txt

writes those of an H200 again, after an intended change of tiles.
"""

import itertools
from collections.abc import Sequence

import torch
from vivavoce_bench.cards.random_codec import OMNI_CODEC, RELEASED_CODEC
from vivavoce_bench.cards.shapes import OMNI, SIZES, talker_config
from vivavoce_engine import EngineConfig
from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.gpu.card import H200, Card
from vivavoce_engine.gpu.launches import KernelLaunch, Recorder, record_launches

ROWS = (8, 256)
ALIGNMENT = Alignment(layer=0, head=5, offset_ms=0.0)
"""A head that stands for any."""


def released_launches(card: Card, all_rows: Sequence[int] = ROWS) -> list[KernelLaunch]:
    """All distinct launches on a card with these numbers of rows, sorted by their text."""
    recorder = Recorder(card)  # one layer launches what all layers do
    for size, rows, deterministic, alignment in itertools.product(SIZES, all_rows, (False, True), (None, ALIGNMENT)):
        settings = EngineConfig(max_streams=rows, deterministic=deterministic)
        record_launches(talker_config(size, layers=1), RELEASED_CODEC, settings, torch.bfloat16, recorder, alignment)
    for rows, deterministic in itertools.product(all_rows, (False, True)):
        settings = EngineConfig(max_streams=rows, deterministic=deterministic)
        record_launches(talker_config(OMNI, layers=1), OMNI_CODEC, settings, torch.bfloat16, recorder)
    return sorted(recorder.launches, key=str)


if __name__ == "__main__":
    print(*released_launches(H200), sep="\n")
