"""Checkpoints of Qwen3-Omni: what is read, which files are opened, and what is refused by name."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from vivavoce_engine.checkpoint.files import locate_checkpoint, missing_files, read_checkpoint, weight_files
from vivavoce_engine.checkpoint.networks import CodecDecoderConfig, ExpertsConfig, TransformerConfig
from vivavoce_engine.checkpoint.omni import SPEECH_TENSORS
from vivavoce_engine.checkpoint.shards import shards_of, tensor_bytes_in
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.errors import CheckpointError, EngineError, NoRoom
from vivavoce_engine.examine import check_model, check_runner
from vivavoce_engine.load import make_runner, read_model
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.codec_decoder import decoder_of
from vivavoce_engine.models.loader import load_models
from vivavoce_engine.models.talker import Talker
from vivavoce_engine.request import SamplingParams

from tests.engine.conftest import Checkpoints
from tests.support.omni_checkpoints import omni_checkpoint

CPU = torch.device("cpu")
INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
RELEASED: dict[str, dict[str, Any]] = {
    "thinker_config.text_config": {"hidden_size": 2048, "num_hidden_layers": 48, "vocab_size": 152064},
    "talker_config": {"thinker_hidden_size": 2048, "accept_hidden_layer": 24},
    "talker_config.text_config": {
        "hidden_size": 1024,
        "num_hidden_layers": 20,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 384,
        "shared_expert_intermediate_size": 768,
        "intermediate_size": 2048,
        "rope_scaling": {"interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
    },
    "talker_config.code_predictor_config": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 5,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "code2wav_config": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "decoder_dim": 1536,
    },
}
"""Section of config.json → the released values in which the tiny checkpoint differs."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return omni_checkpoint(tmp_path_factory.mktemp("omni"))


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return shutil.copytree(tiny, tmp_path / "omni")


def section_of(content: dict[str, Any], path: str) -> dict[str, Any]:
    for part in filter(None, path.split(".")):
        content = content[part]
    return content


