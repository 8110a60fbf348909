"""Training of the talker: what is learnt goes on over commands, and begins with a finished voice."""

import argparse
import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vivavoce_voice import CHECKPOINT
from voice_recipe import talker_data, train_talker, training
from voice_recipe.config import TALKER
from voice_recipe.corpus import Corpus, Record
from voice_recipe.start_talker import moved
from voice_recipe.talker import Talker
from voice_recipe.talker_data import load_documents, text_ids
from voice_recipe.text_tokenizer import TextTokenizer
from voice_recipe.train_talker import TalkerTrainer, train

SMALL = replace(
    TALKER,
    num_layers=1,
    hidden_size=32,
    intermediate_size=32,
    num_heads=1,
    num_kv_heads=1,
    predictor_hidden_size=32,
    predictor_intermediate_size=32,
    predictor_layers=1,
    predictor_heads=1,
    predictor_kv_heads=1,
)
WORDS = ("Hello.", "One.", "Two three four.")
TICK_S = 0.05
"""Seconds that each look at the clock takes."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_talker, "TALKER", SMALL)
    monkeypatch.setattr(train_talker, "ROW_LENGTH", 64)
    # In this process, because the tests' own would be imported anew in another.
    monkeypatch.setattr(talker_data.Packer, "endless", endless)
    ticks = itertools.count(0.0, TICK_S)
    monkeypatch.setattr(training, "time", SimpleNamespace(time=lambda: next(ticks)))


def endless(packer: talker_data.Packer, seed: int):  # type: ignore[no-untyped-def]  # noqa: ANN201
    rng = np.random.default_rng(seed)
    while True:
        yield from packer.epoch(rng)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "codes.npy", rng.integers(0, 1024, (60, 8)).astype(np.int16))
    np.save(tmp_path / "records.npy", np.array([0, 1, 2], np.int32))
    np.save(tmp_path / "counts.npy", np.ones(3, np.uint8))
    np.save(tmp_path / "speaker.npy", np.array([0, 3, 5], np.uint8))
    np.save(tmp_path / "frames.npy", np.array([20, 15, 25], np.int32))
    return tmp_path


def corpus() -> Corpus:
    row = np.array([50, 51], np.uint8)
    return Corpus.of(Record(text, text, 0, (row, row)) for text in WORDS)


def arguments(folder: Path, seconds: float, total: float) -> argparse.Namespace:
    return argparse.Namespace(
        rows=1,
        predictor_frames=8,
        predictor_weight=0.5,
        rate=1e-2,
        dropout=0.0,
        seed=0,
        eager=True,
        out=folder / "talker.pt",
        state=folder / "talker_state.pt",
        end_time=training.Clock(0.0).started + seconds,
        total_seconds=total,
    )


def command(shard: Path, seconds: float, total: float) -> TalkerTrainer:
    trainer = TalkerTrainer(arguments(shard, seconds, total))
    if trainer.args.state.exists():
        trainer.load_state(trainer.args.state)
    docs = load_documents([shard], corpus(), CHECKPOINT, "cpu")
    train(trainer, docs, text_ids(TextTokenizer(CHECKPOINT)))
    return trainer


def test_a_second_command_goes_on_where_the_first_ended(shard: Path) -> None:
    torch.manual_seed(0)
    first = command(shard, 1.5, 3600)
    result = json.loads((shard / "talker.json").read_text())
    assert result["steps"] == first.steps > 0
    assert 1 <= result["seconds"] < 60
    again = TalkerTrainer(arguments(shard, 1, 3600))
    again.load_state(shard / "talker_state.pt")
    assert (again.steps, again.spent_s) == (first.steps, first.spent_s)
    assert all(map(torch.equal, again.talker.parameters(), first.talker.parameters()))
    assert all(map(torch.equal, again.average.values, first.average.values))
    kept, moments = (trainer.optimizer.state_dict()["state"][0]["exp_avg_sq"] for trainer in (again, first))
    assert torch.equal(kept, moments)
    second = command(shard, 1.5, 3600)
    assert second.steps > first.steps
    assert second.spent_s > first.spent_s + 1


def test_training_ends_with_its_schedule(shard: Path) -> None:
    trainer = command(shard, 3600, 1.0)
    assert 1.0 <= trainer.spent_s < 60
    assert max(group["lr"] for group in trainer.optimizer.param_groups) < 0.5 * trainer.args.rate


def test_the_weights_come_out_as_an_average(shard: Path) -> None:
    trainer = command(shard, 1.5, 3600)
    stored = torch.load(shard / "talker.pt")
    expected = trainer.average.state_dict()
    assert all(torch.equal(stored[name], expected[name].bfloat16()) for name in expected)
    Talker(SMALL).load_state_dict(stored)


def test_a_step_lowers_the_loss_on_its_batch(shard: Path) -> None:
    torch.manual_seed(0)
    trainer = TalkerTrainer(arguments(shard, 60, 3600))
    docs = load_documents([shard], corpus(), CHECKPOINT, "cpu")
    packer = talker_data.Packer.of(docs, np.arange(3), 1, train_talker.ROW_LENGTH)
    packings = list(packer.epoch(np.random.default_rng(0)))
    batch = next(train_talker.batches(iter(packings), docs, text_ids(TextTokenizer(CHECKPOINT)), 64))
    losses = [float(trainer.step(batch, docs.codes, 1.0)["code0"].detach()) for _ in range(12)]
    assert losses[-1] < 0.9 * losses[0]


def test_text_embeddings_move_to_the_ids_of_their_tokens() -> None:
    rows = torch.arange(5.0)[:, None]  # three tokens, two special ones
    out = moved(rows, {"a": 0, "b": 1, "c": 2}, {"c": 0, "d": 1, "a": 2})
    assert out[:, 0].tolist() == [2, 1, 0, 3, 4]
    with pytest.raises(ValueError, match="3 and 1 tokens"):
        moved(rows, {"a": 0, "b": 1, "c": 2}, {"a": 0})
