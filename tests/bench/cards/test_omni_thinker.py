"""The timed thinker has the released shapes, and its conversations are those of the product."""

from typing import Any

import pytest
import torch
from vivavoce_bench.cards import omni_thinker
from vivavoce_bench.cards.omni_thinker import RandomThinker, begin_and_draw, read_media, read_text, write

RELEASED_BYTES = 63_438_410_976
"""Bytes of the tensors named thinker.* in Qwen3-Omni-30B-A3B-Instruct."""


def test_the_random_thinker_has_as_many_bytes_as_the_released_one() -> None:
    assert RandomThinker(torch.device("meta"), 48).weights == RELEASED_BYTES


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> RandomThinker:
    """A thinker of one layer with few, narrow experts."""
    rope = omni_thinker.ROPE | {"mrope_section": [4, 2, 2], "rope_theta": 1e6}
    text: dict[str, Any] = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 4,
    }
    text |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "rope_parameters": rope}
    monkeypatch.setattr(omni_thinker, "TEXT", omni_thinker.TEXT | text)
    audio = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    monkeypatch.setattr(omni_thinker, "AUDIO", omni_thinker.AUDIO | audio | {"output_dim": 64})
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
    monkeypatch.setattr(omni_thinker, "VISION", omni_thinker.VISION | vision | {"deepstack_visual_indexes": []})
    torch.manual_seed(1)
    return RandomThinker(torch.device("cpu"), 1)


def test_a_conversation_is_read_and_answered_token_by_token(small: RandomThinker) -> None:
    conversation = begin_and_draw(small, read_text(12))
    written = [conversation.written]
    for _ in range(3):
        write(small, conversation)
        written.append(conversation.written)
    assert conversation.position == 12 + 3
    assert all(token is not None and 0 <= token < 152064 for token in written)


def test_a_sound_and_a_picture_are_read_with_the_conversation(small: RandomThinker) -> None:
    read = read_media(small.device)
    begin_and_draw(small, read)
    assert read.ids.count(omni_thinker.AUDIO_TOKEN) == 130, "13 tokens a second"
    assert read.ids.count(omni_thinker.IMAGE_TOKEN) == 14 * 14, "a token for 32 x 32 pixels"
