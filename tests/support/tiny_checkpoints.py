"""Small random checkpoints in the exact Qwen3-TTS layout.

    write_checkpoint(folder, "tiny", "custom_voice")

The weights are a function of tensor name and shape alone, made of integers of numpy's PCG64, so every machine
and every version writes the same bytes; the stored reference outputs rely on that. No tensor is trivial: a
forgotten bias, norm weight or codebook division changes the output. The end-of-speech row is enlarged so
that generation ends by itself, and the codec's output has an rms of about 0.2.
"""

import json
import math
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

ShapeName = Literal["tiny", "tiny_noproj", "tiny_32"]
Kind = Literal["base", "custom_voice", "voice_design"]
Weights = Literal["float32", "bfloat16"]
Array = NDArray[np.float32]
Sizes = dict[str, tuple[int, ...]]

SHAPES: tuple[ShapeName, ...] = get_args(ShapeName)
KINDS: tuple[Kind, ...] = get_args(Kind)
TOKENIZER = Path(__file__).parents[1] / "golden" / "tokenizer"

SPECIAL_CODES = 1024  # the talker's vocabulary is the codes plus these
EOS_BOOST = 2.5  # on the row of the end-of-speech code; 1 makes it as rare as any other
CODEC_LEVEL, CODEC_OFFSET = 0.08, -0.09  # of the codec's last convolution; measured
LANGUAGES = {
    "chinese": 7,
    "english": 2,
    "german": 5,
    "italian": 22,
    "portuguese": 23,
    "spanish": 6,
    "japanese": 10,
    "korean": 16,
    "french": 13,
    "russian": 21,
}
DIALECTS = {"beijing_dialect": 26, "sichuan_dialect": 14}
SPEAKERS = {
    "serena": 1018,
    "vivian": 1017,
    "uncle_fu": 962,
    "ryan": 1013,
    "aiden": 813,
    "ono_anna": 825,
    "sohee": 816,
    "eric": 827,
    "dylan": 830,
}
SPEAKER_DIALECT = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}


