"""Checkpoint folders: the released models' values, and a clear error for each fault of a folder.

tests/assets/configs holds the JSON files of the released models; what differs between them is in a folder each.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import huggingface_hub
import huggingface_hub.constants
import numpy as np
import pytest
import torch
import vivavoce_voice
from huggingface_hub.errors import OfflineModeIsEnabled
from safetensors.numpy import load_file, save_file
from vivavoce_bench.cards.random_codec import RELEASED_CODEC
from vivavoce_engine import CheckpointError, EngineConfig, ReadableText, Sampling, SamplingParams, SpeakerInfo
from vivavoce_engine.checkpoint.files import Checkpoint, locate_checkpoint, read_checkpoint
from vivavoce_engine.checkpoint.networks import RopeConfig, TransformerConfig
from vivavoce_engine.load import load_engine
from vivavoce_engine.model import model_info
from vivavoce_engine.models.loader import load_models
from vivavoce_engine.text.prompt import TextFrontend

from tests.engine.conftest import Checkpoints
from tests.support.tiny_checkpoints import TTS_FILES, write_checkpoint

CONFIGS = Path(__file__).parents[1] / "assets" / "configs"
CPU = torch.device("cpu")
RELEASED = ("0.6B-Base", "0.6B-CustomVoice", "1.7B-Base", "1.7B-CustomVoice", "1.7B-VoiceDesign")
MAIN, CODEC, GENERATION = "config.json", "speech_tokenizer/config.json", "generation_config.json"
WEIGHTS, CODEC_WEIGHTS = "model.safetensors", "speech_tokenizer/model.safetensors"


def released_folder(path: Path, model: str = "1.7B-CustomVoice") -> Path:
    """A released model without its weights and vocabulary, which are empty files."""
    for name in TTS_FILES:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
    shutil.copyfile(CONFIGS / model / MAIN, path / MAIN)
    for name in (CODEC, GENERATION):
        shutil.copyfile(CONFIGS / name, path / name)
    return path


def edit(folder: Path, name: str, key: str, value: Any = None) -> None:
    """Sets one value of a JSON file, whose key has dots; None removes it."""
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    *sections, last = key.split(".")
    section = content
    for part in sections:
        section = section[part]
    if value is None:
        del section[last]
    else:
        section[last] = value
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def refused(folder: Path, *names: str) -> None:
    """The folder is no checkpoint, and the error names the folder and all of `names`."""
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(folder)
    for name in (str(folder), *names):
        assert name in str(error.value)


# ---- the released models


@pytest.mark.parametrize("model", RELEASED)
def test_released_models_have_the_values_that_were_published(model: str, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(released_folder(tmp_path / model, model))
    large = model.startswith("1.7B")
    talker = checkpoint.talker
    rope = RopeConfig(theta=1e6, head_dim=128)
    assert checkpoint.path == tmp_path / model
    assert checkpoint.model_size == ("1b7" if large else "0b6")
    assert checkpoint.max_new_tokens == 8192
    assert checkpoint.sampling == Sampling(
        SamplingParams(temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05),
        SamplingParams(temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.0),
    )
    assert special_ids(checkpoint) == (151644, 151645, 77091, 151671, 151672, 151673)
    hidden, intermediate = (2048, 6144) if large else (1024, 3072)
    assert talker.transformer == TransformerConfig(hidden, intermediate, 28, 16, 8, 1e-6, rope)
    assert talker.predictor == TransformerConfig(1024, 3072, 5, 16, 8, 1e-6, rope)
    assert talker.has_projection == large
    assert (talker.predictor_vocab_size, talker.num_code_groups, talker.vocab_size) == (2048, 16, 3072)
    assert (talker.text_vocab_size, talker.text_hidden_size) == (151936, 2048)
    assert (talker.codec_pad_id, talker.codec_bos_id, talker.codec_eos_token_id) == (2148, 2149, 2150)
    assert (talker.codec_think_id, talker.codec_nothink_id) == (2154, 2155)
    assert (talker.codec_think_bos_id, talker.codec_think_eos_id) == (2156, 2157)


def special_ids(checkpoint: Checkpoint) -> tuple[int, ...]:
    return (
        checkpoint.im_start_token_id,
        checkpoint.im_end_token_id,
        checkpoint.assistant_token_id,
        checkpoint.tts_pad_token_id,
        checkpoint.tts_bos_token_id,
        checkpoint.tts_eos_token_id,
    )


def test_the_released_codec_has_the_values_that_were_published(tmp_path: Path) -> None:
    assert read_checkpoint(released_folder(tmp_path)).codec == RELEASED_CODEC


@pytest.mark.parametrize(
    ("model", "task", "speakers", "languages", "takes_instructions"),
    [
        ("0.6B-Base", "base", 0, 10, False),
        ("0.6B-CustomVoice", "custom_voice", 9, 12, False),
        ("1.7B-Base", "base", 0, 10, False),
        ("1.7B-CustomVoice", "custom_voice", 9, 12, True),
        ("1.7B-VoiceDesign", "voice_design", 0, 10, True),
    ],
)
def test_released_models_differ_in_task_voices_and_instructions(
    model: str, task: str, speakers: int, languages: int, takes_instructions: bool, tmp_path: Path
) -> None:
    checkpoint = read_checkpoint(released_folder(tmp_path, model))
    assert (checkpoint.task, checkpoint.takes_instructions) == (task, takes_instructions)
    talker = checkpoint.talker
    assert (len(talker.spk_id), len(talker.spk_is_dialect), len(talker.codec_language_id)) == (
        *(speakers, speakers),
        languages,
    )
    assert (talker.codec_language_id["english"], talker.codec_language_id["russian"]) == (2050, 2069)
    if speakers:
        assert (talker.spk_id["ryan"], talker.spk_id["serena"], talker.spk_id["dylan"]) == (3061, 3066, 2878)
        assert (talker.spk_is_dialect["eric"], talker.spk_is_dialect["ryan"]) == ("sichuan_dialect", False)


def test_greedy_defaults_of_a_checkpoint_are_temperature_zero(tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    edit(folder, GENERATION, "do_sample", False)
    sampling = read_checkpoint(folder).sampling
    assert (sampling.talker.temperature, sampling.predictor.temperature) == (0, 0.9)
    edit(folder, GENERATION, "subtalker_dosample", False)
    assert read_checkpoint(folder).sampling.predictor.temperature == 0


@pytest.mark.parametrize("stack", ["talker_config", "talker_config.code_predictor_config"])
def test_a_linear_rope_factor_is_kept(stack: str, tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    edit(folder, MAIN, f"{stack}.rope_scaling", {"rope_type": "linear", "factor": 4})
    talker = read_checkpoint(folder).talker
    factors = (talker.transformer.rope.factor, talker.predictor.rope.factor)
    assert factors == ((4.0, 1.0) if stack == "talker_config" else (1.0, 4.0))


# ---- folders


@pytest.mark.parametrize("name", TTS_FILES)
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    (folder / name).unlink()
    refused(folder, f"missing: {name}")


def test_all_missing_files_are_named_at_once(tmp_path: Path) -> None:
    refused(tmp_path, *TTS_FILES)


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(tmp_path / "file", "not a folder")
    refused(tmp_path / "nowhere", "not a folder")


@pytest.mark.parametrize("part", ["model.safetensors.incomplete", ".cache/huggingface/download/x.incomplete"])
def test_a_half_finished_download_is_refused(part: str, tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    (folder / part).parent.mkdir(parents=True, exist_ok=True)
    (folder / part).touch()
    refused(folder, "half-finished download", part.rpartition("/")[2])


# ---- JSON


@pytest.mark.parametrize("name", [MAIN, CODEC, GENERATION])
@pytest.mark.parametrize("content", ["", '{"model_type": ', "not JSON", "\udcff\udcfe"])
def test_broken_json_is_named(name: str, content: str, tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    (folder / name).write_bytes(content.encode("utf-8", errors="surrogateescape"))
    refused(folder, name, "not readable JSON")


@pytest.mark.parametrize("name", [MAIN, CODEC, GENERATION])
@pytest.mark.parametrize("content", ["[]", "3", "null"])
def test_json_that_is_no_object_is_named(name: str, content: str, tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    (folder / name).write_text(content, encoding="utf-8")
    refused(folder, name, "no JSON object")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((MAIN, key) for key in ("model_type", "tts_model_type", "tts_model_size", "assistant_token_id")),
        *((MAIN, f"tts_{token}_token_id") for token in ("pad", "bos", "eos")),
        *((MAIN, f"im_{token}_token_id") for token in ("start", "end")),
        (MAIN, "talker_config"),
        (MAIN, "talker_config.code_predictor_config"),
        *(
            (MAIN, f"talker_config.{key}")
            for key in ("hidden_size", "head_dim", "rope_theta", "rms_norm_eps", "num_code_groups", "text_vocab_size")
        ),
        *((MAIN, f"talker_config.{key}") for key in ("codec_eos_token_id", "codec_language_id", "spk_id")),
        *((MAIN, f"talker_config.code_predictor_config.{key}") for key in ("vocab_size", "num_hidden_layers")),
        *((CODEC, key) for key in ("model_type", "decoder_config", "decode_upsample_rate", "output_sample_rate")),
        *((CODEC, f"decoder_config.{key}") for key in ("sliding_window", "upsample_rates", "codebook_dim")),
        *((GENERATION, key) for key in ("temperature", "subtalker_top_k", "repetition_penalty", "max_new_tokens")),
    ],
)
def test_a_missing_key_is_named_with_its_file(name: str, key: str, tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    edit(folder, name, key)
    refused(folder, f"{folder / name}: {key}")


@pytest.mark.parametrize(
    ("name", "key", "value", "wanted"),
    [
        (MAIN, "assistant_token_id", "77091", "must be int, not '77091'"),
        (MAIN, "assistant_token_id", True, "must be int, not True"),
        (MAIN, "assistant_token_id", 7.0, "must be int, not 7.0"),
        (MAIN, "tts_model_size", 1.7, "must be str, not 1.7"),
        (MAIN, "talker_config", [], "must be dict, not []"),
        (GENERATION, "max_utterance_chars", "180", "must be int, not '180'"),
        (GENERATION, "max_utterance_chars", 0, "must be above 0, not 0"),
        (GENERATION, "max_context_chars", 0, "must be above 0, not 0"),
        (GENERATION, "max_context_chars", -900, "must be above 0, not -900"),
        (GENERATION, "max_context_chars", "900", "must be int, not '900'"),
        (GENERATION, "max_context_chars", 900.0, "must be int, not 900.0"),
        (GENERATION, "max_context_chars", True, "must be int, not True"),
        (GENERATION, "max_context_chars", 900, "has no effect without max_utterance_chars"),
        (GENERATION, "text", "words", "must be dict, not 'words'"),
        (MAIN, "talker_config.hidden_size", "big", "must be int, not 'big'"),
        (MAIN, "talker_config.rope_theta", "1e6", "must be float, not '1e6'"),
        (MAIN, "talker_config.spk_id", ["ryan"], "must be dict, not ['ryan']"),
        (CODEC, "decoder_config.upsample_rates", 8, "must be list, not 8"),
        (CODEC, "decoder_config.upsample_rates", [8, "5"], "must be positive integers, not [8, '5']"),
        (CODEC, "decoder_config.upsampling_ratios", [2, 0], "must be positive integers, not [2, 0]"),
        (GENERATION, "do_sample", 1, "must be bool, not 1"),
        (GENERATION, "top_k", 50.5, "must be int, not 50.5"),
        (MAIN, "model_type", "qwen3", "is 'qwen3', not 'qwen3_tts'"),
        (MAIN, "tts_model_type", "singing", "is 'singing', not one of ('custom_voice', 'voice_design', 'base')"),
        (CODEC, "model_type", "mimi", "must be 'qwen3_tts_tokenizer_12hz'"),
        (MAIN, "talker_config.hidden_act", "gelu", "is 'gelu'; only 'silu' is supported"),
        (MAIN, "talker_config.code_predictor_config.hidden_act", "gelu", "only 'silu' is supported"),
        (CODEC, "decoder_config.hidden_act", "gelu", "only 'silu' is supported"),
        (MAIN, "talker_config.attention_bias", True, "only False is supported"),
        (MAIN, "talker_config.num_attention_heads", 15, "is 15, which is no multiple of num_key_value_heads, 8"),
        (MAIN, "talker_config.num_attention_heads", 0, "is 0, which is no multiple of num_key_value_heads, 8"),
        (MAIN, "talker_config.use_sliding_window", True, "only False is supported"),
        (MAIN, "talker_config.rope_scaling.rope_type", "yarn", "only 'default' and 'linear' are supported"),
        (MAIN, "talker_config.rope_scaling", {"rope_type": "linear"}, "rope_scaling.factor must be float"),
        (MAIN, "talker_config.code_predictor_config.num_code_groups", 8, "is 8; only 16 is supported"),
        (CODEC, "decode_upsample_rate", 2000, "is 2000; the decoder makes 1920"),
    ],
)
def test_a_wrong_value_is_named_with_its_file_and_key(
    name: str, key: str, value: Any, wanted: str, tmp_path: Path
) -> None:
    folder = released_folder(tmp_path)
    edit(folder, name, key, value)
    refused(folder, f"{folder / name}: {key}", wanted)


def test_a_checkpoint_tells_the_longest_texts_of_an_utterance(tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    assert (read_checkpoint(folder).max_utterance_chars, read_checkpoint(folder).max_context_chars) == (None, None)
    edit(folder, GENERATION, "max_utterance_chars", 400)
    assert (read_checkpoint(folder).max_utterance_chars, read_checkpoint(folder).max_context_chars) == (400, None)
    edit(folder, GENERATION, "max_context_chars", 900)
    no_text = cast("TextFrontend", SimpleNamespace(speakers=(), languages=()))
    info = model_info("voice", read_checkpoint(folder), no_text)
    assert (info.max_utterance_chars, info.max_context_chars) == (400, 900)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (None, ReadableText("prose", None, "as_written")),
        ({}, ReadableText("prose", None, "as_written")),
        ({"alphabet": None}, ReadableText("prose", None, "as_written")),
        ({"reads": "words", "alphabet": "ascii", "letters": "names"}, ReadableText("words", "ascii", "names")),
        ({"reads": "anything", "letters": "spaced"}, ReadableText("anything", None, "spaced")),
    ],
)
def test_a_checkpoint_tells_what_text_it_reads(text: dict[str, Any] | None, read: ReadableText, tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    if text is not None:
        edit(folder, GENERATION, "text", text)
    assert read_checkpoint(folder).text == read


@pytest.mark.parametrize(
    ("text", "key", "wanted"),
    [
        ({"reads": "numbers"}, "reads", "is 'numbers', not one of 'words', 'prose', 'anything'"),
        ({"reads": 1}, "reads", "is 1, not one of"),
        ({"alphabet": "latin"}, "alphabet", "is 'latin', not one of 'ascii'"),
        ({"letters": ["names"]}, "letters", "not one of 'names', 'spaced', 'as_written'"),
        ({"read": "words"}, "read", "is unknown; there are reads, alphabet, letters"),
    ],
)
def test_a_wrong_declaration_of_text_is_named(text: dict[str, Any], key: str, wanted: str, tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    edit(folder, GENERATION, "text", text)
    refused(folder, f"{folder / GENERATION}: text.{key}", wanted)


def test_the_shipped_voice_reads_words_in_ascii_and_letters_by_name() -> None:
    read = ReadableText("words", "ascii", "names")
    assert read_checkpoint(vivavoce_voice.CHECKPOINT).text == read


# ---- its speakers


def test_released_speakers_are_described_though_their_files_say_nothing(tmp_path: Path) -> None:
    speakers = read_checkpoint(released_folder(tmp_path)).speakers
    assert set(speakers) == {
        *("serena", "vivian", "uncle_fu", "ryan", "aiden", "ono_anna", "sohee", "eric", "dylan"),
    }
    assert speakers["dylan"] == SpeakerInfo("male", "Beijing", "chinese", "Young, clear and natural")
    assert {speakers[name].sex for name in ("serena", "vivian", "ono_anna", "sohee")} == {"female"}


def test_a_speaker_with_a_released_name_and_another_id_is_not_described(tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    edit(folder, MAIN, "talker_config.spk_id", {"ryan": 3000, "sohee": 2864})
    assert set(read_checkpoint(folder).speakers) == {"sohee"}


def test_a_checkpoint_describes_its_own_speakers(tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    edit(folder, MAIN, "talker_config.spk_id", {"Ada": 3000, "ryan": 3061, "sohee": 2864})
    edit(folder, GENERATION, "speakers", {"Ada": {"accent": "Scottish"}, "ryan": {"sex": "male", "language": "german"}})
    speakers = read_checkpoint(folder).speakers
    assert speakers["ada"] == SpeakerInfo(accent="Scottish")
    assert speakers["ryan"] == SpeakerInfo("male", None, "german")
    assert speakers["sohee"].language == "korean"


@pytest.mark.parametrize(
    ("speakers", "key", "wanted"),
    [
        ({"nobody": {}}, "nobody", "is unknown; there are serena"),
        ({"ryan": "male"}, "ryan", "must be dict, not 'male'"),
        ({"ryan": {"sex": "man"}}, "ryan.sex", "is 'man', not one of 'female', 'male'"),
        ({"ryan": {"language": "klingon"}}, "ryan.language", "is 'klingon', not one of 'chinese'"),
        ({"ryan": {"accent": 1}}, "ryan.accent", "must be str, not 1"),
        ({"ryan": {"gender": "male"}}, "ryan.gender", "is unknown; there are sex, accent, language, description"),
    ],
)
def test_a_wrong_description_of_a_speaker_is_named(
    speakers: dict[str, Any], key: str, wanted: str, tmp_path: Path
) -> None:
    folder = released_folder(tmp_path)
    edit(folder, GENERATION, "speakers", speakers)
    refused(folder, f"{folder / GENERATION}: speakers.{key}", wanted)


def test_the_shipped_speakers_are_described() -> None:
    speakers = read_checkpoint(vivavoce_voice.CHECKPOINT).speakers
    sounds = {name: (sound.sex, sound.accent, sound.language) for name, sound in speakers.items()}
    assert sounds == {
        "heart": ("female", "American", "english"),
        "bella": ("female", "American", "english"),
        "michael": ("male", "American", "english"),
        "fenrir": ("male", "American", "english"),
        "emma": ("female", "British", "english"),
        "george": ("male", "British", "english"),
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [("temperature", -1.0), ("top_k", -1), ("top_p", 0.0), ("repetition_penalty", 0.0), ("subtalker_top_p", 2.0)],
)
def test_impossible_sampling_defaults_are_a_checkpoint_error(key: str, value: float, tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    edit(folder, GENERATION, key, value)
    refused(folder, GENERATION, key)


def test_the_older_name_of_the_rope_type_is_not_passed_over(tmp_path: Path) -> None:
    """`type` in place of `rope_type`: ignoring it would compute other positions without a word."""
    folder = released_folder(tmp_path)
    edit(folder, MAIN, "talker_config.rope_scaling", {"type": "yarn", "factor": 4.0})
    refused(folder, "rope_scaling", "yarn")


def test_more_codes_a_frame_than_there_are_random_numbers_for_are_refused(tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    for section in ("talker_config", "talker_config.code_predictor_config"):
        edit(folder, MAIN, f"{section}.num_code_groups", 65)
    refused(folder, "num_code_groups is 65; at most 64 are supported")


def test_a_codec_with_fewer_codebooks_than_the_talker_makes_is_refused(tmp_path: Path) -> None:
    folder = released_folder(tmp_path)
    edit(folder, CODEC, "decoder_config.num_quantizers", 15)
    refused(folder, "the talker makes 16 codes a frame, the codec knows 15")
    edit(folder, CODEC, "decoder_config.num_quantizers", 32)
    assert read_checkpoint(folder).codec.num_quantizers == 32


# ---- weights


def change_tensors(folder: Path, name: str, change: Callable[[dict[str, np.ndarray[Any, Any]]], object]) -> None:
    tensors = load_file(folder / name)
    change(tensors)
    save_file(tensors, folder / name)


def not_loaded(folder: Path, *names: str) -> None:
    with pytest.raises(CheckpointError) as error:
        load_models(read_checkpoint(folder), CPU, torch.float32)
    for name in (str(folder), *names):
        assert name in str(error.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny checkpoint to break."""
    return write_checkpoint(tmp_path / "tiny", "tiny_32", "custom_voice")


