"""The head that follows the text: from the settings, from the checkpoint's files, or from the user's cache."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from vivavoce_engine import CheckpointError, EngineConfig
from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.checkpoint.alignment_cache import (
    alignment_folder,
    read_cached_alignment,
    with_alignment,
    write_cached_alignment,
)
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.load import read_model
from vivavoce_voice import CHECKPOINT

from tests.engine.conftest import Checkpoints

GENERATION = "generation_config.json"


@pytest.fixture
def folder(checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint without an alignment, beside an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(checkpoints("tiny", "custom_voice"), tmp_path / "model"))


def edit(folder: Path, **values: Any) -> None:
    content = json.loads((folder / GENERATION).read_text(encoding="utf-8"))
    (folder / GENERATION).write_text(json.dumps(content | values), encoding="utf-8")


def test_the_shipped_voice_names_its_head() -> None:
    assert read_checkpoint(CHECKPOINT).alignment == Alignment(3, 4, -45)


def test_a_checkpoint_without_the_keys_has_none(folder: Path) -> None:
    assert read_checkpoint(folder).alignment is None
    assert not read_model(str(folder), EngineConfig()).info.word_times


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"alignment_heads": [[1, 0]]}, "alignment_offset_ms is missing; it belongs to alignment_heads"),
        ({"alignment_offset_ms": 5}, "alignment_heads is missing; it belongs to alignment_offset_ms"),
        ({"alignment_heads": [[1, 0], [1, 1]], "alignment_offset_ms": 5}, "alignment_heads must be one pair"),
        ({"alignment_heads": [[1, -1]], "alignment_offset_ms": 5}, "alignment_heads must be one pair"),
        ({"alignment_heads": [1, 0], "alignment_offset_ms": 5}, "alignment_heads must be one pair"),
        ({"alignment_heads": "1.0", "alignment_offset_ms": 5}, "alignment_heads must be list"),
        ({"alignment_heads": [[999, 0]], "alignment_offset_ms": 5}, "there is no head 999.0"),
        ({"alignment_heads": [[0, 999]], "alignment_offset_ms": 5}, "there is no head 0.999"),
        ({"alignment_heads": [[0, 0]], "alignment_offset_ms": "5"}, "alignment_offset_ms must be float"),
        ({"alignment_heads": [[0, 0]], "alignment_offset_ms": -2001}, "alignment_offset_ms must be from -2000 to 2000"),
    ],
)
def test_wrong_keys_are_refused_by_name(folder: Path, values: dict[str, Any], told: str) -> None:
    edit(folder, **values)
    with pytest.raises(CheckpointError) as refused:
        read_checkpoint(folder)
    assert GENERATION in str(refused.value)
    assert told in str(refused.value)


def test_the_setting_counts_before_the_file_and_the_file_before_the_cache(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    write_cached_alignment(folder, Alignment(0, 1, 7.5))
    assert with_alignment(checkpoint, None).alignment == Alignment(0, 1, 7.5)
    edit(folder, alignment_heads=[[1, 0]], alignment_offset_ms=-20)
    write_cached_alignment(folder, Alignment(0, 1, 7.5))
    assert with_alignment(read_checkpoint(folder), None).alignment == Alignment(1, 0, -20)
    assert with_alignment(read_checkpoint(folder), Alignment(1, 1, 3)).alignment == Alignment(1, 1, 3)
    assert read_model(str(folder), EngineConfig()).info.alignment_offset_s == -0.02
    settings = EngineConfig(alignment_heads="1.1", alignment_offset_ms=30)
    assert read_model(str(folder), settings).info.alignment_offset_s == 0.03


def test_a_head_of_the_settings_that_the_talker_lacks_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"alignment_heads: there is no head 40\.1"):
        read_model(str(folder), EngineConfig(alignment_heads="40.1", alignment_offset_ms=0))


def test_the_cache_knows_a_copy_and_not_other_weights(folder: Path, tmp_path: Path) -> None:
    assert read_cached_alignment(folder) is None
    file = write_cached_alignment(folder, Alignment(0, 1, 7.5))
    assert file.parent == alignment_folder() == tmp_path / "cache" / "vivavoce" / "alignments"
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    assert read_cached_alignment(copy) == Alignment(0, 1, 7.5)
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert read_cached_alignment(copy) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"layer": 1, "head": 2, "offset_ms": 3, "files": [1]}'])
def test_a_broken_file_in_the_cache_is_passed_over(folder: Path, content: str) -> None:
    write_cached_alignment(folder, Alignment(0, 1, 7.5))
    (alignment_folder() / "0.json").write_text(content, encoding="utf-8")
    assert read_cached_alignment(folder) == Alignment(0, 1, 7.5)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"alignment_heads": "3.4"}, "alignment_heads needs alignment_offset_ms"),
        ({"alignment_offset_ms": -45.0}, "alignment_offset_ms needs alignment_heads"),
        ({"alignment_heads": "3,4", "alignment_offset_ms": 0.0}, "alignment_heads must be layer.head"),
        ({"alignment_heads": "3.4", "alignment_offset_ms": 2001.0}, "alignment_offset_ms must be from -2000 to 2000"),
        ({"alignment_heads": "3.4", "alignment_offset_ms": float("nan")}, "alignment_offset_ms must be from"),
    ],
)
def test_the_settings_are_checked(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        EngineConfig(**settings)
