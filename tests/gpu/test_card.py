"""One card: its numbers, what follows from them, and the variable that overrides them."""

import logging
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from triton.compiler import compiler  # noqa: E402
from triton.runtime import driver  # noqa: E402
from vivavoce_bench.cards import frame, tune  # noqa: E402
from vivavoce_bench.cards.random_codec import RELEASED_CODEC  # noqa: E402
from vivavoce_bench.cards.shapes import random_models, talker_config  # noqa: E402
from vivavoce_engine import EngineConfig  # noqa: E402
from vivavoce_engine.config import CARD_VARIABLE  # noqa: E402
from vivavoce_engine.gpu.card import H200, Card  # noqa: E402
from vivavoce_engine.gpu.codec.tiles import Tiles, by_descriptors, choose, choose_unit, enough_programs  # noqa: E402
from vivavoce_engine.gpu.frame import FrameModel  # noqa: E402
from vivavoce_engine.gpu.launch import Launcher  # noqa: E402
from vivavoce_engine.gpu.launches import Recorder, record_launches  # noqa: E402
from vivavoce_engine.gpu.linear import GATED, GEMV_TOKENS, PARTS, gemm_blocks  # noqa: E402

from tests.gpu.test_frame import PAD, POSITIONS, config  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
CPU = torch.device("cpu")
GIVEN = os.environ.get(CARD_VARIABLE, "")
"""Override of the whole run, such as to run every test of the folder as on another card."""
HERE = replace(Card.of(DEVICE), dependent_launch=False)
RTX_3090 = Card("NVIDIA GeForce RTX 3090", (8, 6), 101_376, 82, dependent_launch=False, fast_cosine=True)
A100 = Card("NVIDIA A100", (8, 0), 166_912, 108, dependent_launch=False, fast_cosine=True)


@pytest.fixture(autouse=True)
def _no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CARD_VARIABLE, raising=False)
    monkeypatch.setattr(compiler, "max_shared_mem", compiler.max_shared_mem)  # put back after a test that replaces it


def reported(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], hip: str | None = None) -> Card:
    """The card that PyTorch reports with this capability."""
    major, minor = capability
    properties = SimpleNamespace(
        name="Card",
        major=major,
        minor=minor,
        shared_memory_per_block=49_152,
        shared_memory_per_block_optin=101_376,
        multi_processor_count=58,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    return Card.of(torch.device("cuda"))


# ---- the card -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "dependent"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 3), True), ((12, 0), True)]
)
def test_a_card_is_what_pytorch_reports(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dependent: bool
) -> None:
    """Cards from Hopper on can launch dependent kernels; products fetch tiles by descriptors on Hopper alone. All have
    the instruction for a cosine."""
    described = capability == (9, 0)
    assert reported(monkeypatch, capability) == Card("Card", capability, 101_376, 58, dependent, described, True)


def test_amd_s_cards_launch_no_dependent_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    card = reported(monkeypatch, (9, 4), hip="7.0")
    assert not card.dependent_launch
    assert not card.descriptors
    assert not card.fast_cosine


def test_the_interpreter_stands_for_an_h200_that_waits() -> None:
    assert Card.of(CPU) == replace(H200, dependent_launch=False, descriptors=False, fast_cosine=False)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a card")
def test_the_card_that_is_here_has_plausible_numbers() -> None:
    card = Card.of(DEVICE)
    assert card.name == torch.cuda.get_device_name(DEVICE)
    limits = driver.active.utils.get_device_properties(torch.cuda.current_device())
    assert card.shared_bytes == limits["max_shared_mem"]
    assert card.multiprocessors > 1


def test_a_card_is_told_in_a_line() -> None:
    assert str(RTX_3090) == (
        "NVIDIA GeForce RTX 3090 (sm_86, 82 multiprocessors, 101376 bytes of shared memory, no dependent launch)"
    )


# ---- the override ---------------------------------------------------------------------------------------------------


