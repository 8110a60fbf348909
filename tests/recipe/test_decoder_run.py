"""A miniature of the decoder's training by its command: what it writes, and what a second one goes on from."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from voice_recipe import train_decoder
from voice_recipe.config import CODEC
from voice_recipe.discriminators import Discriminators
from voice_recipe.speech_codes import PhoneProbe, SpeechCodes

pytestmark = pytest.mark.usefixtures("short_steps", "short_listening")
FRAMES = 120


@pytest.fixture
def short_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_decoder, "LOG_WINDOWS", 1)
    monkeypatch.setattr(train_decoder, "FINAL_WINDOWS", 2)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """A shard of noise with its codes, and a codes.pt beside it."""
    random, folder = np.random.default_rng(0), tmp_path / "shard0_0"
    folder.mkdir()
    arrays: dict[str, NDArray[Any]] = {
        "audio": random.integers(-3000, 3000, (FRAMES, 1920)).astype(np.int16),
        "mels": random.normal(-5, 2, (FRAMES, 8, 80)).astype(np.float16),
        "phones": random.integers(0, 178, (FRAMES, 8)).astype(np.uint8),
        "log_f0": np.full((FRAMES, 8), 5, np.float16),
        "codes": random.integers(0, CODEC.codebook_size, (FRAMES, CODEC.codebooks)).astype(np.int16),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    torch.manual_seed(0)
    codes, probe = SpeechCodes(CODEC), PhoneProbe()
    for book in (*codes.semantic.books, *codes.acoustic.books):
        book.vectors.normal_()
    torch.save({"model": codes.state_dict(), "probe": probe.state_dict(), "report": {}}, tmp_path / "codes.pt")
    return folder


def trained(shard: Path, name: str, *options: str) -> Path:
    out, work = shard.parent / f"{name}.pt", shard.parent
    arguments = ["--shards", str(shard), "--codes", str(work / "codes.pt"), "--out", str(out), "--eager"]
    arguments += ["--end-time", str(time.time() + 1), "--batch", "1", "--critic-batch", "1", "--inner", "48", *options]
    train_decoder.main(arguments)
    return out


def test_a_run_goes_on_from_a_decoder_and_its_critics(shard: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = trained(shard, "first", "--critics-from", "0", "--harmonic-weight", "1", "--level-weight", "1")
    result = json.loads(first.with_suffix(".json").read_text(encoding="utf-8"))
    assert result["steps"] >= 2
    assert 0 <= result["heard"] <= 1
    critics = torch.load(first.with_suffix(".critics"))
    torch.manual_seed(0)
    fresh = Discriminators().state_dict()
    assert critics.keys() == fresh.keys()
    assert "critics" not in capsys.readouterr().out
    second = trained(shard, "second", "--start", str(first), "--rate", "0", "--critics-from", "0", "--layers", "4")
    assert "going on from first.pt and its critics" in capsys.readouterr().out
    before, after = torch.load(first), torch.load(second)
    assert sum("layers.3." in name for name in after) > 0
    assert all(torch.equal(after[name], value) for name, value in before.items())  # the rate is 0
    kept = torch.load(second.with_suffix(".critics"))
    assert all(torch.equal(kept[name], value) for name, value in critics.items())
