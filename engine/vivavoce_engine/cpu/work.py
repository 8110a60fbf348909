"""The arithmetic of a frame, counted from a checkpoint's shapes. Torch-free."""

from dataclasses import dataclass
from itertools import accumulate
from math import prod

from vivavoce_engine.checkpoint.networks import CodecDecoderConfig, TalkerConfig, TransformerConfig

UNITS, TAPS = 3, 7
"""Residual units of an upsampling block of Code2Wav, and the taps of their first convolution."""
KEY_BYTES = 4


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one frame of one stream. All streams of a step share the reading of weights."""

    talker_weights: int
    """Weights of the talker's products, its head included: read once."""
    predictor_weights: int
    """Weights of the code predictor's products, one head included: read in every pass."""
    passes: int
    """Passes of the code predictor: one for each code but the first."""
    position_bytes: int
    """Bytes of keys and values that the talker reads for each position before the frame."""
    code2wav_products: int
    """Multiply-adds of Code2Wav."""
    code2wav_sines: int
    """Sines of Code2Wav's activations."""


def work_of(talker: TalkerConfig, codec: CodecDecoderConfig) -> Work:
    """Counts the work of a frame."""
    stack, predictor = talker.transformer, talker.predictor
    products, sines = _waveform(codec)
    return Work(
        talker_weights=_weights(stack) + talker.vocab_size * stack.hidden_size,
        predictor_weights=_weights(predictor) + talker.predictor_vocab_size * predictor.hidden_size,
        passes=talker.num_code_groups - 1,
        position_bytes=2 * KEY_BYTES * stack.num_hidden_layers * stack.num_key_value_heads * stack.head_dim,
        code2wav_products=_latents(codec) + products,
        code2wav_sines=sines,
    )


def _weights(stack: TransformerConfig) -> int:
    """Weights of the products of a transformer's layers."""
    queries, keys = (heads * stack.head_dim for heads in (stack.num_attention_heads, stack.num_key_value_heads))
    attention = stack.hidden_size * (2 * queries + 2 * keys)
    return stack.num_hidden_layers * (attention + 3 * stack.hidden_size * stack.intermediate_size)


def _latents(codec: CodecDecoderConfig) -> int:
    """Multiply-adds of Code2Wav from the codes of a frame to its latents."""
    latent, hidden = codec.latent_dim, codec.transformer.hidden_size
    once = 3 * codec.codebook_dim * latent + codec.codebook_dim**2 + 2 * latent * hidden + _weights(codec.transformer)
    steps = [*accumulate(codec.upsampling_ratios, initial=1, func=int.__mul__)]
    upsampled = (count * latent * (latent + TAPS + 8 * latent) for count in steps[1:])
    return once + sum(upsampled)


def _waveform(codec: CodecDecoderConfig) -> tuple[int, int]:
    """Multiply-adds and sines of Code2Wav from the latents of a frame to its samples."""
    width, steps = codec.decoder_dim, prod(codec.upsampling_ratios)
    products, sines = steps * TAPS * codec.latent_dim * width, 0
    for rate in codec.upsample_rates:
        sines += steps * width
        steps *= rate
        products += steps * 2 * width * (width // 2)
        width //= 2
        products += steps * UNITS * (TAPS + 1) * width * width
        sines += steps * UNITS * 2 * width
    return products + steps * TAPS * width, sines + steps * width


RELEASED_HIDDEN_SIZE = 1024
"""Width of the narrowest released talker."""
RELEASED = {
    "0.6B": Work(443_547_648, 80_740_352, 15, 229_376, 2_479_380_480, 2_758_656),
    "1.7B": Work(1_415_577_600, 80_740_352, 15, 229_376, 2_479_380_480, 2_758_656),
}
"""Size of a released model → its work, as `work_of` counts it."""