def test_base_weights_with_and_without_metadata_are_the_same(folder: Path) -> None:
    with_metadata = load_models(read_checkpoint(folder), CPU, torch.float32)
    header = json.loads((folder / WEIGHTS).read_bytes()[8:].split(b"}}", 1)[0].decode() + "}}")
    assert header["__metadata__"] == {"format": "pt"}
    change_tensors(folder, WEIGHTS, lambda tensors: None)  # writes no metadata
    without_metadata = load_models(read_checkpoint(folder), CPU, torch.float32)
    for one, other in zip(with_metadata, without_metadata, strict=True):
        assert one.state_dict().keys() == other.state_dict().keys()
        assert all(torch.equal(one.state_dict()[name], tensor) for name, tensor in other.state_dict().items())


@pytest.mark.parametrize("name", [WEIGHTS, CODEC_WEIGHTS])
@pytest.mark.parametrize("kept", [0, 7, 100, -1, -5000])
def test_truncated_weights_are_named(name: str, kept: int, folder: Path) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:kept])
    not_loaded(folder, name, "no complete safetensors file")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (WEIGHTS, "talker.model.text_embedding.weight"),
        (WEIGHTS, "talker.text_projection.linear_fc1.bias"),
        (WEIGHTS, "talker.model.layers.1.self_attn.k_proj.weight"),
        (WEIGHTS, "talker.code_predictor.small_to_mtp_projection.bias"),
        (WEIGHTS, "talker.code_predictor.model.codec_embedding.0.weight"),
        (WEIGHTS, "talker.code_predictor.lm_head.30.weight"),
        (CODEC_WEIGHTS, "decoder.quantizer.rvq_rest.vq.layers.30._codebook.cluster_usage"),
        (CODEC_WEIGHTS, "decoder.quantizer.rvq_first.vq.layers.0._codebook.embedding_sum"),
        (CODEC_WEIGHTS, "decoder.quantizer.rvq_first.output_proj.weight"),
        (CODEC_WEIGHTS, "decoder.pre_transformer.layers.0.mlp_layer_scale.scale"),
        (CODEC_WEIGHTS, "decoder.decoder.1.block.0.alpha"),
        (CODEC_WEIGHTS, "decoder.decoder.5.beta"),
    ],
)
def test_a_missing_tensor_is_named(name: str, tensor: str, folder: Path) -> None:
    change_tensors(folder, name, lambda tensors: tensors.pop(tensor))
    not_loaded(folder, f"{name} lacks tensors: {tensor}")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (WEIGHTS, "talker.model.layers.2.input_layernorm.weight"),
        (WEIGHTS, "speaker_encoder.fc.weight"),
        (CODEC_WEIGHTS, "decoder.decoder.7.conv.weight"),
        (CODEC_WEIGHTS, "decoder.quantizer.rvq_rest.vq.layers.31._codebook.embedding_sum"),
    ],
)
def test_an_unexpected_tensor_is_named(name: str, tensor: str, folder: Path) -> None:
    extra = {tensor: np.zeros(3, np.float32)}
    change_tensors(folder, name, lambda tensors: tensors.update(extra))
    not_loaded(folder, f"{name} has unexpected tensors: {tensor}")


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    save_file({"other": np.zeros(1, np.float32)}, folder / WEIGHTS)
    not_loaded(folder, "lacks tensors: talker.code_predictor.", " more")


