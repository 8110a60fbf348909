"""Talker and code predictor of the released shapes with random weights, generated on the device."""

import torch
from torch import nn
from vivavoce_engine.checkpoint.networks import ExpertsConfig, RopeConfig, TalkerConfig, TransformerConfig
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.talker import Talker

SIZES = {"0.6b": 1024, "1.7b": 2048}
"""Model → the talker's hidden size. Its MLP is three times as wide."""
OMNI = "omni"
"""The speech side of Qwen3-Omni, whose talker has experts."""
OMNI_EXPERTS = ExpertsConfig(128, 6, 384, 768, normalised=True)
SEED = 20261128


def talker_config(size: str, layers: int | None = None) -> TalkerConfig:
    """The released configuration of one of SIZES, or of OMNI. `layers` replaces the depth of both stacks, for tests of
    parts of a step."""
    if size == OMNI:
        rope = RopeConfig(1e6, 128, sections=(24, 20, 20))
        talker = TransformerConfig(1024, 2048, layers or 20, 16, 2, 1e-6, rope, OMNI_EXPERTS)
    else:
        hidden = SIZES[size]
        talker = TransformerConfig(hidden, 3 * hidden, layers or 28, 16, 8, 1e-6, RopeConfig(1e6, 128))
    predictor = TransformerConfig(1024, 3072, layers or 5, 16, 8, 1e-6, RopeConfig(1e6, 128))
    return TalkerConfig(
        transformer=talker,
        predictor=predictor,
        predictor_vocab_size=2048,
        num_code_groups=16,
        vocab_size=3072,
        text_vocab_size=1000,  # released: 151936; the cost of a look-up does not depend on it
        text_hidden_size=2048,
        text_projection_size=2048,
        codec_pad_id=2148,
        codec_bos_id=2149,
        codec_eos_token_id=2150,
        codec_think_id=2154,
        codec_nothink_id=2155,
        codec_think_bos_id=2156,
        codec_think_eos_id=2157,
        codec_language_id={"english": 2050},
        spk_id={"ryan": 3061},
        spk_is_dialect={"ryan": False},
        reads_hidden_states=size == OMNI,
    )


def random_models(config: TalkerConfig, device: torch.device, dtype: torch.dtype) -> tuple[Talker, CodePredictor]:
    """Models with random weights, rounded to `dtype`. Every call gives the same weights."""
    generator = torch.Generator(device).manual_seed(SEED)
    with torch.device(device):
        models = Talker(config), CodePredictor(config)
    for model in models:
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, device=device)
            deep = 1.0 if "norm" in name else 0.0
            scale = 0.1 if "norm" in name else 1.0 if "embedding" in name else parameter.shape[-1] ** -0.5
            parameter.data = (deep + scale * noise).to(torch.bfloat16)
    talker, predictor = models
    project_codes(talker, predictor)
    for model in models:
        for parameter in model.parameters():  # leaves out the rotations' buffers, which stay float32
            parameter.data = parameter.data.to(dtype)
        model.to(device).eval().requires_grad_(False)
    return talker, predictor


@torch.no_grad()
def project_codes(talker: Talker, predictor: CodePredictor) -> None:
    """Sets the code predictor's inputs to its projection of the code embeddings, as the loader does."""
    tables = [talker.codec_embedding, *predictor.codec_embedding][: predictor.groups - 1]
    for table, target in zip(tables, predictor.input_embedding, strict=True):
        if isinstance(predictor.projection, nn.Identity):
            target.weight.data = table.weight.data.clone()
        else:
            target.weight.data = predictor.projection(table.weight.data)
