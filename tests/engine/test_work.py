"""The count of a frame's work: what the modules do, and the released shapes."""

from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.cpu.work import RELEASED, work_of
from vivavoce_engine.models.codec_decoder import CausalConv, CodecRows, DepthwiseConv, MonoConv, SnakeBeta
from vivavoce_engine.models.loader import load_models
from vivavoce_voice import CHECKPOINT

from tests.support.tiny_checkpoints import TTS_FILES

CONFIGS = Path(__file__).parents[1] / "assets" / "configs"
FRAMES = 3


@pytest.mark.parametrize(
    "model", ["0.6B-Base", "0.6B-CustomVoice", "1.7B-Base", "1.7B-CustomVoice", "1.7B-VoiceDesign"]
)
def test_the_released_models_work_is_that_of_their_configurations(model: str, tmp_path: Path) -> None:
    for name in TTS_FILES:
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        source = CONFIGS / (name if name != "config.json" else f"{model}/config.json")
        place.write_bytes(source.read_bytes() if source.is_file() else b"")
    checkpoint = read_checkpoint(tmp_path)
    assert work_of(checkpoint.talker, checkpoint.codec) == RELEASED[model.partition("-")[0]]


@torch.inference_mode()
def test_the_work_is_what_the_modules_do() -> None:
    checkpoint = read_checkpoint(CHECKPOINT)
    talker, predictor, decoder = load_models(checkpoint, torch.device("cpu"), torch.float32)
    work = work_of(checkpoint.talker, checkpoint.codec)

    def weights(*networks: nn.Module) -> int:
        linears = (each for network in networks for each in network.modules() if isinstance(each, nn.Linear))
        return sum(linear.weight.numel() for linear in linears)

    assert work.talker_weights == weights(talker.transformer, talker.codec_head)
    assert work.predictor_weights == weights(predictor.transformer, predictor.lm_head[0])
    assert work.passes == len(predictor.lm_head)
    done = {"products": 0, "sines": 0}

    def products(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        weight = cast("torch.Tensor", module.weight)
        width = weight.shape[0] if isinstance(module, nn.Linear) else weight.shape[-1]
        steps = output.numel() if isinstance(module, MonoConv) else output.numel() // width
        done["products"] += steps * weight.numel()

    def sines(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        done["sines"] += output.numel()

    for module in decoder.modules():
        if isinstance(module, nn.Linear | CausalConv | DepthwiseConv | MonoConv):
            module.register_forward_hook(products)
        elif isinstance(module, SnakeBeta):
            module.register_forward_hook(sines)
    rows = CodecRows(decoder, 1, talker.codec_head.weight)
    rows.decode(torch.tensor([0]), torch.zeros(1, FRAMES, checkpoint.talker.num_code_groups, dtype=torch.int64))
    assert done["sines"] == FRAMES * work.code2wav_sines
    assert done["products"] == pytest.approx(FRAMES * work.code2wav_products, rel=0.005)
