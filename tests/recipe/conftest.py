"""Adds the recipe's folder to the path, because the recipe is not an installed package. Makes training small."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.torch_threads import one_torch_thread

sys.path.insert(0, str(Path(__file__).parents[2] / "voice" / "recipe"))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """One thread for PyTorch: threads that share busy cores wait for each other longer than they compute."""
    with one_torch_thread():
        yield


@pytest.fixture(scope="module")
def short_steps(one_thread: None) -> Iterator[None]:
    """Steps of the decoder on 160 ms instead of 960, and a decoder with a fortieth of the weights."""
    from voice_recipe import train_decoder  # only now on the path
    from voice_recipe.config import CODEC, SAMPLES_PER_FRAME

    small = replace(CODEC, latent_dim=32, hidden_size=32, intermediate_size=48, num_heads=1, head_dim=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_decoder, "CODEC", replace(small, decoder_dim=64))
        patch.setattr(train_decoder, "CONTEXT_FRAMES", 6)
        patch.setattr(train_decoder, "DECODED_FRAMES", train_decoder.WARMUP_FRAMES + 2)
        patch.setattr(train_decoder, "JUDGED_SAMPLES", 2 * SAMPLES_PER_FRAME)
        yield
