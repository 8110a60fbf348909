"""`vivavoce bench acceptance`: draws by Gumbel-max, guesses, and what a checkpoint's guesses would save."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from vivavoce_bench.engine import acceptance
from vivavoce_bench.engine.drafts import (
    Draft,
    Frames,
    LaterHeads,
    LinearDraft,
    Replay,
    engine_draws,
    gumbel_draws,
    gumbel_noise,
    logits_of,
    rates,
    replay,
    right_guesses,
)
from vivavoce_bench.engine.guess_study import AT_ONCE, PARAMS, Recorder, slowest, speak
from vivavoce_bench.planning.speculation import count_passes
from vivavoce_engine.checkpoint.files import Checkpoint, read_checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.layers import FrameView
from vivavoce_engine.request import SamplingParams

from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.torch_threads import one_torch_thread

FREE = SamplingParams(temperature=1.0, top_k=0)
TEXTS = ("One and two.", "Three.", "And four, or five.", "Six.", "Seven and eight.", "Nine.")
FRAMES = 12


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny matrices are slower on several threads."""
    with one_torch_thread():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", "tiny", "custom_voice")


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return read_checkpoint(folder)


@pytest.fixture(scope="module")
def recorded(checkpoint: Checkpoint) -> tuple[CodePredictor, Frames]:
    """The code predictor, and the frames of TEXTS."""
    runner = Recorder("tiny", checkpoint, EngineConfig(max_streams=AT_ONCE, runner="torch", device="cpu"))
    speak(runner, TEXTS, FRAMES)
    return runner.recorded()


@pytest.fixture(scope="module")
def run(checkpoint: Checkpoint, recorded: tuple[CodePredictor, Frames]) -> Replay:
    predictor, frames = recorded
    return replay(predictor, checkpoint.talker, frames)


def test_gumbel_draws_have_the_probabilities() -> None:
    count = 20_000
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, -torch.inf]).expand(count, -1)
    draw = gumbel_draws(torch.arange(count), torch.zeros(count, dtype=torch.int64), FREE)
    shares = draw(1, logits).bincount(minlength=5) / count
    torch.testing.assert_close(shares, logits[0].softmax(-1), atol=0.012, rtol=0.0)


def test_noise_is_a_function_of_seed_frame_and_codebook() -> None:
    seed, frame = torch.tensor([3, 3, 4]), torch.tensor([5, 6, 5])
    noise = gumbel_noise(seed, frame, 2, 64)
    assert noise.isfinite().all()
    assert torch.equal(noise[1:2], gumbel_noise(seed[1:2], frame[1:2], 2, 64))
    others = torch.cat([noise, gumbel_noise(seed, frame, 3, 64)])
    assert len(set(others.flatten().tolist())) > 0.99 * others.numel()


def test_gumbel_draws_take_none_but_the_most_likely() -> None:
    logits = torch.arange(8.0).expand(500, -1)
    draw = gumbel_draws(
        torch.arange(500), torch.zeros(500, dtype=torch.int64), SamplingParams(temperature=5.0, top_k=3)
    )
    assert set(draw(1, logits).tolist()) == {5, 6, 7}


def test_greedy_codes_have_no_draws() -> None:
    with pytest.raises(ValueError, match="greedy"):
        gumbel_draws(
            torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), SamplingParams(temperature=0)
        )


def test_recorded_frames_are_drawn_by_gumbel_max(recorded: tuple[CodePredictor, Frames], run: Replay) -> None:
    predictor, frames = recorded
    names = list(zip(frames.seed.tolist(), frames.frame.tolist(), strict=True))
    assert names == sorted(set(names))
    assert set(frames.seed.tolist()) == set(range(len(TEXTS)))
    assert all((frames.seed == seed).sum() <= FRAMES for seed in range(len(TEXTS)))
    draw = gumbel_draws(frames.seed, frames.frame, PARAMS)
    other = engine_draws(frames.seed, frames.frame, PARAMS)
    for codebook in range(1, predictor.groups):
        logits = logits_of(predictor, run.states[:, codebook], codebook)
        assert torch.equal(draw(codebook, logits), frames.codes[:, codebook])
        assert not torch.equal(other(codebook, logits), frames.codes[:, codebook])


class Knowing:
    """A draft that knows what will be drawn, and says so where `says` is true."""

    def __init__(self, predictor: CodePredictor, says: set[tuple[int, int]]) -> None:
        self._predictor, self._says = predictor, says

    def logits(self, run: Replay, last: int, ahead: int) -> Tensor | None:
        codebook = last + 1 + ahead
        logits = logits_of(self._predictor, run.states[:, codebook], codebook)
        return logits if (last, ahead) in self._says else None


