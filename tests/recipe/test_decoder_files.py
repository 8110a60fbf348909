"""Decoders in files: growth that changes no audio, an exported one in the engine, the small form of codes.pt."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import MimiConfig, MimiModel
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.models.codec_decoder import CodecDecoder as EngineDecoder
from vivavoce_engine.models.codec_decoder import CodecRows
from vivavoce_engine.models.loader import load_models
from vivavoce_voice import CHECKPOINT
from voice_recipe.codes_file import load_encoder, small_form
from voice_recipe.config import CODEC, CodecSizes
from voice_recipe.decoder_files import grown, loaded_decoder, read_decoder, sizes_of, stored_bytes
from voice_recipe.export import codec_config, replace_decoder
from voice_recipe.mimi_encoder import ENCODER, MimiEncoder
from voice_recipe.speech_codes import PhoneProbe, SpeechCodes

LARGER = replace(CODEC, num_layers=4, intermediate_size=640)
FOLDER_LIMIT_BYTES = 60_000_000
CODES = torch.randint(CODEC.codebook_size, (1, 8, CODEC.codebooks), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def shipped() -> dict[str, torch.Tensor]:
    return read_decoder(CHECKPOINT)


def spoken(state: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        audio: torch.Tensor = loaded_decoder(state)(CODES)
    return audio


@pytest.mark.parametrize("sizes", [CODEC, replace(CODEC, num_layers=4), LARGER])
def test_a_decoder_grows_without_a_change_of_its_audio(shipped: dict[str, torch.Tensor], sizes: CodecSizes) -> None:
    larger = grown(shipped, sizes)
    assert sizes_of(larger) == sizes
    assert float(spoken(shipped).abs().max()) > 0.1
    assert torch.allclose(spoken(larger), spoken(shipped), atol=1e-6)


def test_a_decoder_never_shrinks(shipped: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="3 layers of 512"):
        grown(shipped, replace(CODEC, num_layers=2))


def test_a_checkpoint_gets_a_larger_decoder_that_the_engine_speaks(
    shipped: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "voice"
    shutil.copytree(CHECKPOINT, checkpoint)
    torch.manual_seed(0)
    new = grown(shipped, replace(CODEC, num_layers=4))
    new["pre_transformer.layers.3.mlp.down_proj.weight"].normal_(std=0.05)
    new["pre_transformer.layers.3.self_attn.o_proj.weight"].normal_(std=0.05)
    new = {name: value.bfloat16().float() for name, value in new.items()}
    replace_decoder(new, checkpoint)
    assert not torch.allclose(spoken(new), spoken(shipped), atol=1e-3)
    assert sum(file.stat().st_size for file in checkpoint.rglob("*")) < FOLDER_LIMIT_BYTES
    decoder = load_models(read_checkpoint(checkpoint), torch.device("cpu"), torch.float32)[2]
    assert isinstance(decoder, EngineDecoder)
    with torch.inference_mode():
        rows = CodecRows(decoder, 1, decoder.final_conv.weight)
        audio = rows.decode(torch.tensor([0]), CODES)[0].numpy()
    assert np.abs(audio - spoken(new)[0].numpy()).max() < 1e-4
    stored = read_decoder(checkpoint)
    assert stored.keys() == new.keys()
    assert all(torch.equal(stored[name], value) for name, value in new.items())
    before = json.loads((CHECKPOINT / "speech_tokenizer/config.json").read_text(encoding="utf-8"))
    after = json.loads((checkpoint / "speech_tokenizer/config.json").read_text(encoding="utf-8"))
    assert after["decoder_config"] == {**before["decoder_config"], "num_hidden_layers": 4}
    assert (checkpoint / "model.safetensors").read_bytes() == (CHECKPOINT / "model.safetensors").read_bytes()


def test_a_decoder_of_other_codes_is_refused(shipped: dict[str, torch.Tensor], tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINT / "speech_tokenizer", tmp_path / "speech_tokenizer")
    before = load_file(tmp_path / "speech_tokenizer" / "model.safetensors")
    other = {**shipped, "rvq_first.codebooks": shipped["rvq_first.codebooks"] + 1}
    with pytest.raises(ValueError, match="other codes"):
        replace_decoder(other, tmp_path)
    after = load_file(tmp_path / "speech_tokenizer" / "model.safetensors")
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_the_audio_encoder_has_the_layout_of_mimi() -> None:
    """Except for the codebooks, which `codec_state` adds, and Mimi's own decoder, which the layout leaves out."""
    mimi = MimiModel(MimiConfig(**codec_config(CODEC)["encoder_config"]))
    expected = {
        name: value.shape
        for name, value in mimi.state_dict().items()
        if not name.startswith(("upsample", "decoder")) and ".codebook." not in name
    }
    assert {name: value.shape for name, value in MimiEncoder(ENCODER).state_dict().items()} == expected


def test_sizes_in_bytes_are_those_of_the_file(shipped: dict[str, torch.Tensor]) -> None:
    trained = sum(value.numel() for name, value in shipped.items() if not name.endswith("codebooks"))
    assert stored_bytes(CODEC) == 2 * trained


def test_the_small_form_of_codes_encodes_nearly_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, probe = SpeechCodes(CODEC), PhoneProbe()
    phones, inputs = torch.randint(178, (2, 8, 8)), torch.randn(2, 64, 82)
    with torch.no_grad():
        for book in (*model.semantic.books, *model.acoustic.books):
            book.vectors.normal_()
    stored = {"model": model.state_dict(), "probe": probe.state_dict(), "report": {"mel": 0.1}}
    torch.save(stored, tmp_path / "codes.pt")
    torch.save(small_form(stored), tmp_path / "small.pt")
    assert (tmp_path / "small.pt").stat().st_size < 0.35 * (tmp_path / "codes.pt").stat().st_size
    whole, small = (load_encoder(tmp_path / name, "cpu") for name in ("codes.pt", "small.pt"))
    same = (whole.encode(phones, inputs) == small.encode(phones, inputs)).float().mean(dim=(0, 1))
    assert float(same[:2].min()) > 0.9  # of the first two codes; the later books have near neighbours
    PhoneProbe().load_state_dict(torch.load(tmp_path / "small.pt")["probe"])


def test_a_file_without_an_encoder_is_refused(tmp_path: Path) -> None:
    state = {name: value for name, value in SpeechCodes(CODEC).state_dict().items() if "acoustic_join" not in name}
    torch.save({"model": state}, tmp_path / "codes.pt")
    with pytest.raises(ValueError, match="acoustic_join"):
        load_encoder(tmp_path / "codes.pt", "cpu")