def edit(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    change(content)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Changes the tensors of the shard that holds the talker's last tensors and Code2Wav."""
    path = folder / "model-00002-of-00002.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_models(read_checkpoint(folder), CPU, torch.float32)
    for word in words:
        assert word in str(caught.value)


# ---- values


def test_what_config_json_says_is_read(tiny: Path) -> None:
    checkpoint = read_checkpoint(tiny)
    assert (checkpoint.task, checkpoint.max_frames, checkpoint.encoder) == ("chat", 4095, None)
    assert dict(checkpoint.talker.spk_id) == {"chelsie": 2301, "ethan": 2302, "aiden": 2303}
    assert checkpoint.speakers["ethan"].sex == "male"
    assert checkpoint.talker.transformer.experts == ExpertsConfig(8, 3, 16, 24, True)
    assert checkpoint.talker.transformer.rope.sections == (4, 2, 2)
    assert checkpoint.sampling.talker == SamplingParams(0.9, 50, 1.0, 1.05)
    assert checkpoint.sampling.predictor == SamplingParams(1.0, 50, 0.8, 1.0)
    codec = checkpoint.codec
    assert (codec.sample_rate, codec.samples_per_frame, codec.lookahead_samples) == (24000, 1920, 555)
    assert checkpoint.chat is not None
    config = json.loads((tiny / "config.json").read_text(encoding="utf-8"))
    assert checkpoint.chat.thinker_hidden_size == 64
    assert checkpoint.chat.user_token_id == config["user_token_id"]
    for name in ("audio_token_id", "image_token_id", "video_token_id", "vision_start_token_id"):
        assert getattr(checkpoint.chat, name) == config["thinker_config"][name]


def test_networks_of_the_released_sizes_have_the_released_numbers_of_weights(folder: Path) -> None:
    def released(content: dict[str, Any]) -> None:
        for path, values in RELEASED.items():
            section_of(content, path).update(values)

    edit(folder, "config.json", released)
    checkpoint = read_checkpoint(folder)
    with torch.device("meta"):
        talker, predictor = Talker(checkpoint.talker), CodePredictor(checkpoint.talker)
        code2wav = decoder_of(checkpoint.codec)

    def weights(*names: str) -> int:
        return sum(p.numel() for name, p in talker.named_parameters() if any(part in name for part in names))

    experts = weights("mlp.gate_up_proj", "mlp.down_proj")
    table, all_of_it = weights("text_embedding"), weights("")
    text_projection = weights("hidden_projection")  # as large; it is folded into the table
    assert experts == 3_019_898_880
    assert all_of_it - experts - table + text_projection == 163_127_296 + normed(checkpoint.talker.transformer)
    assert table == 152064 * 1024
    inputs = sum(p.numel() for name, p in predictor.named_parameters() if "input_embedding" in name)
    total = sum(p.numel() for p in predictor.parameters())
    assert total - inputs == 141_570_304 + normed(checkpoint.talker.predictor)
    assert sum(p.numel() for p in code2wav.parameters()) == 216_016_577 + repeated(checkpoint.codec)


def normed(stack: TransformerConfig) -> int:
    """Weights of the norms of q and k that are repeated by head here, and stored once in the files."""
    heads = stack.num_attention_heads + stack.num_key_value_heads
    return stack.num_hidden_layers * (heads - 2) * stack.head_dim


def repeated(codec: CodecDecoderConfig) -> int:
    """Biases of upsampling convolutions that are repeated by sample here, and stored once in the files."""
    blocks = sum((rate - 1) * (codec.decoder_dim >> stage + 1) for stage, rate in enumerate(codec.upsample_rates))
    return blocks + sum((ratio - 1) * codec.latent_dim for ratio in codec.upsampling_ratios)


@pytest.mark.parametrize(
    ("section", "key", "value", "named"),
    [
        ("talker_config", "num_code_groups", 8, "code_predictor_config.num_code_groups"),
        ("talker_config", "accept_hidden_layer", 7, "talker_config.accept_hidden_layer"),
        ("talker_config", "thinker_hidden_size", 63, "talker_config.thinker_hidden_size"),
        ("talker_config", "speaker_id", {"chelsie": 3072}, "talker_config.speaker_id.chelsie"),
        ("talker_config", "codec_eos_token_id", None, "talker_config.codec_eos_token_id"),
        ("talker_config.text_config", "num_experts_per_tok", 9, "talker_config.text_config.num_experts_per_tok"),
        ("talker_config.text_config", "num_experts", None, "talker_config.text_config.num_experts"),
        ("talker_config.text_config", "mlp_only_layers", [0], "talker_config.text_config.mlp_only_layers"),
        ("talker_config.text_config", "decoder_sparse_step", 2, "talker_config.text_config.decoder_sparse_step"),
        ("talker_config.text_config.rope_scaling", "mrope_section", [4, 3, 2], "rope_scaling.mrope_section"),
        ("talker_config.text_config.rope_scaling", "mrope_section", [2, 3, 3], "rope_scaling.mrope_section"),
        ("talker_config.text_config.rope_scaling", "interleaved", False, "rope_scaling.interleaved"),
        ("talker_config.code_predictor_config", "hidden_size", 16, "code_predictor_config.hidden_size"),
        ("code2wav_config", "num_quantizers", 15, "the codec knows 15"),
        ("code2wav_config", "hidden_act", "gelu", "code2wav_config.hidden_act"),
        ("code2wav_config", "num_key_value_heads", 1, "code2wav_config.num_attention_heads"),
        ("thinker_config", "image_token_id", None, "thinker_config.image_token_id"),
        ("", "tts_eos_token_id", None, "tts_eos_token_id"),
        ("", "model_type", "qwen2_5_omni", "model_type is 'qwen2_5_omni', not 'qwen3_tts' or 'qwen3_omni_moe'"),
    ],
)
def test_a_wrong_value_is_named(section: str, key: str, value: Any, named: str, folder: Path) -> None:
    edit(folder, "config.json", lambda content: section_of(content, section).update({key: value}))
    refused(folder, named)


def test_impossible_sampling_is_named(folder: Path) -> None:
    edit(folder, "generation_config.json", lambda content: content.update(talker_top_p=0.0))
    refused(folder, "generation_config.json: talker_top_p")


def test_variants_without_speech_are_refused_by_name(tmp_path: Path) -> None:
    omni_checkpoint(tmp_path, text_only=True)
    refused(tmp_path, "talker_config is missing", "Thinking and Captioner", "Instruct")


# ---- shards


def test_the_thinker_s_own_shards_are_not_needed(folder: Path) -> None:
    """Its token embedding alone is read; here its other tensors move into a shard that is not there."""
    index = json.loads((folder / INDEX).read_text())
    for name in [name for name in index["weight_map"] if name.startswith("thinker.") and "embed_tokens" not in name]:
        index["weight_map"][name] = "model-00003-of-00003.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    assert missing_files(folder) == []
    assert [path.name[:11] for path in weight_files(folder)] == ["model-00001", "model-00002"]
    talker, _, _ = load_models(read_checkpoint(folder), CPU, torch.float32)
    assert talker.text_embedding.weight.shape == (448, 32)


@pytest.mark.parametrize(
    ("whole", "asked"),
    [(False, [{"ignore_patterns": ["model-*-of-*.safetensors"]}, {"allow_patterns": [FIRST]}]), (True, [{}])],
)
def test_only_the_shards_that_speak_are_downloaded(
    whole: bool, asked: list[dict[str, list[str]]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"thinker.model.embed_tokens.weight": FIRST, "thinker.lm_head.weight": SECOND}
    edit(folder, INDEX, lambda content: content.update(weight_map=places))
    seen: list[dict[str, list[str]]] = []

    def download(name: str, **patterns: list[str]) -> str:
        assert name == "owner/omni"
        seen.append(patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert locate_checkpoint("owner/omni", whole) == folder
    assert seen == asked


def test_the_bytes_of_the_speech_are_counted_by_the_headers(tiny: Path) -> None:
    tensors = {name: tensor for path in shards_of(tiny) for name, tensor in load_file(path).items()}
    everything = sum(tensor.nbytes for tensor in tensors.values())
    thinker = sum(tensor.nbytes for name, tensor in tensors.items() if name.startswith("thinker."))
    embedding = tensors["thinker.model.embed_tokens.weight"].nbytes
    assert tensor_bytes_in(shards_of(tiny)) == everything
    assert tensor_bytes_in(weight_files(tiny), SPEECH_TENSORS) == everything - thinker + embedding


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(folder, "no complete Qwen3-Omni checkpoint", "missing: model-00002-of-00002.safetensors")


@pytest.mark.parametrize("name", ["../model.safetensors", "/model.safetensors", "model.bin", 3])
def test_an_index_that_names_no_file_of_the_folder_is_refused(name: Any, folder: Path) -> None:
    edit(folder, INDEX, lambda content: content["weight_map"].update({"talker.codec_head.weight": name}))
    refused(folder, f"{INDEX}: weight_map.talker.codec_head.weight")


@pytest.mark.parametrize(
    "name",
    [
        "talker.model.layers.2.mlp.experts.5.up_proj.weight",
        "talker.model.layers.2.mlp.shared_expert_gate.weight",
        "talker.text_projection.linear_fc1.weight",
        "code2wav.code_embedding.weight",
        "code2wav.decoder.6.conv.bias",
    ],
)
def test_a_missing_tensor_is_named(name: str, folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.__delitem__(name))
    refused(folder, f"lacks tensors: {name}")


@pytest.mark.parametrize("name", ["talker.model.layers.0.mlp.experts.8.up_proj.weight", "code2wav.pre_conv.weight"])
def test_an_unexpected_tensor_is_named(name: str, folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(1)}))
    refused(folder, f"has unexpected tensors: {name}")


def test_an_expert_of_another_shape_is_refused(folder: Path) -> None:
    name = "talker.model.layers.2.mlp.experts.5.down_proj.weight"
    rewrite(folder, lambda tensors: tensors.update({name: tensors[name][:, :-1].contiguous()}))
    refused(folder, "experts", "differ in shape")


def test_a_sharded_qwen3_tts_checkpoint_is_the_same_model(checkpoints: Checkpoints, tmp_path: Path) -> None:
    whole = checkpoints("tiny", "custom_voice")
    folder = shutil.copytree(whole, tmp_path / "sharded")
    for part in (folder, folder / "speech_tokenizer"):
        tensors = load_file(part / "model.safetensors")
        (part / "model.safetensors").unlink()
        names = {name: f"model-{number % 3}.safetensors" for number, name in enumerate(sorted(tensors))}
        for file in set(names.values()):
            save_file({name: tensor for name, tensor in tensors.items() if names[name] == file}, part / file)
        (part / INDEX).write_text(json.dumps({"weight_map": names}))
        assert len(shards_of(part)) == 3
    expected, made = (load_models(read_checkpoint(path), CPU, torch.float32) for path in (whole, folder))
    for one, other in zip(expected, made, strict=True):
        state = other.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in one.state_dict().items())


