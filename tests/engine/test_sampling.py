"""Drawing codes: the reference's distributions, exact draws, and random numbers independent of the batch.

tests/golden/logits.* holds the output of the reference's own logits processors for given logits.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vivavoce_engine import EngineConfig, SamplingParams
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.cpu import sampling as sampling_module
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.cpu.sampling import GOLDEN, SamplingTable, _inverse_cdf, _mix, uniform
from vivavoce_engine.text.prompt import MIN_FRAMES

from tests.engine.conftest import Checkpoints
from tests.support.golden import load_golden

CPU = torch.device("cpu")
ALMOST_ONE = 1 - 2**-24
LOGITS = load_golden("logits")
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "default": SamplingParams(),
    "top_k": SamplingParams(top_k=3),
    "top_k_1": SamplingParams(top_k=1),
    "everything": SamplingParams(temperature=1.3, top_k=0),
    "top_p": SamplingParams(top_k=0, top_p=0.7),
    "both": SamplingParams(temperature=0.7, top_k=9, top_p=0.9, repetition_penalty=1.3),
    "penalty": SamplingParams(repetition_penalty=2.0),
}


def params_of(settings: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        temperature=settings.get("temperature", 1.0) if settings["do_sample"] else 0.0,
        top_k=settings.get("top_k", 0),
        top_p=settings.get("top_p", 1.0),
        repetition_penalty=settings.get("repetition_penalty", 1.0),
    )


def table_of(*params: SamplingParams) -> SamplingTable:
    table = SamplingTable(len(params), CPU)
    for row, row_params in enumerate(params):
        table.set(row, row_params)
    return table


def random_logits(seed: int, rows: int, codes: int) -> Tensor:
    raw = np.random.PCG64(seed).random_raw(rows * codes).reshape(rows, codes)
    return torch.from_numpy((raw / 2**63 - 1).astype(np.float32) * 5)


def captured_draws(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The probabilities that draws choose by from now on."""
    drawn: list[Tensor] = []

    def capture(probabilities: Tensor, noise: Tensor) -> Tensor:
        drawn.append(probabilities)
        return _inverse_cdf(probabilities, noise)

    monkeypatch.setattr(sampling_module, "_inverse_cdf", capture)
    return drawn


def assert_same_distribution(actual: Tensor, expected: np.ndarray[Any, Any]) -> None:
    reference = torch.from_numpy(expected)
    torch.testing.assert_close(actual, reference, rtol=1e-5, atol=1e-7)
    certain = reference > 1e-30
    assert bool((actual[certain] > 0).all()), "a code that the reference may draw is impossible"
    assert bool((actual[reference == 0] < 1e-30).all()), "a code that the reference never draws is possible"


# ---- the reference's distributions


@pytest.fixture(scope="module")
def runner(checkpoints: Checkpoints) -> TorchRunner:
    checkpoint = read_checkpoint(checkpoints("tiny_32", "custom_voice"))
    return TorchRunner("tiny", checkpoint, EngineConfig(max_streams=4, max_context=64, device="cpu", dtype="float32"))