def test_right_guesses_are_those_that_equal_the_draw(recorded: tuple[CodePredictor, Frames], run: Replay) -> None:
    predictor, frames = recorded
    draw = gumbel_draws(frames.seed, frames.frame, PARAMS)
    right = right_guesses(Knowing(predictor, {(0, 0), (1, 1)}), predictor, run, draw, 2)
    expected = np.zeros((len(frames), predictor.groups - 1, 2), np.bool_)
    expected[:, 0, 0] = expected[:, 1, 1] = True
    assert np.array_equal(right, expected)


def test_rates_count_guesses_behind_right_ones_that_save_a_pass() -> None:
    right = np.zeros((2, 3, 2), np.bool_)
    right[0, 0] = right[1, 0] = (True, False)
    right[0, 0, 1] = True
    right[:, 2] = True  # the last code
    assert rates(right) == [0.5, 0.5]
    assert rates(np.zeros((2, 3, 4), np.bool_)) == [0.0] * 4


def test_later_heads_have_no_guess_before_the_first_pass(recorded: tuple[CodePredictor, Frames], run: Replay) -> None:
    predictor, _ = recorded
    heads = LaterHeads(predictor)
    assert heads.logits(run, 0, 0) is None
    logits = heads.logits(run, 1, 1)
    assert logits is not None
    assert torch.equal(logits, logits_of(predictor, run.states[:, 1], 3))


def test_a_linear_draft_finds_a_linear_predictor(recorded: tuple[CodePredictor, Frames]) -> None:
    predictor, _ = recorded
    generator = torch.Generator().manual_seed(0)
    count, groups, hidden = 4000, predictor.groups, predictor.transformer.norm.weight.shape[0]
    frames = Frames(*(torch.zeros(count, 1),) * 2, torch.arange(count), torch.zeros(count, dtype=torch.int64))
    states = torch.randn(count, groups, hidden, generator=generator)
    inputs = torch.randn(count, groups - 1, hidden, generator=generator)
    # Code 3 follows from the state of code 1 and from code 2; code 2 from nothing that is seen.
    states[:, 3] = (states[:, 1] - inputs[:, 2]) @ torch.randn(hidden, hidden, generator=generator) / hidden**0.5
    half = torch.arange(count) < count // 2
    fitted, judged = (Replay(frames.part(part), states[part], inputs[part]) for part in (half, ~half))
    draw = gumbel_draws(judged.frames.seed, judged.frames.frame, FREE)
    right = right_guesses(LinearDraft(predictor, fitted, 2), predictor, judged, draw, 2)
    blind = right_guesses(LaterHeads(predictor), predictor, judged, draw, 2)
    assert right[:, 1, 1].mean() > 0.9
    assert right[:, 1, 0].mean() < right[:, 1, 1].mean() - 0.2
    assert blind[:, 1, 1].mean() < right[:, 1, 1].mean() - 0.2


@torch.inference_mode()
def guessed_frame(
    predictor: CodePredictor, checkpoint: Checkpoint, run: Replay, draft: Draft, k: int
) -> tuple[Tensor, int]:
    """Makes the only frame of `run` with k guesses a pass → its codes [groups], and the number of passes.

    The draft sees `run`, whose codes behind the last one drawn are its own earlier guesses.
    """
    frames, groups = run.frames, predictor.groups
    draw = gumbel_draws(frames.seed, frames.frame, PARAMS)
    cache = predictor.frame_cache(checkpoint.talker, 1)
    codes, passes, last = frames.codes.clone(), 0, 0
    codes[:, 1:] = 0
    while last < groups - 1:
        guesses = []
        for ahead in range(min(k, groups - 2 - last)):
            logits = draft.logits(run, last, ahead)
            if logits is None:
                break
            guesses.append(draw(last + 1 + ahead, logits))
            run.inputs[:, last + 1 + ahead] = predictor.input_embedding[last + 1 + ahead](guesses[-1])
        read = run.inputs[:, last : last + 1 + len(guesses)]
        start = last + 1
        if last == 0:
            read, start = torch.cat([run.states[:, :1], read], dim=1), 0
        out = predictor.transformer(read, FrameView(cache, 1, start, start + read.shape[1]))[:, -1 - len(guesses) :]
        passes += 1
        for guess in (*guesses, None):
            last += 1
            run.states[:, last] = out[:, 0]
            out = out[:, 1:]
            codes[:, last] = draw(last, logits_of(predictor, run.states[:, last], last))
            if last < groups - 1:
                run.inputs[:, last] = predictor.input_embedding[last](codes[:, last])
            if guess is None or guess != codes[:, last]:
                break
    return codes[0], passes


