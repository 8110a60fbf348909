"""A Qwen3-Omni checkpoint's JSON files as typed values: the talker, Code2Wav, and what a chat's prompt is made of.

Torch-free. Reference: transformers 5.17.0, models/qwen3_omni_moe. Of the three released variants only Instruct speaks.
"""

from dataclasses import dataclass, replace
from math import prod

from vivavoce_engine.checkpoint.json_file import JsonFile
from vivavoce_engine.checkpoint.networks import (
    CODEBOOKS_MAX,
    CodecDecoderConfig,
    ExpertsConfig,
    RopeConfig,
    TalkerConfig,
    TransformerConfig,
    read_transformer,
)
from vivavoce_engine.errors import CheckpointError
from vivavoce_engine.request import Sampling, SamplingParams

MODEL_TYPE = "qwen3_omni_moe"
SAMPLE_RATE = 24000
"""Sample rate of the audio, in Hz. It is in no file of the checkpoint."""
PREDICTOR_SAMPLING = SamplingParams(temperature=1.0, top_k=50, top_p=0.8)
"""Sampling of codes 1 to 15 of a frame. It is in no file of the checkpoint."""
SPEECH_TENSORS = ("talker.", "code2wav.", "thinker.model.embed_tokens.")
"""Prefixes of the tensors that speech needs: the talker reads ids of the thinker's vocabulary."""
AXES = 3
"""Axes of a position: time, height and width."""


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """Facts about the thinker that the talker's prompt needs: ids of the chat's tokens, and the width of its states.

    A token of a sound, a picture or a video is told to the talker by the thinker's hidden state there,
    `thinker_hidden_size` values; any other token by its id.
    """

    user_token_id: int
    audio_token_id: int
    image_token_id: int
    video_token_id: int
    vision_start_token_id: int
    thinker_hidden_size: int


def must_speak(main: JsonFile) -> None:
    """Raises CheckpointError for the variants that answer in text alone."""
    if not main.value("enable_audio_output", bool, True) or not main.has("talker_config"):
        raise CheckpointError(
            f"{main.where('talker_config')} is missing: this Qwen3-Omni model answers in text alone, as the variants "
            "Thinking and Captioner do; Instruct is the one that speaks"
        )


def read_chat(main: JsonFile) -> ChatConfig:
    """Reads the ids that a chat's prompt is made of. The talker must accept a layer that the thinker has."""
    talker, thinker = main.section("talker_config"), main.section("thinker_config")
    text, layer = thinker.section("text_config"), talker.value("accept_hidden_layer", int)
    layers = text.value("num_hidden_layers", int)
    if not 0 <= layer <= layers:
        raise CheckpointError(f"{talker.where('accept_hidden_layer')} is {layer}; the thinker has {layers} layers")
    return ChatConfig(
        user_token_id=main.value("user_token_id", int),
        audio_token_id=thinker.value("audio_token_id", int),
        image_token_id=thinker.value("image_token_id", int),
        video_token_id=thinker.value("video_token_id", int),
        vision_start_token_id=thinker.value("vision_start_token_id", int),
        thinker_hidden_size=text.value("hidden_size", int),
    )


def read_talker(main: JsonFile) -> TalkerConfig:
    """Reads the talker and its code predictor."""
    file, text = main.section("talker_config"), main.section("thinker_config").section("text_config")
    stack, predictor = file.section("text_config"), file.section("code_predictor_config")
    groups, vocab = file.value("num_code_groups", int), stack.value("vocab_size", int)
    predictor.must_be("num_code_groups", groups)
    predictor.must_be("use_sliding_window", False)
    predictor.must_be("hidden_size", stack.value("hidden_size", int))
    file.must_be("thinker_hidden_size", text.value("hidden_size", int))
    if groups > CODEBOOKS_MAX:
        raise CheckpointError(f"{file.where('num_code_groups')} is {groups}; at most {CODEBOOKS_MAX} are supported")
    return TalkerConfig(
        transformer=_talker_stack(stack),
        predictor=read_transformer(predictor),
        predictor_vocab_size=predictor.value("vocab_size", int),
        num_code_groups=groups,
        vocab_size=vocab,
        text_vocab_size=text.value("vocab_size", int),
        text_hidden_size=file.value("thinker_hidden_size", int),
        text_projection_size=stack.value("intermediate_size", int),
        codec_pad_id=file.value("codec_pad_id", int),
        codec_bos_id=file.value("codec_bos_id", int),
        codec_eos_token_id=file.value("codec_eos_token_id", int),
        codec_think_id=None,
        codec_nothink_id=file.value("codec_nothink_id", int),
        codec_think_bos_id=file.value("codec_think_bos_id", int),
        codec_think_eos_id=file.value("codec_think_eos_id", int),
        codec_language_id={},
        spk_id=file.ids("speaker_id", vocab),
        spk_is_dialect={},
        reads_hidden_states=True,
    )


