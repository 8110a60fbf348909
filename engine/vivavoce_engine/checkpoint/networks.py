"""The shapes of a checkpoint's networks, as its configuration files state them. Torch-free.

Field names are those of the files (reference: qwen-tts 0.1.1, core/models/configuration_qwen3_tts.py and
core/tokenizer_12hz/configuration_qwen3_tts_tokenizer_v2.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vivavoce_engine.checkpoint.json_file import JsonFile
from vivavoce_engine.errors import CheckpointError

CODEBOOKS_MAX = 64
"""Most codebooks of a frame. sampling.py numbers each draw as frame * CODEBOOKS_MAX + codebook."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding.

    The talker's multimodal RoPE has three axes, which carry equal positions in speech synthesis. `mrope_section` and
    `interleaved` therefore change nothing and are not kept. A linear scaling factor does, and is kept.
    """

    theta: float
    head_dim: int
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """One decoder-only stack of Qwen3 blocks (talker, code predictor, or the codec decoder's transformer)."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    rms_norm_eps: float
    rope: RopeConfig

    @property
    def head_dim(self) -> int:
        return self.rope.head_dim


@dataclass(frozen=True, slots=True)
class TalkerConfig:
    """talker_config of config.json, with its code predictor."""

    transformer: TransformerConfig
    predictor: TransformerConfig
    predictor_vocab_size: int
    num_code_groups: int
    vocab_size: int
    text_vocab_size: int
    text_hidden_size: int
    codec_pad_id: int
    codec_bos_id: int
    codec_eos_token_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    codec_language_id: Mapping[str, int]
    spk_id: Mapping[str, int]
    spk_is_dialect: Mapping[str, str | bool]

    @property
    def has_projection(self) -> bool:
        """True if talker and predictor differ in width, so that small_to_mtp_projection exists (1.7B, not 0.6B)."""
        return self.transformer.hidden_size != self.predictor.hidden_size


@dataclass(frozen=True, slots=True)
class CodecDecoderConfig:
    """decoder_config of speech_tokenizer/config.json."""

    transformer: TransformerConfig
    sliding_window: int
    latent_dim: int
    codebook_dim: int
    codebook_size: int
    num_quantizers: int
    num_semantic_quantizers: int
    decoder_dim: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]
    sample_rate: int
    samples_per_frame: int


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    """speaker_encoder_config of config.json. Values that released files omit have the reference class's defaults."""

    embedding_size: int
    mel_bins: int
    channels: tuple[int, ...]
    kernel_sizes: tuple[int, ...]
    dilations: tuple[int, ...]
    attention_channels: int
    res2net_scale: int
    se_channels: int


@dataclass(frozen=True, slots=True)
class CodecEncoderConfig:
    """The encoding half of speech_tokenizer/config.json. `mimi` is its encoder_config, the arguments of MimiConfig."""

    mimi: Mapping[str, Any]
    num_quantizers: int


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Configuration of the two encoders of reference audio, which only Base checkpoints have."""

    speaker: SpeakerEncoderConfig
    codec: CodecEncoderConfig


def read_transformer(file: JsonFile) -> TransformerConfig:
    file.must_be("hidden_act", "silu")
    file.must_be("attention_bias", False)
    heads, kv_heads = file.value("num_attention_heads", int), file.value("num_key_value_heads", int)
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise CheckpointError(
            f"{file.where('num_attention_heads')} is {heads}, which is no multiple of num_key_value_heads, {kv_heads}"
        )
    return TransformerConfig(
        hidden_size=file.value("hidden_size", int),
        intermediate_size=file.value("intermediate_size", int),
        num_hidden_layers=file.value("num_hidden_layers", int),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=file.value("rms_norm_eps", float),
        rope=_rope(file),
    )


def _rope(file: JsonFile) -> RopeConfig:
    factor = 1.0
    if file.has("rope_scaling"):
        scaling = file.section("rope_scaling")
        kind = scaling.value("rope_type", str, scaling.value("type", str, "default"))
        if kind == "linear":
            factor = scaling.value("factor", float)
        elif kind != "default":
            raise CheckpointError(
                f"{scaling.where('rope_type')} is {kind!r}; only 'default' and 'linear' are supported"
            )
    return RopeConfig(file.value("rope_theta", float), file.value("head_dim", int), factor)