def test_the_override_replaces_what_it_names(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A capability brings its dependent launch along; the shared memory is a limit that Triton keeps."""
    monkeypatch.setenv(CARD_VARIABLE, "capability=8.6 shared_bytes=101376 multiprocessors=82")
    with caplog.at_level(logging.WARNING):
        card = reported(monkeypatch, (9, 0))
    assert card == replace(RTX_3090, name="Card, overridden")
    assert "VIVAVOCE_CARD overrides the card: Card, overridden (sm_86, 82 multi" in caplog.text
    assert compiler.max_shared_mem(0) == 101_376


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        ("dependent_launch=0", "dependent_launch", False),
        ("capability=8.6 dependent_launch=1", "dependent_launch", True),
        ("multiprocessors=28", "multiprocessors", 28),
    ],
)
def test_other_fields_stay_and_no_limit_is_set(
    monkeypatch: pytest.MonkeyPatch, text: str, field: str, expected: object
) -> None:
    limit = compiler.max_shared_mem
    monkeypatch.setenv(CARD_VARIABLE, text)
    card = reported(monkeypatch, (9, 0))
    assert getattr(card, field) == expected
    assert card.shared_bytes == 101_376
    assert compiler.max_shared_mem is limit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sms=82", "unknown field 'sms'; it knows capability, shared_bytes, multiprocessors, dependent_launch"),
        ("82", "unknown field '82'"),
        ("capability=86", "capability must be like 8.6, not '86'"),
        ("shared_bytes=99KB", "shared_bytes must be like 101376, not '99KB'"),
        ("multiprocessors=0", "multiprocessors must be like 82, not '0'"),
        ("dependent_launch=no", "dependent_launch must be like 0 or 1, not 'no'"),
    ],
)
def test_an_override_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.setenv(CARD_VARIABLE, text)
    with pytest.raises(ValueError, match=message):
        Card.of(CPU)


def test_a_triton_whose_limit_cannot_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CARD_VARIABLE, "shared_bytes=101376")
    monkeypatch.delattr(compiler, "max_shared_mem")
    with pytest.raises(ValueError, match=r"VIVAVOCE_CARD cannot limit shared_bytes with Triton \d"):
        Card.of(CPU)


# ---- what follows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 16, 17, 32, 64, 128, 512])
@pytest.mark.parametrize(
    ("k", "mode"), [(1024, 0), (2048, 0), (1024, GATED.value), (2048, GATED.value), (384, PARTS.value)]
)
def test_tiles_by_descriptors_fit_an_h200_and_are_for_its_kind_alone(tokens: int, k: int, mode: int) -> None:
    blocks = gemm_blocks(tokens, k, mode, 2, H200)
    assert blocks.described
    assert H200.fits(blocks.stages, blocks.stage_bytes(mode, 2))
    assert blocks.n <= 32 * blocks.warps, "a thread asks for each row of the weight"
    assert blocks.prefetch == (k <= 1024)
    assert not gemm_blocks(tokens, k, mode, 2, A100).described
    assert not gemm_blocks(tokens, k, mode, 4, H200).described


@pytest.mark.parametrize(
    ("tokens", "mode", "on_h200", "on_a100", "on_3090"),
    [
        (16, 0, 6, 6, 5),
        (32, 0, 6, 6, 5),
        (64, 0, 4, 4, 4),
        (65, 0, 4, 4, 4),
        (16, GATED.value, 6, 5, 3),
        (32, GATED.value, 4, 4, 3),
        (64, GATED.value, 4, 4, 3),
        (65, GATED.value, 4, 4, 4),
    ],
)
def test_stages_fit_the_shared_memory(tokens: int, mode: int, on_h200: int, on_a100: int, on_3090: int) -> None:
    made = [gemm_blocks(tokens, 1024, mode, 2, card) for card in (replace(H200, descriptors=False), A100, RTX_3090)]
    assert [blocks.stages for blocks in made] == [on_h200, on_a100, on_3090]
    assert len({replace(blocks, stages=0) for blocks in made}) == 1, "other tiles would sum in another order"


def test_a_card_that_holds_no_two_stages_gets_one() -> None:
    assert replace(RTX_3090, shared_bytes=20_000).stages(4, 40_960) == 1


def test_code2wav_s_tiles_follow_the_card() -> None:
    assert [enough_programs(card) for card in (H200, A100, RTX_3090)] == [112, 91, 69]
    half = torch.bfloat16
    units = [choose_unit(128 * 112, 192, half, replace(card, multiprocessors=132)) for card in (H200, A100, RTX_3090)]
    assert [(unit.rows, unit.stages) for unit in units if unit] == [(64, 3), (128, 4), (128, 3)]
    several = Tiles(128, 128, 0, 64, 8, 4), Tiles(128, 64, 32, 64, 4, 4), Tiles(64, 128, 0, 64, 4, 4)
    assert [by_descriptors(tiles, 1024) for tiles in several] == [Tiles(128, 128, 0, 64, 4, 3), *several[1:]]
    short = [Tiles(64, 128, 0, 64, 4, 3, 168), Tiles(128, 64, 32, 64, 4, 2, 168), several[2]]
    assert [by_descriptors(tiles, 768) for tiles in several] == short
    # 82 programs of 128 rows keep 82 multiprocessors busy, and too few of 132.
    large, small = (choose(82 * 128, 128, 1024, half, replace(H200, multiprocessors=count)) for count in (82, 132))
    assert (large.rows, small.rows) == (128, 64)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "tile"),
    [
        (128 * 43, 768, 4096, (128, 256, 0)),  # 129 programs
        (128 * 64, 768, 4096, (128, 128, 64)),  # 192 programs of 256 columns are one wave and a half
        (128 * 64, 768, 2048, (128, 128, 0)),
        (128 * 8, 1536, 4096, (128, 64, 32)),  # 128 programs; 96 of the square tiles are too few
        (128 * 8, 1536, 2048, (64, 128, 0)),
    ],
)
def test_the_largest_tiles_leave_no_wave_half_empty(rows: int, columns: int, depth: int, tile: tuple[int, ...]) -> None:
    tiles = choose(rows, columns, depth, torch.bfloat16, H200)
    assert (tiles.rows, tiles.columns, tiles.more_columns) == tile


def test_blocks_that_do_not_fit_are_not_tuned() -> None:
    product = (3072, 1024, GATED.value)
    tried = {card.name: tune.candidates(product, 32, card) for card in (H200, A100, RTX_3090)}
    assert [len(blocks) for blocks in tried.values()] == [27, 11, 3]
    deepest = max(blocks.stages * blocks.stage_bytes(GATED.value, 2) for blocks in tried[H200.name])
    assert deepest <= H200.shared_bytes
    alone = [tune.candidates(product, GEMV_TOKENS, card) for card in (H200, RTX_3090)]
    assert alone[0] == alone[1] != []


# ---- the same codes on every card -----------------------------------------------------------------------------------


def products(multiprocessors: int, *, deterministic: bool) -> set[str]:
    """Launches of products and norms of the 1.7B model on an H200 with another number of multiprocessors."""
    recorder = Recorder(replace(H200, multiprocessors=multiprocessors))
    settings = EngineConfig(deterministic=deterministic)
    record_launches(talker_config("1.7b", layers=1), RELEASED_CODEC, settings, torch.bfloat16, recorder)
    return {str(launch) for launch in recorder.launches if launch.name in ("gemm_kernel", "norm_kernel")}


def test_multiprocessors_change_no_product_of_a_deterministic_engine() -> None:
    fixed = [products(count, deterministic=True) for count in (28, 82, 170)]
    assert fixed[0] == fixed[1] == fixed[2] == products(132, deterministic=True)
    free = [products(count, deterministic=False) for count in (28, 82, 132)]
    assert len({frozenset(launches) for launches in free}) == 3


def said(card: Card, *, deterministic: bool) -> tuple[Tensor, Tensor]:
    """Codes of a frame of two rows, and the last hidden states after their prompts and after the frame."""
    rows, length, layer = 2, 2, replace(config(projected=False).predictor, num_hidden_layers=1)
    shape = replace(config(projected=False), transformer=layer, predictor=layer, num_code_groups=2)
    limits: dict[str, Any] = {"rows": rows, "batch": rows, "prompt_tokens": rows * length, "positions": POSITIONS}
    model = FrameModel(
        *random_models(shape, DEVICE, torch.float32),
        shape,
        ring=2,
        pad_id=PAD,
        deterministic=deterministic,
        launch=Launcher(card),
        **limits,
    )
    generator = torch.Generator().manual_seed(1)
    model.tables.min_frames[:] = 1 << 40
    model.tables.frames[:rows], model.tables.positions[:rows] = -1, length - 1
    model.talker.x[:] = torch.randn(model.talker.x.shape, generator=generator).to(DEVICE)
    model.token_rows[:] = torch.arange(rows).repeat_interleave(length)
    model.token_positions[:] = torch.arange(length).repeat(rows)
    model.rows[:] = torch.arange(rows)
    model.last_tokens[:] = torch.arange(1, rows + 1) * length - 1
    model.prefill(rows, rows * length)
    prompted = model.tables.hidden[:rows].clone()
    model.frame(rows)
    return model.tables.codes[:rows], torch.stack([prompted, model.tables.hidden[:rows]])


@torch.inference_mode()
def test_a_deterministic_engine_says_the_same_on_every_card() -> None:
    """Small enough for the interpreter. Otherwise these cards split sums into two parts and into four."""
    small, large = (replace(HERE, multiprocessors=count) for count in (6, 170))
    (codes, hidden), (other_codes, other_hidden) = said(small, deterministic=True), said(large, deterministic=True)
    assert torch.equal(codes, other_codes)
    assert torch.equal(hidden, other_hidden)
    assert not torch.equal(said(small, deterministic=False)[1], said(large, deterministic=False)[1])


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a card; the interpreter would take hours")
@pytest.mark.parametrize("size", ["0.6b", "1.7b"])
@torch.inference_mode()
def test_the_released_shapes_say_the_same_on_every_card(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(range(8))
    codes = []
    for override in ("", "multiprocessors=28", "multiprocessors=82", "multiprocessors=170"):
        monkeypatch.setenv(CARD_VARIABLE, f"{GIVEN} {override}")
        model = frame.build(size, torch.bfloat16, len(rows), 256, dependent=True, layers=2, deterministic=True)
        frame.start(model, rows, [1000 + 37 * row for row in rows])
        codes.append(frame.speak(model, rows, 8))
    assert all(torch.equal(other, codes[0]) for other in codes[1:])
    assert len(set(codes[0].flatten().tolist())) > 100