def _talker_stack(file: JsonFile) -> TransformerConfig:
    """Reads the talker's blocks, each with experts, and the sections of its RoPE."""
    file.must_be("use_sliding_window", False)
    file.must_be("use_qk_norm", True)
    file.must_be("decoder_sparse_step", 1)
    file.must_be("mlp_only_layers", [])
    experts = ExpertsConfig(
        count=file.value("num_experts", int),
        chosen=file.value("num_experts_per_tok", int),
        intermediate_size=file.value("moe_intermediate_size", int),
        shared_intermediate_size=file.value("shared_expert_intermediate_size", int),
        normalised=file.value("norm_topk_prob", bool, False),
    )
    if not 0 < experts.chosen <= experts.count:
        raise CheckpointError(f"{file.where('num_experts_per_tok')} is {experts.chosen}, of {experts.count} experts")
    config = read_transformer(file)
    return replace(config, experts=experts, rope=_sectioned(config.rope, file.section("rope_scaling")))


def _sectioned(rope: RopeConfig, scaling: JsonFile) -> RopeConfig:
    scaling.must_be("interleaved", True)
    sections = scaling.ints("mrope_section")
    if len(sections) != AXES or sum(sections) != rope.head_dim // 2 or AXES * max(sections[1:]) > rope.head_dim // 2:
        raise CheckpointError(
            f"{scaling.where('mrope_section')} is {list(sections)}, which does not share out {rope.head_dim // 2} "
            "frequencies among time, height and width in turn"
        )
    return replace(rope, sections=sections)


def read_codec(main: JsonFile) -> CodecDecoderConfig:
    """Reads Code2Wav."""
    file = main.section("code2wav_config")
    rates, ratios = file.ints("upsample_rates"), file.ints("upsampling_ratios")
    hidden, heads = file.value("hidden_size", int), file.value("num_attention_heads", int)
    transformer = read_transformer(file, head_dim=hidden // max(1, heads))
    if transformer.num_key_value_heads != heads or transformer.head_dim * heads != hidden:
        raise CheckpointError(f"{file.where('num_attention_heads')} is {heads}; {hidden} values are shared out by head")
    return CodecDecoderConfig(
        transformer=transformer,
        sliding_window=file.value("sliding_window", int),
        latent_dim=hidden,
        codebook_dim=hidden,
        codebook_size=file.value("codebook_size", int),
        num_quantizers=file.value("num_quantizers", int),
        num_semantic_quantizers=0,
        decoder_dim=file.value("decoder_dim", int),
        upsample_rates=rates,
        upsampling_ratios=ratios,
        sample_rate=SAMPLE_RATE,
        samples_per_frame=prod((*rates, *ratios)),
        front="mean",
        trims_start=True,
    )


def read_sampling(file: JsonFile) -> Sampling:
    """Reads the talker's default sampling from generation_config.json. That of the code predictor is fixed."""
    prefix = "talker_"
    temperature, penalty = file.value(f"{prefix}temperature", float), file.value(f"{prefix}repetition_penalty", float)
    top_k, top_p = file.value(f"{prefix}top_k", int), file.value(f"{prefix}top_p", float)
    try:
        return Sampling(SamplingParams(temperature, top_k, top_p, penalty), PREDICTOR_SAMPLING)
    except ValueError as error:
        raise CheckpointError(f"{file.where(prefix)}{error}") from error
