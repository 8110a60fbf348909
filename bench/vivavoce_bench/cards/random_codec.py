"""Code2Wav of the released shape with random weights, chosen so that every part contributes to the sound."""

from dataclasses import replace

import torch
from torch import Tensor
from vivavoce_engine.checkpoint.networks import CodecDecoderConfig, RopeConfig, TransformerConfig
from vivavoce_engine.models.codec_decoder import Code2Wav, CodecDecoder, CodecRows, decoder_of

RELEASED_CODEC = CodecDecoderConfig(
    transformer=TransformerConfig(512, 1024, 8, 16, 16, 1e-5, RopeConfig(theta=1e4, head_dim=64)),
    sliding_window=72,
    latent_dim=1024,
    codebook_dim=512,
    codebook_size=2048,
    num_quantizers=16,
    num_semantic_quantizers=1,
    decoder_dim=1536,
    upsample_rates=(8, 5, 4, 3),
    upsampling_ratios=(2, 2),
    sample_rate=24000,
    samples_per_frame=1920,
)
OMNI_CODEC = replace(
    RELEASED_CODEC,
    transformer=TransformerConfig(1024, 3072, 8, 16, 16, 1e-5, RopeConfig(theta=1e4, head_dim=64)),
    codebook_dim=1024,
    num_semantic_quantizers=0,
    front="mean",
    trims_start=True,
)
"""Shapes of Qwen3-Omni's Code2Wav."""
RMS = 0.2
"""RMS of the audio. It is low enough for hardly any clipping, which would hide errors."""


def random_decoder(config: CodecDecoderConfig, device: torch.device) -> CodecDecoder:
    """Qwen3-TTS's decoder in float32 whose audio has this RMS."""
    decoder = random_code2wav(config, device)
    assert isinstance(decoder, CodecDecoder)
    return decoder


def random_code2wav(config: CodecDecoderConfig, device: torch.device) -> Code2Wav:
    """A decoder of either family, as `random_decoder`."""
    with device:
        decoder = decoder_of(config).requires_grad_(False)
    decoder.to(device)  # moves the rotations' buffer too
    torch.manual_seed(5)
    for name, parameter in decoder.named_parameters():
        parameter.copy_(_random(name, parameter))
    codes = torch.randint(config.codebook_size, (1, 8, config.num_quantizers), device=device)
    heard = CodecRows(decoder, 1, decoder.final_conv.weight).decode(
        torch.zeros(1, dtype=torch.int64, device=device), codes
    )
    gain = RMS / heard.square().mean().sqrt()
    for parameter in decoder.final_conv.parameters():
        parameter.mul_(gain)
    return decoder


def _random(name: str, parameter: Tensor) -> Tensor:
    noise = torch.randn_like(parameter)
    if name.endswith("frequency"):
        return torch.exp(noise)
    if name.endswith("magnitude"):
        return torch.exp(0.3 * noise - 1)
    if "norm" in name and name.endswith("weight"):
        return 1 + 0.1 * noise
    if name.endswith(("layer_scale", "gamma")):
        return 0.3 + 0.05 * noise
    if "codebooks" in name or name == "embedding.weight":
        return 0.5 * noise
    scale = 0.1 if name.endswith("bias") else _inputs(name, parameter) ** -0.5
    return noise * (1e-3 * scale if name.startswith("final_conv") else scale)  # not clipped before its gain is set


def _inputs(name: str, weight: Tensor) -> int:
    """Number of products per output of a layer.

    Weights are [taps, in, out] in convolutions, [taps, channels] in depthwise ones, and [out, in] in linear layers.
    """
    outputs = weight.shape[-1] if weight.dim() == 3 or "dwconv" in name else len(weight)
    return weight.numel() // outputs