def test_tensors_that_only_encode_may_be_missing(folder: Path) -> None:
    def drop(tensors: dict[str, np.ndarray[Any, Any]]) -> None:
        for tensor in [name for name in tensors if name.startswith("encoder.") or "input_proj.weight" in name]:
            if "pre_transformer" not in tensor:
                del tensors[tensor]

    change_tensors(folder, CODEC_WEIGHTS, drop)
    assert len(load_models(read_checkpoint(folder), CPU, torch.float32)) == 3


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (WEIGHTS, "talker.codec_head.weight"),
        (WEIGHTS, "talker.model.norm.weight"),
        (WEIGHTS, "talker.model.layers.0.self_attn.q_proj.weight"),
        (WEIGHTS, "talker.model.layers.0.mlp.up_proj.weight"),
        (WEIGHTS, "talker.model.text_embedding.weight"),
        (WEIGHTS, "talker.model.codec_embedding.weight"),
        (WEIGHTS, "talker.text_projection.linear_fc2.weight"),
        (WEIGHTS, "talker.code_predictor.small_to_mtp_projection.weight"),
        (WEIGHTS, "talker.code_predictor.model.codec_embedding.3.weight"),
        (WEIGHTS, "talker.code_predictor.model.codec_embedding.30.weight"),
        (CODEC_WEIGHTS, "decoder.quantizer.rvq_rest.vq.layers.3._codebook.embedding_sum"),
        (CODEC_WEIGHTS, "decoder.quantizer.rvq_rest.vq.layers.3._codebook.cluster_usage"),
        (CODEC_WEIGHTS, "decoder.quantizer.rvq_rest.output_proj.weight"),
        (CODEC_WEIGHTS, "decoder.pre_conv.conv.weight"),
        (CODEC_WEIGHTS, "decoder.decoder.2.block.3.act1.alpha"),
    ],
)
@pytest.mark.parametrize("axis", ["first", "last"])
def test_a_tensor_of_another_shape_is_a_checkpoint_error(name: str, tensor: str, axis: str, folder: Path) -> None:
    """One more row, or one more column."""

    def grow(tensors: dict[str, np.ndarray[Any, Any]]) -> None:
        shape = list(tensors[tensor].shape)
        shape[0 if axis == "first" else min(1, len(shape) - 1)] += 1
        tensors[tensor] = np.ones(shape, np.float32)

    change_tensors(folder, name, grow)
    not_loaded(folder)


