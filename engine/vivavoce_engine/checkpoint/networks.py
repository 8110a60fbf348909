"""The shapes of a checkpoint's networks, as its configuration files state them. Torch-free.

Field names are those of the files (reference: qwen-tts 0.1.1, core/models/configuration_qwen3_tts.py and
core/tokenizer_12hz/configuration_qwen3_tts_tokenizer_v2.py; transformers 5.17.0, qwen3_omni_moe).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from vivavoce_engine.checkpoint.json_file import JsonFile
from vivavoce_engine.errors import CheckpointError

CODEBOOKS_MAX = 64
"""Most codebooks of a frame. sampling.py numbers each draw as frame * CODEBOOKS_MAX + codebook."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding.

    A multimodal RoPE has three axes: time, height and width. `sections` counts the frequencies of each, which take
    turns. Qwen3-TTS has equal positions on all of them, so its sections change nothing, and are None here.
    """

    theta: float
    head_dim: int
    factor: float = 1.0
    sections: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts in the place of a block's MLP, beside an expert that every token takes.

    Of `count` experts, each `intermediate_size` wide inside, a token takes the `chosen` likeliest. Their probabilities
    are divided by their sum if `normalised` is true (`norm_topk_prob` in the file).
    """

    count: int
    chosen: int
    intermediate_size: int
    shared_intermediate_size: int
    normalised: bool


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """One decoder-only stack of Qwen3 blocks (talker, code predictor, or the codec decoder's transformer).

    `experts` is None where each block has one MLP, which is then `intermediate_size` wide inside.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    rms_norm_eps: float
    rope: RopeConfig
    experts: ExpertsConfig | None = None

    @property
    def head_dim(self) -> int:
        return self.rope.head_dim


@dataclass(frozen=True, slots=True)
class TalkerConfig:
    """talker_config of config.json, with its code predictor.

    `text_projection_size` is the width inside text_projection, and inside Qwen3-Omni's hidden_projection.
    `codec_think_id` is None for Qwen3-Omni, which is never told a language. Its talker also reads hidden states of a
    thinker, `text_hidden_size` wide like its texts' embeddings.
    """

    transformer: TransformerConfig
    predictor: TransformerConfig
    predictor_vocab_size: int
    num_code_groups: int
    vocab_size: int
    text_vocab_size: int
    text_hidden_size: int
    text_projection_size: int
    codec_pad_id: int
    codec_bos_id: int
    codec_eos_token_id: int
    codec_think_id: int | None
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    codec_language_id: Mapping[str, int]
    spk_id: Mapping[str, int]
    spk_is_dialect: Mapping[str, str | bool]
    reads_hidden_states: bool = False

    @property
    def has_projection(self) -> bool:
        """True if talker and predictor differ in width, so that small_to_mtp_projection exists (1.7B, not 0.6B)."""
        return self.transformer.hidden_size != self.predictor.hidden_size


@dataclass(frozen=True, slots=True)
class CodecDecoderConfig:
    """decoder_config of speech_tokenizer/config.json, or code2wav_config of Qwen3-Omni's config.json.

    `front` tells how codes become the transformer's inputs. "split_rvq": two groups of codebooks, each with a
    projection, then a convolution, and projections around the transformer. "mean": the mean of one embedding a code,
    with nothing between it and the transformer. `trims_start` is true if an upsampling block drops as many samples at
    the start of the speech as at its end.
    """

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
    front: Literal["split_rvq", "mean"] = "split_rvq"
    trims_start: bool = False

    @property
    def lookahead_samples(self) -> int:
        """Samples by which the audio of a frame ends before the frame does.

        They are missing from the first piece of a speech, and never come: n frames have n * samples_per_frame -
        lookahead_samples. An upsampling block that trims its start gives nothing for its first input.
        """
        if not self.trims_start:
            return 0
        return sum(prod(self.upsample_rates[stage:]) for stage in range(len(self.upsample_rates)))


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


def read_transformer(file: JsonFile, head_dim: int | None = None) -> TransformerConfig:
    """Reads a stack of blocks, whose `head_dim` may be missing from the file if it is given here."""
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
        rope=_rope(file, head_dim),
    )


def _rope(file: JsonFile, head_dim: int | None) -> RopeConfig:
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
    return RopeConfig(file.value("rope_theta", float), file.value("head_dim", int, head_dim), factor)
