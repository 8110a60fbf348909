"""Times the thinker of Qwen3-Omni on a GPU, as the server runs it in a process of its own: by transformers.

    python -m vivavoce_bench.cards.omni_thinker --out FILE [--layers 48] [--device cuda]

Weights are random, with the released shapes in bfloat16, made on the card: 63 GB. Times are those of the product's own
ThinkerModel: reading a conversation, then one token at a time for each of several conversations, as its process does.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
import transformers
from transformers import Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration
from vivavoce_engine.thinker.interface import ThinkOptions
from vivavoce_engine.thinker.model import Conversation, ReadPrompt, ThinkerModel, tokens_of_sound
from vivavoce_engine.thinker.text import ThinkerText

COMMAND = " ".join(("python", "-m", "vivavoce_bench.cards.omni_thinker", *sys.argv[1:]))
ROPE: dict[str, Any] = {
    "rope_type": "default",
    "mrope_section": [24, 20, 20],
    "interleaved": True,
    "mrope_interleaved": True,
}
TEXT: dict[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 768,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {**ROPE, "rope_theta": 1e6},
    "tie_word_embeddings": False,
}
AUDIO: dict[str, Any] = {
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "num_mel_bins": 128,
}
AUDIO |= {
    "downsample_hidden_size": 480,
    "output_dim": 2048,
    "n_window": 50,
    "n_window_infer": 800,
    "conv_chunksize": 500,
}
VISION: dict[str, Any] = {
    "depth": 27,
    "hidden_size": 1152,
    "num_heads": 16,
    "intermediate_size": 4304,
    "patch_size": 16,
}
VISION |= {"temporal_patch_size": 2, "spatial_merge_size": 2, "out_hidden_size": 2048, "num_position_embeddings": 2304}
VISION |= {"deepstack_visual_indexes": [8, 16, 24]}
AUDIO_TOKEN, IMAGE_TOKEN, VISION_START = 151675, 151655, 151652
TOKENS_OF: dict[str, Any] = {"audio_token_id": AUDIO_TOKEN, "image_token_id": IMAGE_TOKEN, "video_token_id": 151656}
TOKENS_OF |= {"audio_start_token_id": 151669, "vision_start_token_id": VISION_START, "user_token_id": 872}
TOKENS_OF |= {"position_id_per_seconds": 13, "seconds_per_chunk": 2}
ACCEPTED_LAYER = 24
SPREAD = 0.02
"""Standard deviation of the random weights."""
PROMPTS = (64, 300, 2000)
"""Tokens of the conversations that are read."""
CONVERSATIONS = (1, 2, 4, 8)
WARM_UP_TOKENS = 8
TOKENS = 24
"""Tokens of each answer that are timed."""
SOUND_MELS = 1000
"""Mel frames of the timed sound: 10 s."""
PATCHES = 28
"""Rows and columns of patches of the timed picture: 448 x 448 pixels."""


class RandomThinker(ThinkerModel):
    """The product's thinker with random weights of the released shapes, without files."""

    def __init__(self, device: torch.device, layers: int) -> None:
        text = TEXT | {"num_hidden_layers": layers}
        parts: dict[str, Any] = {"text_config": text, "audio_config": AUDIO, "vision_config": VISION}
        config = Qwen3OmniMoeThinkerConfig(**parts, **TOKENS_OF)
        with device:
            kind: Any = Qwen3OmniMoeThinkerForConditionalGeneration
            model = kind._from_config(config, dtype=torch.bfloat16)
        with torch.inference_mode():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(std=SPREAD)
        self.device = device
        self._model = model.eval()
        self._accepted_layer = min(ACCEPTED_LAYER, layers)
        control = SimpleNamespace(audio=AUDIO_TOKEN, image=IMAGE_TOKEN)
        self.text = cast(ThinkerText, SimpleNamespace(control=control))
        self.max_context = 32768

    @property
    def weights(self) -> int:
        """Bytes of the weights."""
        return sum(weight.numel() * weight.itemsize for weight in self._model.parameters())


def read_text(tokens: int) -> ReadPrompt:
    return ReadPrompt([1000 + i % 5000 for i in range(tokens)], {}, [])


def read_media(device: torch.device) -> ReadPrompt:
    """A question with a sound of 10 s and a picture of 448 x 448 pixels."""
    side = PATCHES // 2
    ids = [VISION_START, *[IMAGE_TOKEN] * side**2, *[AUDIO_TOKEN] * tokens_of_sound(SOUND_MELS), *range(1000, 1020)]
    dtype = torch.bfloat16
    inputs = {
        "input_features": torch.randn(1, 128, SOUND_MELS, device=device, dtype=dtype),
        "feature_attention_mask": torch.ones(1, SOUND_MELS, device=device, dtype=torch.long),
        "pixel_values": torch.randn(PATCHES**2, 1536, device=device, dtype=dtype),
        "image_grid_thw": torch.tensor([[1, PATCHES, PATCHES]], device=device),
    }
    return ReadPrompt(ids, inputs, [(side, side)])


def median_ms(work: Callable[[], object], rounds: int = 7) -> float:
    """Milliseconds of a call, without the first. `work` ends with a value on the host."""
    work()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def begin_and_draw(thinker: ThinkerModel, read: ReadPrompt) -> Conversation:
    """Reads a conversation and draws the answer's first token, which waits for the device."""
    conversation, _ = thinker.begin(read, ThinkOptions())
    conversation.written = conversation.draw()
    return conversation


def write(thinker: ThinkerModel, conversation: Conversation) -> None:
    assert conversation.written is not None
    thinker.go_on(conversation, conversation.written)
    conversation.written = conversation.draw()


def time_answers(thinker: ThinkerModel, conversations: int) -> float:
    """Tokens a second of all conversations together, each behind a prompt of 300 tokens, once warm."""
    running = [begin_and_draw(thinker, read_text(PROMPTS[1])) for _ in range(conversations)]
    for conversation in running * (WARM_UP_TOKENS // conversations):
        write(thinker, conversation)
    begin = time.perf_counter()
    for _ in range(TOKENS):
        for conversation in running:
            write(thinker, conversation)
    return conversations * TOKENS / (time.perf_counter() - begin)


def measure(thinker: RandomThinker) -> dict[str, Any]:
    rates = {count: time_answers(thinker, count) for count in CONVERSATIONS}
    found: dict[str, Any] = {
        "weights_gb": thinker.weights / 1e9,
        "first_token_ms": {size: median_ms(partial(begin_and_draw, thinker, read_text(size))) for size in PROMPTS},
        "first_token_with_media_ms": median_ms(partial(begin_and_draw, thinker, read_media(thinker.device))),
        "media_tokens": len(read_media(thinker.device).ids),
        "tokens_per_s": rates,
        "token_ms": {count: 1e3 * count / rate for count, rate in rates.items()},
    }
    if thinker.device.type == "cuda":
        found["allocated_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=48, help="layers of the thinker [%(default)s]")
    parser.add_argument("--device", default="cuda", help="[%(default)s]")
    parser.add_argument("--out", type=Path, help="file for the JSON document")
    args = parser.parse_args(words)
    device = torch.device(args.device)
    begin = time.perf_counter()
    thinker = RandomThinker(device, args.layers)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else args.device
    document = {
        "command": COMMAND,
        "device": name,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "made_s": time.perf_counter() - begin,
        **measure(thinker),
    }
    text = json.dumps(document, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
