"""Parts of a training step: their order as plain calls and as graphs, and what a run does when graphs fail.

The graphs are stand-ins that repeat a part's work, because a CUDA graph needs a GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from voice_recipe import step_parts
from voice_recipe.config import CODEC
from voice_recipe.step_parts import StepParts, Work
from voice_recipe.train_decoder import DecoderTrainer, Settings

SETTINGS = Settings(batch=1, critic_batch=1, harmonic_weight=1, level_weight=1, layers=2, inner=48)


class Stream:
    """Stands in for torch.cuda.Stream and notes for what it waits."""

    waits: ClassVar[list[tuple["Stream", "Stream"]]]
    current: ClassVar["Stream"]

    def wait_stream(self, other: "Stream") -> None:
        Stream.waits.append((self, other))


class Graph:
    """Stands in for torch.cuda.CUDAGraph."""

    def __init__(self, work: Work, stream: Stream, pool: object) -> None:
        self.replay, self.stream, self.pool = work, stream, pool


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    Stream.waits, Stream.current = [], Stream()

    @contextmanager
    def stream(one: Stream) -> Iterator[None]:
        before, Stream.current = Stream.current, one
        yield
        Stream.current = before

    stand_ins: dict[str, Any] = {
        "Stream": Stream,
        "stream": stream,
        "current_stream": lambda: Stream.current,
        "set_stream": lambda one: setattr(Stream, "current", one),
        "synchronize": lambda: None,
        "graph_pool_handle": lambda: "pool",
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(step_parts, "_recorded", Graph)


def parts(done: list[str]) -> StepParts:
    def note(name: str) -> Work:
        return lambda: done.append(name)

    return StepParts(note("first"), [note("spectra"), note("critic 0"), note("critic 1")], note("last"))


@pytest.mark.parametrize(("beside", "names"), [(1, ["spectra"]), (3, ["spectra", "critic 0", "critic 1"])])
def test_graphs_run_the_same_parts_as_plain_calls(cuda: None, beside: int, names: list[str]) -> None:
    done: list[str] = []
    step = parts(done)
    step.run(beside)
    assert done == ["first", *names, "last"]
    step.capture()
    for streams in (step.streams, []):
        step.streams = streams
        done.clear()
        step.run(beside)
        assert done == ["first", *names, "last"]


def test_parts_between_wait_for_the_first_and_the_last_waits_for_them(cuda: None) -> None:
    step = parts([])
    step.capture()
    home, Stream.waits = Stream.current, []
    step.run(2)
    used = step.streams[:2]
    assert Stream.waits == [*((stream, home) for stream in used), *((home, stream) for stream in used)]


def test_first_and_last_share_stream_and_memory_and_no_other_does(cuda: None) -> None:
    step = parts([])
    step.capture()
    first, last, *between = step.graphs
    assert isinstance(first, Graph)
    assert isinstance(last, Graph)
    assert (first.stream, first.pool) == (last.stream, last.pool)
    assert len({first.stream, *(one.stream for one in between if isinstance(one, Graph))}) == 4
    assert [one.pool for one in between if isinstance(one, Graph)] == [None] * 3


@pytest.fixture
def trainer(short_steps: None) -> DecoderTrainer:
    torch.manual_seed(0)
    trainer = DecoderTrainer(SETTINGS, eager=True)
    trainer.codes.random_(CODEC.codebook_size)
    trainer.audio.normal_(std=0.1)
    for side in (trainer.decoder.rvq_first, trainer.decoder.rvq_rest):
        side.codebooks.normal_()
    return trainer


@pytest.mark.parametrize("fails", [False, True])
def test_preparation_leaves_the_weights_as_they_were(
    cuda: None,
    trainer: DecoderTrainer,
    fails: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(work: Work, stream: Stream, pool: object) -> Graph:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(step_parts, "WARM_UP_ROUNDS", 1)
    if fails:
        monkeypatch.setattr(step_parts, "_recorded", broken)
    before = {name: value.clone() for name, value in trainer.decoder.state_dict().items()}
    monkeypatch.setattr(trainer.parts, "milliseconds", lambda: [1.0] * 13)
    trainer.prepare()
    assert all(torch.equal(value, before[name]) for name, value in trainer.decoder.state_dict().items())
    assert bool(trainer.parts.graphs) != fails
    assert ("not permitted" in capsys.readouterr().out) == fails
    trainer.step(1.0, True)  # works either way
    assert float(trainer.statistics[-1]) > 0


def test_graphs_that_do_not_repeat_the_plain_steps_are_dropped(
    cuda: None, trainer: DecoderTrainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_parts, "WARM_UP_ROUNDS", 1)
    monkeypatch.setattr(step_parts, "_recorded", lambda *_: Graph(lambda: None, Stream(), None))
    trainer.prepare()
    assert trainer.parts.graphs == []
    said = capsys.readouterr().out
    assert "side by side DROPPED" in said
    assert "in a row DROPPED" in said


def test_each_critic_moves_the_decoder_by_its_own_gradient(trainer: DecoderTrainer) -> None:
    trainer.step(1.0, True)
    sizes = trainer.gradients.flatten(1).norm(dim=1)
    assert len(sizes) == 1 + len(trainer.critics)
    assert float(sizes.min()) > 0
    trainer.step(1.0, False)
    assert float(trainer.gradients[1:].abs().max()) == 0
    assert float(trainer.gradients[0].abs().max()) > 0


def test_all_weights_learn(trainer: DecoderTrainer) -> None:
    trainer.step(1.0, False)
    gradients = {name: weight.grad for name, weight in trainer.decoder.named_parameters()}
    assert [name for name, found in gradients.items() if found is None or not float(found.abs().max()) > 0] == []
    assert min(trainer.spectral.tolist()) > 0


def test_the_weight_of_the_mels_falls_to_its_end(trainer: DecoderTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "settings", replace(SETTINGS, harmonic_weight=0, level_weight=0, mel_end=0.25))
    sizes = []
    for progress in (0.0, 1.0):
        trainer.step(0.0, False, progress)
        sizes.append(float(trainer.gradients[0].norm()))
    assert sizes[1] == pytest.approx(0.25 * sizes[0], rel=1e-3)
