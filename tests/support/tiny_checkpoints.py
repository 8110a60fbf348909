"""Small random checkpoints in the exact Qwen3-TTS layout.

    write_checkpoint(folder, "tiny", "custom_voice")

The weights depend only on the tensor's name and shape. They are made of integers of numpy's PCG64, so that every
machine and version writes the same bytes, which the stored reference outputs require. No tensor is trivial: a
forgotten bias, norm weight or codebook division changes the output. The end-of-speech row is enlarged, so that
generation ends by itself. The codec's output has an RMS of about 0.2.
"""

import json
import math
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from vivavoce_bench.cards.layout import (
    CODEC_CONFIGURATION,
    CODEC_PROCESSOR_CONFIG,
    GENERATION_CONFIG,
    PROCESSOR_CONFIG,
    TOKENIZER,
    Kind,
    ShapeName,
    codec_config,
    model_config,
)
from vivavoce_bench.cards.tensor_sizes import codec_sizes, model_sizes

Weights = Literal["float32", "bfloat16"]
TTS_FILES = (
    "config.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "speech_tokenizer/config.json",
    "model.safetensors",
    "speech_tokenizer/model.safetensors",
)
"""Files that a Qwen3-TTS checkpoint cannot speak without."""
Array = NDArray[np.float32]


EOS_BOOST = 2.5  # factor of the end-of-speech row; with 1 the code is as rare as any other
CODEC_LEVEL, CODEC_OFFSET = 0.08, -0.09  # of the codec's last convolution, by measurement


def write_checkpoint(path: Path, shape: ShapeName, kind: Kind, weights: Weights = "float32") -> Path:
    """Write a whole model folder, the speech tokenizer in its sub-folder, and return its path."""
    path.mkdir(parents=True, exist_ok=True)
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / name, path / name)
    config = model_config(shape, kind)
    _write_json(path / "config.json", config)
    _write_json(path / "generation_config.json", GENERATION_CONFIG)
    _write_json(path / "preprocessor_config.json", PROCESSOR_CONFIG)
    tensors = {name: _fill(name, size) for name, size in model_sizes(config).items()}
    tensors["talker.codec_head.weight"][config["talker_config"]["codec_eos_token_id"]] *= EOS_BOOST
    # The released Base files have no __metadata__, the others have this one.
    _save(path / "model.safetensors", tensors, weights, None if kind == "base" else {"format": "pt"})
    write_speech_tokenizer(path / "speech_tokenizer", shape)
    return path


def write_speech_tokenizer(path: Path, shape: ShapeName) -> Path:
    """Write the codec folder alone; its weights are always float32 and carry no __metadata__."""
    path.mkdir(parents=True, exist_ok=True)
    config = codec_config(shape)
    _write_json(path / "config.json", config)
    _write_json(path / "configuration.json", CODEC_CONFIGURATION)
    _write_json(path / "preprocessor_config.json", CODEC_PROCESSOR_CONFIG)
    tensors = {name: _fill(name, size) for name, size in codec_sizes(config).items()}
    last = f"decoder.decoder.{len(config['decoder_config']['upsample_rates']) + 2}.conv"
    tensors[f"{last}.weight"] *= CODEC_LEVEL
    tensors[f"{last}.bias"][:] = CODEC_OFFSET
    _save(path / "model.safetensors", tensors, "float32", None)
    return path


# ---- configuration files


# ---- tensor names and sizes


# ---- weights


def _bits(name: str, count: int) -> NDArray[np.uint16]:
    """Four 16-bit integers for each of `count` values; PCG64's raw stream never changes between versions."""
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(count)
    return raw.astype("<u8").view("<u2").reshape(count, 4)


def _normal(name: str, size: tuple[int, ...], deviation: float, mean: float = 0.0) -> Array:
    """Nearly normal: the sum of four uniform values (mean 131070, standard deviation 37837.2)."""
    total = _bits(name, math.prod(size)).sum(axis=1, dtype=np.int32) - 131070
    values: Array = (total * (deviation / 37837.2) + mean).astype(np.float32)
    return values.reshape(size)


