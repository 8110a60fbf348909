"""The chain on one card: stages in order over several commands, pieces of files."""

import os
import time
from pathlib import Path

import pytest
import torch
from voice_recipe import one_card
from voice_recipe.one_card import Budget, OneCard, give
from voice_recipe.parcels import pack, unpack
from voice_recipe.run import Chain, GateError

REPORT = {"probe_true": 0.9, "probe_decoded": 0.89, "perplexity0": 600.0, "perplexity1": 800.0}


class Stages:
    """Stands in for the stages' processes: notes them and writes what they would make."""

    def __init__(self, work: Path, seconds: float) -> None:
        self.work, self.seconds, self.started = work, seconds, list[str]()
        self.arguments = dict[str, list[str]]()
        self.now = 1000.0

    def launch(self, stage: str, module: str, arguments: list[str], card: int) -> str:
        assert card == 0
        self.started.append(stage)
        self.arguments[stage] = arguments
        if stage == "speech":
            for number in range(2):
                (self.work / "data" / f"shard0_{number}").mkdir(parents=True)
                (self.work / "data" / f"shard0_{number}" / "done").touch()
            (self.work / "data" / "shard0_0" / "audio.npy").touch()
        if stage == "tokenizer":
            (self.work / "tokenizer").mkdir()
            (self.work / "tokenizer" / "vocab.json").touch()
        if stage == "codes":
            torch.save({"report": REPORT}, self.work / "codes.pt")
        if stage == "encode":
            for shard in self.work.glob("data/*"):
                (shard / "codes.npy").touch()
        if stage in ("talker", "decoder"):
            self.now += self.seconds
            (self.work / f"{stage}.pt").touch()
        return stage


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []
    monkeypatch.setattr(one_card, "export", lambda run, out: made.append(out))
    return made


def command(
    monkeypatch: pytest.MonkeyPatch, stages: Stages, minutes: float, start: Path | None = None, finishes: bool = False
) -> None:
    work = stages.work
    monkeypatch.setattr("voice_recipe.one_card.time.time", lambda: stages.now)
    stages.started.clear()
    monkeypatch.setattr(Chain, "launch", lambda chain, *arguments: stages.launch(*arguments))
    monkeypatch.setattr(Chain, "finish", lambda chain, stage, *processes: None)
    chain = Chain(work / "teacher", work / "corpus.xz", work, 1, stages.now + 60 * minutes, start=start)
    budget = Budget(speech=2, codes=1, talker=10, decoder=5)
    OneCard(chain, budget, {"talker": ["--rows", "8"]}, finishes=finishes).run()


def test_each_command_goes_on_where_the_last_one_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exported: list[Path]
) -> None:
    stages = Stages(tmp_path, seconds=300)
    command(monkeypatch, stages, 9)
    assert stages.started == ["compiling", "speech", "tokenizer", "codes", "encode", "talker"]
    assert stages.arguments["speech"][-2:] == ["60.0", "120.0"]
    given = stages.arguments["talker"]
    assert given[given.index("--total-seconds") + 1] == "600.0"
    assert given[-2:] == ["--rows", "8"]
    shards = [str(tmp_path / "data" / f"shard0_{n}") for n in range(2)]
    assert given[given.index("--shards") + 1 : given.index("--corpus")] == shards
    assert given[given.index("--end-time") + 1] == f"{1000 + 540:.1f}", "the command's end"
    command(monkeypatch, stages, 20)
    assert stages.started == ["talker", "decoder"]
    given = stages.arguments["talker"]
    assert given[given.index("--end-time") + 1] == f"{1300 + 300:.1f}", "the budget's end"
    given = stages.arguments["decoder"]
    assert given[given.index("--shards") + 1 : given.index("--codes")] == shards[:1], "it needs audio"
    assert "--start" not in given
    assert exported == [tmp_path / "checkpoint"]
    command(monkeypatch, stages, 9)
    assert stages.started == []


def test_the_last_command_ends_the_talker_s_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exported: list[Path]
) -> None:
    stages = Stages(tmp_path, seconds=200)
    command(monkeypatch, stages, 3.5)
    assert stages.started[-1] == "talker"
    command(monkeypatch, stages, 8, finishes=True)
    assert stages.started == ["talker", "decoder"]
    assert "--total-seconds" not in stages.arguments["talker"]
    command(monkeypatch, stages, 20)
    given = stages.arguments["decoder"]
    assert given[given.index("--start") + 1] == str(tmp_path / "decoder.pt"), "it goes on from its own weights"


def test_a_training_does_not_begin_at_the_end_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(tmp_path, seconds=300)
    command(monkeypatch, stages, 0.3)
    assert stages.started[-1] == "encode"


def test_codes_and_tokenizer_of_an_earlier_run_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, work = tmp_path / "start", tmp_path / "work"
    (start / "tokenizer").mkdir(parents=True)
    (start / "tokenizer" / "vocab.json").touch()
    torch.save({"report": REPORT}, start / "codes.pt")
    work.mkdir()
    stages = Stages(work, seconds=600)
    command(monkeypatch, stages, 0.3, start=start)
    assert stages.started == ["compiling", "speech", "encode"]
    assert (work / "codes.pt").exists()
    assert (work / "tokenizer" / "vocab.json").exists()


def test_poor_codes_stop_the_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"report": {**REPORT, "perplexity0": 3.0}}, tmp_path / "codes.pt")
    with pytest.raises(GateError, match="too poor"):
        command(monkeypatch, Stages(tmp_path, seconds=300), 9)


def test_pieces_give_the_files_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice_recipe.parcels.PIECE_BYTES", 40_000)
    content = {"a.pt": bytes(range(256)) * 200, "tokenizer/b.json": b"{}", "c.pt": b"x" * 120_000}
    for name, data in content.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert pack(tmp_path / "out", {name: tmp_path / name for name in content}) == ["c.pt"]
    pieces = sorted((tmp_path / "out").iterdir())
    assert len(pieces) <= 4
    assert all(piece.stat().st_size <= 40_000 for piece in pieces)
    assert unpack(tmp_path / "out", tmp_path / "again") == ["a.pt", "tokenizer/b.json"]
    assert (tmp_path / "again" / "a.pt").read_bytes() == content["a.pt"]


def test_a_command_gives_what_it_made(tmp_path: Path) -> None:
    (tmp_path / "codes.pt").write_bytes(b"old")
    since = time.time() + 1
    (tmp_path / "talker.pt").write_bytes(b"new")
    os.utime(tmp_path / "talker.pt", (since + 1, since + 1))
    assert "packed ['talker.pt']" in give(tmp_path, tmp_path / "out", since)
    assert unpack(tmp_path / "out", tmp_path / "again") == ["talker.pt"]