@pytest.mark.parametrize("name", list(LOGITS.info["talker"]))
def test_code_0_is_drawn_from_the_references_distribution(
    name: str, runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, as a step does it: penalty, minimum length, suppressed codes, temperature, top-k, top-p."""
    params = params_of(LOGITS.info["talker"][name])
    histories, logits = LOGITS.info["histories"], torch.from_numpy(LOGITS.tensors["logits"])
    expected = LOGITS.tensors[f"talker/{name}"]
    kept = [*range(LOGITS.info["codes"]), LOGITS.info["eos"]]
    monkeypatch.setattr(runner._talker, "logits", lambda hidden: logits.clone())
    runner._seen[:] = False
    for row, history in enumerate(histories):
        runner._talker_sampling.set(row, params)
        runner._min_frames[row] = MIN_FRAMES
        runner._seen[row, history] = True
    seen_before = runner._seen.clone()
    drawn = captured_draws(monkeypatch)
    rows, frames = list(range(len(histories))), torch.tensor([len(history) for history in histories])
    codes = runner._draw_code_0(rows, torch.tensor(rows), runner._hidden.clone(), frames)
    if params.temperature == 0:
        assert drawn == []
        assert [kept.index(code) for code in codes.tolist()] == expected.argmax(-1).tolist()
    else:
        (probabilities,) = drawn
        assert_same_distribution(probabilities[:, kept], expected)
        assert probabilities.sum(-1).tolist() == pytest.approx([1.0] * len(rows), abs=1e-5)
        assert probabilities[:, kept].sum(-1).tolist() == pytest.approx([1.0] * len(rows), abs=1e-5)
    newly_seen = seen_before.clone()
    newly_seen[rows, codes] = True
    assert torch.equal(runner._seen, newly_seen)


@pytest.mark.parametrize("name", list(LOGITS.info["predictor"]))
def test_other_codes_are_drawn_from_the_references_distribution(name: str) -> None:
    params = params_of(LOGITS.info["predictor"][name])
    logits = torch.from_numpy(LOGITS.tensors["logits"])[:, : LOGITS.info["codes"]]
    expected = LOGITS.tensors[f"predictor/{name}"]
    rows = list(range(len(logits)))
    sampling = table_of(*[params] * len(rows)).select(rows, torch.tensor(rows))
    if params.temperature == 0:
        assert sampling.draw(logits, torch.full((4,), 0.99)).tolist() == expected.argmax(-1).tolist()
    else:
        assert_same_distribution(sampling.probabilities(logits), expected)


def test_codes_that_tie_with_the_kth_stay() -> None:
    sampling = table_of(SamplingParams(temperature=1, top_k=2)).select([0], torch.tensor([0]))
    probabilities = sampling.probabilities(torch.tensor([[3.0, 2.0, 1.0, 2.0, 2.0]]))[0]
    total = math.e**3 + 3 * math.e**2
    assert probabilities.tolist() == pytest.approx(
        [math.e**3 / total, math.e**2 / total, 0, math.e**2 / total, math.e**2 / total], rel=1e-6
    )


def test_the_likeliest_code_survives_any_top_p() -> None:
    sampling = table_of(SamplingParams(temperature=1, top_k=0, top_p=1e-6)).select([0], torch.tensor([0]))
    assert sampling.probabilities(torch.tensor([[1.0, 3.0, 2.9]])).tolist() == [[0, 1, 0]]


def test_the_penalty_makes_seen_codes_less_likely_whatever_their_sign() -> None:
    sampling = table_of(SamplingParams(repetition_penalty=2.0)).select([0], torch.tensor([0]))
    logits, seen = torch.tensor([[4.0, -4.0, 4.0, -4.0, 0.0]]), torch.tensor([[True, True, False, False, True]])
    assert sampling.penalise(logits, seen).tolist() == [[2.0, -8.0, 4.0, -4.0, 0.0]]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ],
)
def test_impossible_settings_are_refused_by_name(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        SamplingParams(**fields)


# ---- draws


def test_draws_are_as_frequent_as_they_are_likely() -> None:
    draws = 20_000
    logits = torch.tensor([[1.0, -torch.inf, 0.3, -1.0, 2.0, -torch.inf, 0.0, 1.5, -2.0]])
    sampling = table_of(SamplingParams(temperature=1.1, top_k=0)).select([0] * draws, torch.zeros(draws).long())
    noise = uniform(torch.arange(draws), torch.full((draws,), 17), 3)
    counts = sampling.draw(logits.expand(draws, -1), noise).bincount(minlength=9).double()
    expected = (logits[0].double() / 1.1).softmax(-1) * draws
    possible = expected > 0
    assert counts[~possible].tolist() == [0, 0]
    chi_square = ((counts - expected)[possible].square() / expected[possible]).sum().item()
    assert chi_square < 22.5  # the 99.9th percentile with 6 degrees of freedom


def test_the_noise_picks_the_code_whose_share_it_falls_into() -> None:
    shares = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    noise = [0.0, 0.2499, 0.25, 0.7499, 0.75, ALMOST_ONE]
    assert _inverse_cdf(shares.expand(6, -1), torch.tensor(noise)).tolist() == [1, 1, 3, 3, 4, 4]


@pytest.mark.parametrize("noise", [0.0, 2**-24, 0.5, ALMOST_ONE])
def test_an_impossible_code_is_never_drawn(noise: float) -> None:
    """Sums of float32 probabilities miss 1 by a little: the noise near 1 must not fall behind the last code."""
    for seed in range(40):
        logits = random_logits(seed, 8, 3072) * 3
        logits[:, -1000:] = -torch.inf
        logits[:, :3] = -torch.inf
        for params in (SamplingParams(top_k=0), SamplingParams(), SamplingParams(top_k=0, top_p=0.6)):
            sampling = table_of(*[params] * 8).select(list(range(8)), torch.arange(8))
            codes = sampling.draw(logits, torch.full((8,), noise))
            assert bool((sampling.probabilities(logits)[torch.arange(8), codes] > 0).all())


def test_each_row_of_a_mixed_batch_draws_as_it_does_alone() -> None:
    names, rows = list(SETTINGS), list(range(len(SETTINGS)))
    table = table_of(*SETTINGS.values())
    for seed in range(25):
        logits = random_logits(seed, len(rows), 400)
        seen = random_logits(seed + 1000, len(rows), 400) > 2
        noise = uniform(torch.full((len(rows),), seed), torch.arange(len(rows)), 5)
        mixed = table.select(rows, torch.tensor(rows))
        codes = mixed.draw(mixed.penalise(logits, seen), noise)
        for row, name in enumerate(names):
            alone = table.select([row], torch.tensor([row]))
            one = slice(row, row + 1)
            assert alone.draw(alone.penalise(logits[one], seen[one]), noise[one]).item() == codes[row].item(), name


def test_a_row_of_a_mixed_batch_has_the_distribution_that_it_has_alone() -> None:
    table, rows = table_of(*SETTINGS.values()), list(range(len(SETTINGS)))
    logits = random_logits(3, len(rows), 400)
    mixed = table.select(rows, torch.tensor(rows)).probabilities(logits)
    for row, (name, params) in enumerate(SETTINGS.items()):
        if params.temperature:
            alone = table.select([row], torch.tensor([row])).probabilities(logits[row : row + 1])[0]
            assert torch.equal(mixed[row] > 0, alone > 0), name
            torch.testing.assert_close(mixed[row], alone, rtol=1e-6, atol=0)


def test_a_row_takes_new_settings_and_any_order() -> None:
    table = table_of(SamplingParams(), SamplingParams(temperature=0))
    table.set(0, SamplingParams(temperature=0))
    table.set(1, SamplingParams(top_k=1, temperature=5))
    logits = random_logits(1, 2, 50)
    codes = table.select([1, 0], torch.tensor([1, 0])).draw(logits, torch.tensor([0.999, 0.999]))
    assert codes.tolist() == logits.argmax(-1).tolist()


# ---- random numbers


def splitmix(x: int) -> int:
    """The published finaliser, in plain integers."""
    mask = 2**64 - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def number(seed: int, frame: int, codebook: int) -> float:
    counter = frame * 64 + codebook + 1
    return (splitmix((splitmix(seed) + counter * 0x9E3779B97F4A7C15) % 2**64) >> 40) / 2**24


def draw_number(seed: int, frame: int, codebook: int) -> float:
    return uniform(torch.tensor([seed]), torch.tensor([frame]), codebook).item()


def test_the_mixer_is_splitmix64() -> None:
    # The first outputs of the published generator from seed 1234567.
    states = torch.tensor([1234567]) + GOLDEN * torch.arange(1, 4)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [value % 2**64 for value in _mix(states).tolist()] == expected


def test_random_numbers_are_pinned() -> None:
    """A change of these changes what every seed sounds like."""
    places = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (42, 100, 15), (2**63 - 1, 8191, 31), (2**62 + 12345, 7, 63)]
    pinned = [value / 2**24 for value in (14819496, 7239838, 2784103, 12578688, 1592009, 2367022, 10080591)]
    assert [draw_number(*place) for place in places] == pinned
    assert [number(*place) for place in places] == pinned


def test_random_numbers_fill_the_interval_evenly() -> None:
    bins = 64
    for name, numbers in {
        "seeds": uniform(torch.arange(32_768), torch.zeros(32_768).long(), 0),
        "frames": uniform(torch.full((32_768,), 5), torch.arange(32_768), 0),
        "codebooks": torch.cat([uniform(torch.full((1024,), 9), torch.arange(1024), book) for book in range(32)]),
    }.items():
        assert 0 <= numbers.min().item() < numbers.max().item() < 1, name
        counts = (numbers * bins).long().bincount(minlength=bins).double()
        expected = len(numbers) / bins
        chi_square = ((counts - expected).square() / expected).sum().item()
        assert 30 < chi_square < 110, name  # 63 degrees of freedom: less than 30 would be too even


def test_neighbouring_random_numbers_do_not_know_each_other() -> None:
    seeds, frames = torch.arange(256).repeat_interleave(64), torch.arange(64).repeat(256)
    books = torch.stack([uniform(seeds, frames, book).double() for book in range(16)]).view(16, 256, 64)
    for axis, name in enumerate(("codebook", "seed", "frame")):
        size = books.shape[axis]
        one, next_one = books.narrow(axis, 0, size - 1).flatten(), books.narrow(axis, 1, size - 1).flatten()
        correlation = torch.corrcoef(torch.stack([one, next_one]))[0, 1].item()
        assert abs(correlation) < 0.01, name
    assert len(set(books.flatten().tolist())) > 0.99 * books.numel()


def test_a_random_number_does_not_know_its_batch() -> None:
    seeds, frames = torch.arange(50) * 7919, torch.arange(50) % 13
    together = uniform(seeds, frames, 4)
    alone = torch.cat([uniform(seeds[row : row + 1], frames[row : row + 1], 4) for row in range(50)])
    assert torch.equal(together, alone)
    order = torch.arange(49, -1, -1)
    assert torch.equal(uniform(seeds[order], frames[order], 4), together[order])
