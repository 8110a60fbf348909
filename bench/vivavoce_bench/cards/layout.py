"""Configuration files of the Qwen3-TTS layout in small shapes. random_checkpoint.py derives the released ones."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

ShapeName = Literal["tiny", "tiny_noproj", "tiny_32"]
Kind = Literal["base", "custom_voice", "voice_design"]
SHAPES: tuple[ShapeName, ...] = get_args(ShapeName)
KINDS: tuple[Kind, ...] = get_args(Kind)
TOKENIZER = Path(__file__).parent / "tokenizer"
SPECIAL_CODES = 1024  # the talker's vocabulary consists of the codes and these
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
    # Like the 1.7B models: the predictor is narrower than the talker. The code ids are those of the released models.
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
    # Like the 0.6B models: talker and predictor have one width, so there is no projection between them.
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
    # 32 code groups of 512 entries, to catch code that assumes 16 groups, 2048 codes or the released special ids.
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
    """Content of the checkpoint's config.json."""
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
        # The released files contain many defaults that have no effect here. A loader has to ignore them.
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
    """Content of speech_tokenizer/config.json."""
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
