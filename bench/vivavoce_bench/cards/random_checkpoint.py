"""Writes a CustomVoice checkpoint of a released size with random weights, to time programs that load folders.

    python -m vivavoce_bench.cards.random_checkpoint --size 1.7b --out FOLDER [--device cpu]

File layout, tensor names, shapes and dtypes are the released ones. The text tokenizer is the tests' small one. The
row of the end-of-speech code is zero. Its logit is therefore never among the 50 largest, and no generation ends early.
"""

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vivavoce_bench.cards.layout import (
    CODEC_CONFIGURATION,
    CODEC_PROCESSOR_CONFIG,
    GENERATION_CONFIG,
    PROCESSOR_CONFIG,
    TOKENIZER,
    codec_config,
    model_config,
)
from vivavoce_bench.cards.tensor_sizes import Sizes, codec_sizes, model_sizes

HIDDEN = {"0.6b": 1024, "1.7b": 2048}
"""Size → the talker's hidden size. Its MLP is three times as wide."""
SEED = 20261128
ATTENTION = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
CODEC_DECODER = {
    "latent_dim": 1024,
    "codebook_dim": 512,
    "decoder_dim": 1536,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "head_dim": 64,
    "num_attention_heads": 16,
    "num_hidden_layers": 8,
    "num_key_value_heads": 16,
    "sliding_window": 72,
    "vector_quantization_hidden_dimension": 512,
}
CODEC_ENCODER = {
    "codebook_dim": 256,
    "head_dim": 64,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_filters": 64,
    "num_hidden_layers": 8,
    "num_key_value_heads": 8,
    "upsample_groups": 512,
    "vector_quantization_hidden_dimension": 256,
}


def released_config(size: str) -> dict[str, Any]:
    """Content of the CustomVoice model's config.json for that size, except for the ids of text tokens."""
    config = model_config("tiny", "custom_voice")  # this shape has the released code ids, languages and speakers
    config["tts_model_size"] = size.replace(".", "b").removesuffix("b")
    talker = config["talker_config"]
    hidden = HIDDEN[size]
    talker |= ATTENTION | {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": 28}
    talker |= {"text_hidden_size": 2048, "text_vocab_size": 151936}
    talker["rope_scaling"]["mrope_section"] = [24, 20, 20]
    layers = {"num_hidden_layers": 5, "layer_types": ["full_attention"] * 5}
    talker["code_predictor_config"] |= ATTENTION | {"hidden_size": 1024, "intermediate_size": 3072} | layers
    return config


def released_codec_config() -> dict[str, Any]:
    config = codec_config("tiny")
    config["decoder_config"] |= CODEC_DECODER
    config["encoder_config"] |= CODEC_ENCODER
    return config


def write_random_checkpoint(folder: Path, config: dict[str, Any], codec: dict[str, Any], device: torch.device) -> None:
    """Writes the checkpoint. Weights are generated on `device`: bfloat16, and float32 for the codec, as released."""
    generator = torch.Generator(device).manual_seed(SEED)
    codec_folder = folder / "speech_tokenizer"
    codec_folder.mkdir(parents=True, exist_ok=True)
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / name, folder / name)
    for path, content in {
        folder / "config.json": config,
        folder / "generation_config.json": GENERATION_CONFIG,
        folder / "preprocessor_config.json": PROCESSOR_CONFIG,
        codec_folder / "config.json": codec,
        codec_folder / "configuration.json": CODEC_CONFIGURATION,
        codec_folder / "preprocessor_config.json": CODEC_PROCESSOR_CONFIG,
    }.items():
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tensors = _tensors(model_sizes(config), generator, torch.bfloat16)
    tensors["talker.codec_head.weight"][config["talker_config"]["codec_eos_token_id"]] = 0
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    save_file(_tensors(codec_sizes(codec), generator, torch.float32), codec_folder / "model.safetensors")


def _tensors(sizes: Sizes, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: _values(name, size, generator).to(dtype) for name, size in sizes.items()}


def _values(name: str, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random values whose scale keeps every activation finite and spreads logits as after training."""
    noise = torch.randn(size, generator=generator, device=generator.device)
    last = name.rpartition(".")[2]
    if last in ("initialized", "cluster_usage"):
        return torch.ones_like(noise)
    if last in ("scale", "gamma"):
        return noise.mul(0.05).add(0.3)
    if last in ("alpha", "beta", "bias"):
        return noise.mul(0.1)
    if last in ("embed_sum", "embedding_sum"):
        return noise.mul(0.5)
    if len(size) == 1:  # the weight of a norm
        return noise.mul(0.15).add(1.0)
    if "embedding" in name:
        return noise.mul(0.25)
    gain = 2.5 if "_head" in name else 0.5
    return noise.mul(gain / math.sqrt(math.prod(size[1:])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(HIDDEN), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    args = parser.parse_args()
    write_random_checkpoint(args.out, released_config(args.size), released_codec_config(), args.device)


if __name__ == "__main__":
    main()