def test_a_config_of_another_size_is_a_checkpoint_error(folder: Path) -> None:
    edit(folder, MAIN, "talker_config.intermediate_size", 100)
    not_loaded(folder, "do not fit config.json", "mlp.down_proj.weight", "100")


# ---- where a checkpoint is


def test_a_folder_is_taken_as_it_is(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoints("tiny", "custom_voice")
    assert locate_checkpoint(str(folder)) == folder
    monkeypatch.chdir(folder.parent)
    assert locate_checkpoint(folder.name) == Path(folder.name)


@pytest.mark.parametrize("name", ["nowhere", "/no/where", "./models/tiny", "../tiny", "~/tiny", "a/b/c", "a//b"])
def test_a_name_that_is_neither_folder_nor_hub_id_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="neither a folder nor a hub id of the form owner/model"):
        locate_checkpoint(name)


@pytest.mark.parametrize("name", ["owner/mo del", "own*er/model", "owner/model.git", "owner/--"])
def test_what_the_hub_takes_for_no_id_is_a_checkpoint_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="hub"):
        locate_checkpoint(name)


def test_a_hub_that_cannot_be_reached_is_a_checkpoint_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="owner/model is no folder here, and the hub did not give it: "):
        locate_checkpoint("owner/model")


@pytest.mark.parametrize("error", [OfflineModeIsEnabled("offline"), ConnectionError("no route"), TimeoutError("slow")])
def test_the_hubs_own_words_are_passed_on(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, **_: list[str]) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=f"the hub did not give it: {error}"):
        locate_checkpoint("owner/model")


def test_a_hub_id_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(tmp_path / name))
    assert locate_checkpoint("owner/model") == tmp_path / "owner/model"


# ---- the whole door


def test_an_engine_tells_what_its_checkpoint_can_do(checkpoints: Checkpoints) -> None:
    config = EngineConfig(device="cpu", max_context=64, max_streams=1)
    folder = checkpoints("tiny_noproj", "custom_voice")
    info = load_engine(str(folder), config).info
    assert (info.name, info.task, info.takes_instructions) == (folder.name, "custom_voice", False)
    assert (info.sample_rate, info.samples_per_frame, info.frame_s, info.max_frames) == (24000, 1920, 0.08, 8192)
    assert ("ryan" in info.speakers, "english" in info.languages) == (True, True)
    assert info.sampling == Sampling()
    assert load_engine(str(folder), config, "small").info.name == "small"