# ---- loading


def test_the_memory_is_stated_before_anything_is_loaded(
    tiny: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivavoce_engine.load.GB", 1e3)  # so that rounding hides nothing
    config = EngineConfig(device="cpu", dtype="float32", max_context=64, max_streams=2)
    with caplog.at_level("INFO"):
        runner = make_runner("tiny", read_checkpoint(tiny), config)
    assert isinstance(runner, TorchRunner)
    told = " ".join(record.getMessage() for record in caplog.records)
    tensors = [each for model in runner.models.values() for each in (*model.parameters(), *model.buffers())]
    weights = {each.data_ptr(): each.nbytes for each in tensors}
    assert f"tiny takes {sum(weights.values()) / 1e3:.2f} GB of memory" in told
    assert "mixture of experts" in told


def test_a_model_larger_than_the_machine_is_refused_before_it_is_loaded(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivavoce_engine.load.memory_bytes", lambda: 1e6)
    monkeypatch.setattr("vivavoce_engine.cpu.runner.load_models", None)
    with pytest.raises(NoRoom, match=r"tiny takes 0\.\d\d GB .* this machine has 0\.00 GB"):
        make_runner("tiny", read_checkpoint(tiny), EngineConfig(device="cpu", max_context=64, max_streams=1))


def test_the_cpu_s_kernels_are_refused_by_name(tiny: Path) -> None:
    with pytest.raises(EngineError, match=r"runner native cannot be used: .* mixture of experts"):
        make_runner("tiny", read_checkpoint(tiny), EngineConfig(device="cpu", runner="native"))


def test_the_doctor_reads_a_chat_model(tiny: Path) -> None:
    (found,) = check_model("tiny", str(tiny))
    assert (found.state, found.text) == ("ok", "tiny is complete to speak (chat, 3 speakers, 0.01 GB).")
    (found,) = check_runner(EngineConfig(device="cpu"), {"tiny": str(tiny)})
    assert found.state == "warning"
    assert "the torch runner on cpu" in found.text
    assert "mixture of experts" in found.text


def test_settings_of_words_and_phrases_leave_a_chat_model_alone(tiny: Path) -> None:
    config = EngineConfig(device="cpu", alignment_heads="27.15", alignment_offset_ms=0.0)
    model = read_model(str(tiny), config, identify=True)
    assert (model.info.task, model.info.word_times) == ("chat", False)
    assert isinstance(model.load, partial)
    assert model.load.args[3] is None, "no file is read for an identity"
