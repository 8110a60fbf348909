"""Base checkpoints: encoders as released, and errors that name the file at fault."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from vivavoce_engine import CheckpointError
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.models.codec_encoder import CodecEncoder
from vivavoce_engine.models.loader import load_encoders, load_models
from vivavoce_engine.models.speaker_encoder import SpeakerEncoder

from tests.engine.conftest import Checkpoints

CONFIGS = Path(__file__).parents[1] / "assets/configs"
MAIN, CODEC = "config.json", "speech_tokenizer/config.json"
WEIGHTS, CODEC_WEIGHTS = "model.safetensors", "speech_tokenizer/model.safetensors"
CPU = torch.device("cpu")


@pytest.fixture
def folder(checkpoints: Checkpoints, tmp_path: Path) -> Path:
    """A Base checkpoint to spoil."""
    return shutil.copytree(checkpoints("tiny", "base"), tmp_path / "checkpoint")


def load(folder: Path) -> tuple[SpeakerEncoder, CodecEncoder]:
    checkpoint = read_checkpoint(folder)
    assert checkpoint.encoder is not None
    return load_encoders(folder, checkpoint.encoder, CPU)


@pytest.mark.parametrize(("name", "size"), [("0.6B-Base", 1024), ("1.7B-Base", 2048)])
def test_the_released_speaker_encoder(name: str, size: int, folder: Path) -> None:
    """Its 76 tensors, most of whose sizes are in no file."""
    shutil.copyfile(CONFIGS / name / MAIN, folder / MAIN)
    shutil.copyfile(CONFIGS / CODEC, folder / CODEC)
    encoder = read_checkpoint(folder).encoder
    assert encoder is not None
    assert encoder.codec.num_quantizers == 16
    with torch.device("meta"):
        state = SpeakerEncoder(encoder.speaker).state_dict()
    assert len(state) == 76
    assert sum(value.numel() for value in state.values()) == {1024: 8_854_336, 2048: 12_001_088}[size]
    assert state["blocks.2.res2net_block.blocks.6.conv.weight"].shape == (64, 64, 3)
    assert state["fc.weight"].shape == (size, 3072, 1)


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design"])
def test_other_checkpoints_have_no_encoder(kind: Any, checkpoints: Checkpoints) -> None:
    assert read_checkpoint(checkpoints("tiny", kind)).encoder is None


def test_the_encoder_needs_the_talker_no_more_than_the_talker_needs_it(folder: Path) -> None:
    """Each half of a file is read without the other."""
    (speaker, _), (talker, _, _) = load(folder), load_models(read_checkpoint(folder), CPU, torch.float32)
    stored = load_file(folder / WEIGHTS)
    torch.testing.assert_close(speaker.state_dict()["fc.weight"], stored["speaker_encoder.fc.weight"].float())
    torch.testing.assert_close(talker.codec_head.weight, stored["talker.codec_head.weight"].float(), check_dtype=False)


def no_speaker_config(config: dict[str, Any]) -> None:
    del config["speaker_encoder_config"]


BAD_CONFIGS: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    (MAIN, no_speaker_config, "speaker_encoder_config must be dict"),
    (MAIN, lambda config: config["speaker_encoder_config"].update(enc_dim=65), "enc_dim is 65; the talker takes 64"),
    (MAIN, lambda config: config["speaker_encoder_config"].update(sample_rate=16000), "only 24000 is supported"),
    (MAIN, lambda config: config["speaker_encoder_config"].update(enc_dilations=[1, 2]), "differ in length"),
    (MAIN, lambda config: config["speaker_encoder_config"].update(enc_channels=[32, 0]), "must be positive integers"),
    (MAIN, lambda config: config["speaker_encoder_config"].update(enc_se_channels=17), "do not fit config.json"),
    (MAIN, lambda config: config["speaker_encoder_config"].update(enc_channels=[32] * 5), "do not fit config.json"),
    (CODEC, lambda config: config.update(input_sample_rate=16000), "input_sample_rate is 16000"),
    (CODEC, lambda config: config.update(encoder_valid_num_quantizers=8), "encoder_valid_num_quantizers is 8"),
    (CODEC, lambda config: config.update(encoder_config=None), "encoder_config must be dict"),
    (CODEC, lambda config: config["encoder_config"].update(hidden_size="x"), "encoder_config: "),
    (CODEC, lambda config: config["encoder_config"].update(num_attention_heads=3), "encoder_config: "),
    (CODEC, lambda config: config["encoder_config"].update(codebook_dim=17), "do not fit config.json"),
    (CODEC, lambda config: config["encoder_config"].update(num_hidden_layers=3), "lacks tensors: encoder.encoder_tr"),
]


@pytest.mark.parametrize(("name", "spoil", "message"), BAD_CONFIGS)
def test_a_config_at_fault_is_named(
    folder: Path, name: str, spoil: Callable[[dict[str, Any]], object], message: str
) -> None:
    config = json.loads((folder / name).read_text(encoding="utf-8"))
    spoil(config)
    (folder / name).write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError) as error:
        load(folder)
    assert message in str(error.value)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (WEIGHTS, "speaker_encoder.fc.weight"),
        (WEIGHTS, "speaker_encoder.blocks.1.se_block.conv1.bias"),
        (CODEC_WEIGHTS, "encoder.downsample.conv.weight"),
        (CODEC_WEIGHTS, "encoder.quantizer.acoustic_residual_vector_quantizer.layers.14.codebook.embed_sum"),
    ],
)
def test_a_missing_a_strange_and_a_misshapen_tensor_are_named(folder: Path, file: str, name: str) -> None:
    tensors = load_file(folder / file)
    kept = tensors.pop(name)
    save_file(tensors, folder / file)
    with pytest.raises(CheckpointError, match=f"lacks tensors: {name}"):
        load(folder)
    save_file({**tensors, name: kept, f"{name}2": kept.clone()}, folder / file)
    if ".layers.14." not in name:  # more codebooks than are spoken are no surprise
        with pytest.raises(CheckpointError, match=f"has unexpected tensors: {name}2"):
            load(folder)
    save_file({**tensors, name: torch.zeros(3)}, folder / file)
    with pytest.raises(CheckpointError, match=r"do not fit config\.json"):
        load(folder)