def _uniform(name: str, size: tuple[int, ...], low: float, high: float) -> Array:
    first = _bits(name, math.prod(size))[:, 0]
    values: Array = (low + first * ((high - low) / 65535)).astype(np.float32)
    return values.reshape(size)


def _codebook(name: str, size: tuple[int, ...]) -> Array:
    """A sum of vectors: the reference divides it by cluster_usage. Later books of the residual are finer."""
    parts = name.split(".")
    level = int(parts[parts.index("layers") + 1])
    deviation = 1.0 if "semantic" in name or "rvq_first" in name else 0.7 * 0.93**level
    usage = _uniform(name.rpartition(".")[0] + ".cluster_usage", size[:1], 0.5, 4.0)
    return _normal(name, size, deviation) * usage[:, None]


def _matrix(name: str, size: tuple[int, ...]) -> Array:
    fan_in, gain = math.prod(size[1:]), 1.0
    if name.endswith(("o_proj.weight", "down_proj.weight", "fc2.weight")):
        gain = 0.5  # into a residual stream
    elif name == "speaker_encoder.fc.weight":
        gain = 0.01  # to the level of the embeddings next to the speaker's
    elif name.startswith("speaker_encoder."):
        gain = math.sqrt(2)
    elif name.startswith("decoder.decoder.") and ".conv2." in name:
        gain = 0.4
    elif name.startswith("decoder.decoder.") and ".block.1." in name:
        fan_in = 2 * size[0]  # transposed: an output sample uses two taps of the kernel
    elif name.startswith("decoder.upsample.") and ".0.conv." in name:
        fan_in = size[0]
    return _normal(name, size, gain / math.sqrt(fan_in))


# Last part of the name, or any part of it -> function that fills the tensor. The first match counts.
_BY_LAST_PART: dict[str, Callable[[str, tuple[int, ...]], Array]] = {
    "initialized": lambda name, size: np.ones(size, np.float32),
    "cluster_usage": lambda name, size: _uniform(name, size, 0.5, 4.0),
    "embed_sum": _codebook,
    "embedding_sum": _codebook,
    "alpha": lambda name, size: _normal(name, size, 0.2),
    "beta": lambda name, size: _normal(name, size, 0.2),
    "scale": lambda name, size: _uniform(name, size, 0.1, 0.5),
    "gamma": lambda name, size: _uniform(name, size, 0.1, 0.5),
    "bias": lambda name, size: _normal(name, size, 0.05),
}


def _fill(name: str, size: tuple[int, ...]) -> Array:
    last = name.rpartition(".")[2]
    if last in _BY_LAST_PART:
        return _BY_LAST_PART[last](name, size)
    if len(size) == 1:  # the weight of a norm
        return _normal(name, size, 0.15, mean=1.0)
    if "embedding" in name:
        return _normal(name, size, 0.25)
    if "codec_head" in name or "lm_head" in name:
        return _normal(name, size, 2.5 / math.sqrt(size[1]))
    return _matrix(name, size)


def _bfloat16(values: Array) -> NDArray[np.uint16]:
    """Round to the nearest bfloat16, ties to even, as the upper half of the bits."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _save(path: Path, tensors: dict[str, Array], weights: Weights, metadata: dict[str, str] | None) -> None:
    """Write a safetensors file by hand, because numpy has no bfloat16."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    blobs = []
    end = 0
    for name, values in tensors.items():
        blob = (_bfloat16(values) if weights == "bfloat16" else values).tobytes()
        start, end = end, end + len(blob)
        dtype = "BF16" if weights == "bfloat16" else "F32"
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [start, end]}
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join((len(text).to_bytes(8, "little"), text, *blobs)))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
