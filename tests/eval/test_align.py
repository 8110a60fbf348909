"""`vivavoce eval align`: finds the shipped voice's head, refuses a checkpoint without one, and stores what it found."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from vivavoce_bench.cards.layout import Kind
from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.checkpoint.alignment_cache import with_alignment
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_eval import align, cli
from vivavoce_eval.errors import Unusable
from vivavoce_eval.heads import THRESHOLD, Head
from vivavoce_voice import CHECKPOINT

from tests.support.tiny_checkpoints import write_checkpoint


def evaluate(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(["align", *arguments]))


@pytest.fixture
def voice(tmp_path: Path) -> Path:
    """A copy of the shipped voice that does not know its head."""
    folder = tmp_path / "voice"
    shutil.copytree(CHECKPOINT, folder)
    file = folder / "generation_config.json"
    kept = {k: v for k, v in json.loads(file.read_text()).items() if not k.startswith("alignment_")}
    file.write_text(json.dumps(kept, indent=4), encoding="utf-8")
    return folder


@pytest.mark.long
def test_the_head_of_the_shipped_voice_is_found_and_stored(
    voice: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (voice / "generation_config.json").read_text()
    out = tmp_path / "figures.json"
    assert evaluate("--model", str(voice), "--texts", "6", "--write", "--json", str(out)) == 0
    figures: dict[str, Any] = json.loads(out.read_text())
    keys = figures["chosen"]
    assert keys["alignment_heads"] == [[3, 4]]
    assert keys["alignment_offset_ms"] == pytest.approx(-45, abs=15), "six texts have eight silences"
    scores = [one["score"] for one in figures["heads"]]
    assert scores == sorted(scores, reverse=True)
    assert {(one["layer"], one["head"]) for one in figures["heads"] if one["score"] >= THRESHOLD} == {
        (2, 5),
        (3, 3),
        (3, 4),
        (3, 5),
    }
    assert "Head 3.4 follows the text" in capsys.readouterr().out
    after = (voice / "generation_config.json").read_text()
    assert after.startswith(before.rstrip("}\n")), "nothing else has changed"
    assert json.loads(after) == {**json.loads(before), **keys}
    found = read_checkpoint(voice).alignment
    assert found is not None
    assert (found.layer, found.head, found.offset_ms) == (3, 4, keys["alignment_offset_ms"])


@pytest.mark.parametrize("kind", ["custom_voice", "base", "voice_design"])
def test_a_checkpoint_without_such_a_head_is_refused(
    kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path / "tiny", "tiny", kind)
    before = (folder / "generation_config.json").read_bytes()
    out = tmp_path / "figures.json"
    assert evaluate("--model", str(folder), "--texts", "2", "--write", "--json", str(out)) == 1
    figures = json.loads(out.read_text())
    assert figures["chosen"] is None
    best = figures["heads"][0]["score"]
    assert best < THRESHOLD
    refusal = capsys.readouterr().err
    assert "no head of this checkpoint follows the text" in refusal
    assert f"scores {best:.2f}, and -0.7 is needed" in refusal
    assert (folder / "generation_config.json").read_bytes() == before


CHOSEN = Head(1, 2, -0.3, -0.2, 9, -30, 40)


def unwritable(*_: object) -> None:
    raise PermissionError("the folder is read-only")


@pytest.mark.parametrize("reason", ["read-only folder", "snapshot of the hub"])
def test_what_cannot_be_written_goes_to_the_cache(reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_checkpoint(tmp_path / "tiny", "tiny", "custom_voice")
    file = folder / "generation_config.json"
    if reason == "read-only folder":
        monkeypatch.setattr(align, "replace_file", unwritable)
    else:
        file.rename(tmp_path / "blob")
        file.symlink_to(tmp_path / "blob")
    before = file.read_bytes()
    written = align.store(read_checkpoint(folder), CHOSEN)
    assert written.is_relative_to(tmp_path / "cache")
    assert file.read_bytes() == before
    assert with_alignment(read_checkpoint(folder), None).alignment == Alignment(1, 2, -30)


def test_a_head_in_a_file_that_cannot_be_written_is_not_hidden_by_the_cache(
    voice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    align.store(read_checkpoint(voice), CHOSEN)
    monkeypatch.setattr(align, "replace_file", unwritable)
    with pytest.raises(Unusable, match="settings alignment_heads"):
        align.store(read_checkpoint(voice), CHOSEN)