@pytest.mark.parametrize("kind", ["later heads", "linear draft"])
def test_codes_are_the_same_with_and_without_guesses(
    checkpoint: Checkpoint, recorded: tuple[CodePredictor, Frames], run: Replay, kind: str
) -> None:
    predictor, frames = recorded
    draft: Draft = LaterHeads(predictor) if kind == "later heads" else LinearDraft(predictor, run, 2)
    draw = gumbel_draws(frames.seed, frames.frame, PARAMS)
    expected = count_passes(right_guesses(draft, predictor, run, draw, 2))
    for number in range(0, len(frames), 3):
        one = torch.arange(len(frames)) == number
        blank = Replay(frames.part(one), torch.zeros_like(run.states[one]), torch.zeros_like(run.inputs[one]))
        blank.states[:, 0], blank.inputs[:, 0] = run.states[one, 0], run.inputs[one, 0]
        codes, passes = guessed_frame(predictor, checkpoint, blank, draft, 2)
        assert torch.equal(codes, frames.codes[number])
        assert passes == expected[number]
    if kind == "linear draft":
        assert expected.min() < predictor.groups - 1, "no guess was right, so nothing was tested"


def test_the_slowest_of_a_group_counts() -> None:
    assert slowest(np.array([3, 5, 4, 2, 7]), 2).tolist() == [4, 5]


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    acceptance.add_arguments(parser)
    return parser.parse_args(words)


def test_the_command_measures_and_calculates(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = tmp_path / "steps.json"
    steps.write_text(json.dumps({"frame_ms": {"big": {"1": 3.0, "2": 3.0, "32": 3.0}}}))
    words = ("--model", str(folder), "--utterances", "6", "--frames", "8", "--guesses", "2")
    card = ("--card", str(steps), "--card-model", "big", "--talker-ms", "1.0", "--codes", "5")
    assert acceptance.run(arguments(*words, *card)) == 0
    out = capsys.readouterr().out
    document = json.loads(out.splitlines()[-1])
    assert document["frames"]["held_out"] <= 16  # utterances 0 and 4
    assert document["frames"]["fitted"] <= 32
    assert document["frames"]["held_out"] > 8
    draft = document["guesses"]["linear draft"]
    assert len(draft["rates"]) == len(draft["by_code"]) == len(draft["passes"]) == 2
    assert list(draft["by_code"][1]) == [str(code) for code in range(2, document["codes"] + 1)]
    assert draft["passes"][0]["1"] <= draft["passes"][0]["2"] <= document["codes"]
    row = document["card"]["linear draft"][0]
    assert row["loop_ms"] == pytest.approx(1.0 + row["passes"] * 2.0 / 5)
    assert "linear draft" in out.splitlines()[-3]


def test_a_calculation_from_given_rates_needs_no_speech(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = tmp_path / "steps.json"
    steps.write_text(json.dumps({"frame_ms_without_deterministic": {"big": {"1": 3.0, "16": 3.0}}}))
    card = ("--card", str(steps), "--card-model", "big", "--deterministic", "false", "--talker-ms", "1.0")
    assert acceptance.run(arguments("--model", "/nowhere", *card, "--guess-us", "10", "--rates", "1.0")) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])["card"]["given"][0]
    assert row["passes"] == 8
    assert row["loop_ms"] == pytest.approx(1.0 + 8 * (2.0 / 15 + 0.01))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rates", "0.5"), "--rates needs --card"),
        (
            ("--card", "STEPS", "--card-model", "big", "--talker-ms", "1", "--rates", "1.5"),
            "--rates must be from 0 to 1",
        ),
        (("--utterances", "1", "--frames", "2"), "at least 4 utterances"),
        (("--card", "/nowhere.json"), "--card: /nowhere.json has no frame_ms of 1.7b"),
        (("--card", "STEPS", "--card-model", "big"), "--talker-ms must be above 0 and below a frame's 3"),
        (("--prompts", "/nowhere.txt"), "prompts:"),
    ],
)
def test_bad_arguments_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    steps = tmp_path / "steps.json"
    steps.write_text(json.dumps({"frame_ms": {"big": {"1": 3.0}}}))
    words = tuple(str(steps) if word == "STEPS" else word for word in words)
    assert acceptance.run(arguments("--model", str(folder), *words)) == 2
    assert message in capsys.readouterr().err


def test_a_checkpoint_without_a_voice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = write_checkpoint(tmp_path / "base", "tiny", "base")
    assert acceptance.run(arguments("--model", str(base), "--utterances", "4")) == 2
    assert capsys.readouterr().err.startswith("bench acceptance: ")


def test_a_designed_voice_is_heard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    design = write_checkpoint(tmp_path / "design", "tiny", "voice_design")
    assert acceptance.run(arguments("--model", str(design), "--utterances", "4", "--frames", "4")) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["frames"]["fitted"] > 4