@dataclass(frozen=True)
class Stack:
    """The sizes of one decoder-only transformer."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Shape:
    """One family of checkpoints."""

    size: str
    talker: Stack
    predictor: Stack
    mrope_section: tuple[int, int, int]
    text_hidden: int
    groups: int
    codes: int
    codec_window: int


SHAPE: dict[ShapeName, Shape] = {
    # Like the 1.7B models: the predictor is narrower than the talker. The code ids are the real ones.
    "tiny": Shape(
        size="1b7",
        talker=Stack(hidden=64, inner=96, layers=3, heads=4, kv_heads=2, head_dim=32),
        predictor=Stack(hidden=48, inner=64, layers=2, heads=2, kv_heads=1, head_dim=32),
        mrope_section=(6, 5, 5),
        text_hidden=80,
        groups=16,
        codes=2048,
        codec_window=8,
    ),
    # Like the 0.6B models: both have one width, so there is no projection between them.
    "tiny_noproj": Shape(
        size="0b6",
        talker=Stack(hidden=48, inner=80, layers=2, heads=4, kv_heads=1, head_dim=16),
        predictor=Stack(hidden=48, inner=64, layers=2, heads=4, kv_heads=2, head_dim=16),
        mrope_section=(4, 2, 2),
        text_hidden=64,
        groups=16,
        codes=2048,
        codec_window=72,
    ),
    # 32 code groups of 512 entries: nothing may assume 16 groups, 2048 codes or the released special ids.
    "tiny_32": Shape(
        size="1b7",
        talker=Stack(hidden=64, inner=96, layers=2, heads=2, kv_heads=2, head_dim=32),
        predictor=Stack(hidden=32, inner=64, layers=2, heads=2, kv_heads=1, head_dim=16),
        mrope_section=(6, 5, 5),
        text_hidden=48,
        groups=32,
        codes=512,
        codec_window=24,
    ),
}


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


GENERATION_CONFIG = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}
PROCESSOR_CONFIG = {
    "padding_side": "left",
    "padding_value": 0.0,
    "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}
CODEC_CONFIGURATION = {"framework": "pytorch", "task": "feature-extraction", "allow_remote": True}
CODEC_PROCESSOR_CONFIG = {
    "chunk_length_s": None,
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "overlap": None,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 24000,
}


def model_config(shape: ShapeName, kind: Kind) -> dict[str, Any]:
    """What config.json of the checkpoint holds."""
    vocabulary = json.loads((TOKENIZER / "vocab.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((TOKENIZER / "tokenizer_config.json").read_text(encoding="utf-8"))
    ids = {entry["content"]: int(key) for key, entry in tokenizer["added_tokens_decoder"].items()}
    config: dict[str, Any] = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "assistant_token_id": vocabulary["assistant"],
        "im_end_token_id": ids["<|im_end|>"],
        "im_start_token_id": ids["<|im_start|>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": SHAPE[shape].size,
        "tts_model_type": kind,
    }
    if kind == "base":
        config["speaker_encoder_config"] = {
            "enc_dim": SHAPE[shape].talker.hidden,
            "sample_rate": 24000,
            "enc_channels": [32, 32, 32, 32, 96],
            "enc_attention_channels": 16,
            "enc_se_channels": 16,
        }
    text_vocabulary = len(vocabulary) + len(ids) + 7  # a few unused rows, as in the released models
    config["talker_config"] = _talker_config(SHAPE[shape], kind, text_vocabulary)
    config["transformers_version"] = "4.57.3"
    return config


def _talker_config(shape: Shape, kind: Kind, text_vocabulary: int) -> dict[str, Any]:
    custom = kind == "custom_voice"
    languages = {**LANGUAGES, **(DIALECTS if custom else {})}
    speakers = SPEAKERS if custom else {}
    return {
        "attention_bias": False,
        "attention_dropout": 0,
        "code_predictor_config": _predictor_config(shape),
        "codec_bos_id": shape.codes + 101,
        "codec_eos_token_id": shape.codes + 102,
        "codec_think_id": shape.codes + 106,
        "codec_language_id": {name: shape.codes + offset for name, offset in languages.items()},
        "codec_nothink_id": shape.codes + 107,
        "codec_pad_id": shape.codes + 100,
        "codec_think_bos_id": shape.codes + 108,
        "codec_think_eos_id": shape.codes + 109,
        "spk_id": {name: shape.codes + offset for name, offset in speakers.items()},
        "spk_is_dialect": {name: SPEAKER_DIALECT.get(name, False) for name in speakers},
        **_stack_config(shape.talker),
        "initializer_range": 0.02,
        "max_position_embeddings": 32768,
        "model_type": "qwen3_tts_talker",
        "num_code_groups": shape.groups,
        "position_id_per_seconds": 13,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": list(shape.mrope_section),
            "rope_type": "default",
            "type": "default",
        },
        "text_hidden_size": shape.text_hidden,
        "text_vocab_size": text_vocabulary,
        "vocab_size": shape.codes + SPECIAL_CODES,
    }


def _predictor_config(shape: Shape) -> dict[str, Any]:
    return {
        # the released files spell out many defaults that mean nothing here; a loader has to pass over them
        "_name_or_path": "",
        "architectures": None,
        "attention_bias": False,
        "attention_dropout": 0,
        "do_sample": False,
        "eos_token_id": None,
        "layer_types": ["full_attention"] * shape.predictor.layers,
        "max_length": 20,
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "model_type": "qwen3_tts_talker_code_predictor",
        "num_code_groups": shape.groups,
        "pad_token_id": None,
        "rope_scaling": None,
        "temperature": 1.0,
        "tie_word_embeddings": False,
        "top_k": 50,
        "torch_dtype": None,
        "vocab_size": shape.codes,
        **_stack_config(shape.predictor),
    }


def _stack_config(stack: Stack) -> dict[str, Any]:
    return {
        "head_dim": stack.head_dim,
        "hidden_act": "silu",
        "hidden_size": stack.hidden,
        "intermediate_size": stack.inner,
        "num_attention_heads": stack.heads,
        "num_hidden_layers": stack.layers,
        "num_key_value_heads": stack.kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
    }


def codec_config(shape: ShapeName) -> dict[str, Any]:
    """What speech_tokenizer/config.json holds."""
    codes, groups = SHAPE[shape].codes, SHAPE[shape].groups
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": groups,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "decoder_config": _decoder_config(codes, groups, SHAPE[shape].codec_window),
        "encoder_config": _encoder_config(codes),
        "transformers_version": "4.57.3",
    }


def _decoder_config(codes: int, groups: int, window: int) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "latent_dim": 32,
        "codebook_dim": 32,
        "codebook_size": codes,
        "decoder_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 24,
        "intermediate_size": 40,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "head_dim": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_quantizers": groups,
        "num_semantic_quantizers": 1,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "semantic_codebook_size": 2 * codes,  # ignored by the reference, and wrong in the released files too
        "sliding_window": window,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": 32,
    }


def _encoder_config(codes: int) -> dict[str, Any]:
    return {
        "_frame_rate": 12.5,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "audio_channels": 1,
        "codebook_dim": 16,
        "codebook_size": codes,
        "compress": 2,
        "dilation_growth_rate": 2,
        "dtype": "float32",
        "head_dim": 16,
        "hidden_act": "gelu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "kernel_size": 7,
        "last_kernel_size": 3,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-05,
        "normalize": False,
        "num_attention_heads": 2,
        "num_filters": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_quantizers": 32,
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10000.0,
        "sampling_rate": 24000,
        "sliding_window": 250,
        "transformers_version": "4.57.0.dev0",
        "trim_right_ratio": 1.0,
        "upsample_groups": 32,
        "upsampling_ratios": [8, 6, 5, 4],
        "use_cache": False,
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "use_streaming": False,
        "vector_quantization_hidden_dimension": 16,
    }


# ---- tensor names and sizes


def model_sizes(config: dict[str, Any]) -> Sizes:
    """Name and size of every tensor of model.safetensors."""
    talker = config["talker_config"]
    predictor = talker["code_predictor_config"]
    hidden, text, inner = talker["hidden_size"], talker["text_hidden_size"], predictor["hidden_size"]
    sizes: Sizes = {
        "talker.model.text_embedding.weight": (talker["text_vocab_size"], text),
        "talker.model.codec_embedding.weight": (talker["vocab_size"], hidden),
        **_linear("talker.text_projection.linear_fc1", text, text),
        **_linear("talker.text_projection.linear_fc2", hidden, text),
        **_stack_sizes("talker.model", talker),
        "talker.codec_head.weight": (talker["vocab_size"], hidden),
        **_stack_sizes("talker.code_predictor.model", predictor),
    }
    for group in range(talker["num_code_groups"] - 1):
        codes = predictor["vocab_size"]
        # the embedding feeds the talker too, so it is as wide as the talker
        sizes[f"talker.code_predictor.model.codec_embedding.{group}.weight"] = (codes, hidden)
        sizes[f"talker.code_predictor.lm_head.{group}.weight"] = (codes, inner)
    if inner != hidden:
        sizes |= _linear("talker.code_predictor.small_to_mtp_projection", inner, hidden)
    if "speaker_encoder_config" in config:
        sizes |= _speaker_encoder_sizes(config["speaker_encoder_config"])
    return sizes


def _linear(name: str, *size: int) -> Sizes:
    return {f"{name}.weight": size, f"{name}.bias": (size[0],)}


def _stack_sizes(prefix: str, config: dict[str, Any]) -> Sizes:
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    sizes: Sizes = {f"{prefix}.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        sizes |= {
            f"{prefix}.layers.{layer}.{name}.weight": size
            for name, size in {
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (queries, hidden),
                "self_attn.k_proj": (keys, hidden),
                "self_attn.v_proj": (keys, hidden),
                "self_attn.o_proj": (hidden, queries),
                "self_attn.q_norm": (head,),
                "self_attn.k_norm": (head,),
                "mlp.gate_proj": (inner, hidden),
                "mlp.up_proj": (inner, hidden),
                "mlp.down_proj": (hidden, inner),
            }.items()
        }
    return sizes


def _speaker_encoder_sizes(config: dict[str, Any]) -> Sizes:
    mel, res2net_scale = 128, 8  # not in the released files: defaults of the reference
    width, merged = config["enc_channels"][0], config["enc_channels"][-1]
    attention, squeeze = config["enc_attention_channels"], config["enc_se_channels"]
    chunk = width // res2net_scale
    sizes = _linear("speaker_encoder.blocks.0.conv", width, mel, 5)
    for block in (1, 2, 3):
        prefix = f"speaker_encoder.blocks.{block}"
        sizes |= _linear(f"{prefix}.tdnn1.conv", width, width, 1)
        for part in range(res2net_scale - 1):
            sizes |= _linear(f"{prefix}.res2net_block.blocks.{part}.conv", chunk, chunk, 3)
        sizes |= _linear(f"{prefix}.tdnn2.conv", width, width, 1)
        sizes |= _linear(f"{prefix}.se_block.conv1", squeeze, width, 1)
        sizes |= _linear(f"{prefix}.se_block.conv2", width, squeeze, 1)
    sizes |= _linear("speaker_encoder.mfa.conv", merged, 3 * width, 1)
    sizes |= _linear("speaker_encoder.asp.tdnn.conv", attention, 3 * merged, 1)
    sizes |= _linear("speaker_encoder.asp.conv", merged, attention, 1)
    return sizes | _linear("speaker_encoder.fc", config["enc_dim"], 2 * merged, 1)


def codec_sizes(config: dict[str, Any]) -> Sizes:
    """Name and size of every tensor of speech_tokenizer/model.safetensors."""
    return _decoder_sizes(config["decoder_config"]) | _encoder_sizes(config["encoder_config"])


def _decoder_sizes(config: dict[str, Any]) -> Sizes:
    book, latent, hidden = config["codebook_dim"], config["latent_dim"], config["hidden_size"]
    entry = (config["codebook_size"], book // 2)
    sizes: Sizes = {}
    for part, books in (("rvq_first", 1), ("rvq_rest", config["num_quantizers"] - 1)):
        prefix = f"decoder.quantizer.{part}"
        sizes[f"{prefix}.input_proj.weight"] = (book // 2, book, 1)
        sizes[f"{prefix}.output_proj.weight"] = (book, book // 2, 1)
        for index in range(books):
            sizes[f"{prefix}.vq.layers.{index}._codebook.cluster_usage"] = entry[:1]
            sizes[f"{prefix}.vq.layers.{index}._codebook.embedding_sum"] = entry
    sizes |= _linear("decoder.pre_conv.conv", latent, book, 3)
    sizes |= _linear("decoder.pre_transformer.input_proj", hidden, latent)
    sizes |= _linear("decoder.pre_transformer.output_proj", latent, hidden)
    for name, size in _stack_sizes("decoder.pre_transformer", config).items():
        if "q_norm" not in name and "k_norm" not in name:
            sizes[name] = size
    for layer in range(config["num_hidden_layers"]):
        for scale in ("self_attn_layer_scale", "mlp_layer_scale"):
            sizes[f"decoder.pre_transformer.layers.{layer}.{scale}.scale"] = (hidden,)
    for index, ratio in enumerate(config["upsampling_ratios"]):
        sizes |= {
            f"decoder.upsample.{index}.0.conv.weight": (latent, latent, ratio),
            f"decoder.upsample.{index}.0.conv.bias": (latent,),
            f"decoder.upsample.{index}.1.gamma": (latent,),
            **_linear(f"decoder.upsample.{index}.1.dwconv.conv", latent, 1, 7),
            **_linear(f"decoder.upsample.{index}.1.norm", latent),
            **_linear(f"decoder.upsample.{index}.1.pwconv1", 4 * latent, latent),
            **_linear(f"decoder.upsample.{index}.1.pwconv2", latent, 4 * latent),
        }
    return sizes | _waveform_sizes(config["decoder_dim"], latent, config["upsample_rates"])


def _waveform_sizes(width: int, latent: int, rates: list[int]) -> Sizes:
    def snake(name: str, channels: int) -> Sizes:
        return {f"{name}.alpha": (channels,), f"{name}.beta": (channels,)}

    sizes = _linear("decoder.decoder.0.conv", width, latent, 7)
    for index, rate in enumerate(rates, start=1):
        prefix = f"decoder.decoder.{index}.block"
        sizes |= snake(f"{prefix}.0", width)
        sizes[f"{prefix}.1.conv.weight"] = (width, width // 2, 2 * rate)
        width //= 2
        sizes[f"{prefix}.1.conv.bias"] = (width,)
        for unit in (2, 3, 4):
            sizes |= snake(f"{prefix}.{unit}.act1", width)
            sizes |= _linear(f"{prefix}.{unit}.conv1.conv", width, width, 7)
            sizes |= snake(f"{prefix}.{unit}.act2", width)
            sizes |= _linear(f"{prefix}.{unit}.conv2.conv", width, width, 1)
    sizes |= snake(f"decoder.decoder.{len(rates) + 1}", width)
    return sizes | _linear(f"decoder.decoder.{len(rates) + 2}.conv", 1, width, 7)


def _encoder_sizes(config: dict[str, Any]) -> Sizes:
    width, hidden, inner = config["num_filters"], config["hidden_size"], config["intermediate_size"]
    sizes = _linear("encoder.encoder.layers.0.conv", width, 1, config["kernel_size"])
    index = 1  # three modules a stage: a residual block, an activation, a strided convolution
    for ratio in reversed(config["upsampling_ratios"]):
        sizes |= _linear(f"encoder.encoder.layers.{index}.block.1.conv", width // 2, width, 3)
        sizes |= _linear(f"encoder.encoder.layers.{index}.block.3.conv", width, width // 2, 1)
        sizes |= _linear(f"encoder.encoder.layers.{index + 2}.conv", 2 * width, width, 2 * ratio)
        width, index = 2 * width, index + 3
    sizes |= _linear(f"encoder.encoder.layers.{index + 1}.conv", hidden, width, config["last_kernel_size"])
    attention = config["num_attention_heads"] * config["head_dim"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"encoder.encoder_transformer.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj"):
            sizes[f"{prefix}.self_attn.{name}.weight"] = (attention, hidden)
        sizes[f"{prefix}.self_attn.o_proj.weight"] = (hidden, attention)
        sizes[f"{prefix}.mlp.fc1.weight"] = (inner, hidden)
        sizes[f"{prefix}.mlp.fc2.weight"] = (hidden, inner)
        sizes |= _linear(f"{prefix}.input_layernorm", hidden)
        sizes |= _linear(f"{prefix}.post_attention_layernorm", hidden)
        for scale in ("self_attn_layer_scale", "mlp_layer_scale"):
            sizes[f"{prefix}.{scale}.scale"] = (hidden,)
    sizes["encoder.downsample.conv.weight"] = (hidden, hidden, 4)
    entry = (config["codebook_size"], config["codebook_dim"])
    for part, books in (("semantic", 1), ("acoustic", config["num_quantizers"] - 1)):
        prefix = f"encoder.quantizer.{part}_residual_vector_quantizer"
        sizes[f"{prefix}.input_proj.weight"] = (entry[1], hidden, 1)
        sizes[f"{prefix}.output_proj.weight"] = (hidden, entry[1], 1)
        for book in range(books):
            sizes[f"{prefix}.layers.{book}.codebook.initialized"] = (1,)
            sizes[f"{prefix}.layers.{book}.codebook.cluster_usage"] = entry[:1]
            sizes[f"{prefix}.layers.{book}.codebook.embed_sum"] = entry
    return sizes


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
        gain = 0.01  # to the level of the embeddings that the speaker stands among
    elif name.startswith("speaker_encoder."):
        gain = math.sqrt(2)
    elif name.startswith("decoder.decoder.") and ".conv2." in name:
        gain = 0.4
    elif name.startswith("decoder.decoder.") and ".block.1." in name:
        fan_in = 2 * size[0]  # transposed: an output sample sees two of the kernel's taps
    elif name.startswith("decoder.upsample.") and ".0.conv." in name:
        fan_in = size[0]
    return _normal(name, size, gain / math.sqrt(fan_in))


# Last part of the name, or a part anywhere in it -> how to fill; the first that fits.
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
