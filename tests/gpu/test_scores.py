"""The scores that a frame keeps are those of the modules, and keeping them changes nothing else."""

import math
import os
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from vivavoce_bench.cards.random_codec import RELEASED_CODEC  # noqa: E402
from vivavoce_bench.cards.shapes import talker_config  # noqa: E402
from vivavoce_engine import EngineConfig  # noqa: E402
from vivavoce_engine.batching.text_paths import WINDOW  # noqa: E402
from vivavoce_engine.checkpoint.alignment import Alignment  # noqa: E402
from vivavoce_engine.checkpoint.networks import RopeConfig  # noqa: E402
from vivavoce_engine.gpu.attention import CHUNK, Cache, PagedCache, Places, Projected, attend  # noqa: E402
from vivavoce_engine.gpu.card import H200, Card  # noqa: E402
from vivavoce_engine.gpu.frame import FrameModel  # noqa: E402
from vivavoce_engine.gpu.launch import Launcher  # noqa: E402
from vivavoce_engine.gpu.meta import networks_without_storage  # noqa: E402
from vivavoce_engine.gpu.sampler import RowTables, draw_code_0  # noqa: E402
from vivavoce_engine.gpu.scores import Scores  # noqa: E402
from vivavoce_engine.gpu.steps import Steps  # noqa: E402
from vivavoce_engine.models.layers import RMSNorm, Rope, RowView, rotate  # noqa: E402

from tests.gpu.test_frame import LENGTHS, PAD, PENALTY, POSITIONS, ROWS, TEXT, Plain  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
LAUNCH = Launcher(replace(Card.of(DEVICE), dependent_launch=False))
on_a_card = pytest.mark.skipif(DEVICE.type != "cuda", reason="the interpreter has no products in bfloat16")
EPS, HEAD_DIM, UNTOUCHED = 1e-6, 16, -7.0
CHUNKS = 3
TOLERANCE = {torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Largest difference to float64, as a share of the scores' norm."""


@dataclass(frozen=True)
class Step:
    """One new token for each of some rows, over keys and values that their caches hold already.

    Positions of a row that it has not reached hold NaN. Pages lie in any order.
    """

    heads: int
    kv_heads: int
    lengths: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def run(self, scores: Scores | None, layer: int) -> tuple[Tensor, PagedCache, list[Tensor]]:
        """Returns the attention's result, the cache after it, and each row's scores by the modules, [heads, L]."""
        generator = torch.Generator().manual_seed(len(self.lengths))

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(DEVICE, self.dtype)

        rows, qk_heads = len(self.lengths) + 1, self.heads + self.kv_heads
        rope = Rope(RopeConfig(1e4, HEAD_DIM))
        cos, sin = (table[0, :, 0].to(DEVICE) for table in rope(torch.arange(CHUNKS * CHUNK)[None]))
        k = torch.full((2, rows * CHUNKS + 1, CHUNK, self.kv_heads, HEAD_DIM), math.nan).to(DEVICE, self.dtype)
        paged = PagedCache(Cache(k, k.clone(), cos, sin, self.heads), rows, tokens=8, split_tokens=2)
        paged.pages[:] = torch.randperm(rows * CHUNKS, generator=generator).view(rows, CHUNKS)
        norm = RMSNorm((qk_heads, HEAD_DIM), EPS).to(DEVICE, self.dtype).requires_grad_(False)
        norm.weight.data = normal(qk_heads, HEAD_DIM)
        qkv = normal(rows - 1, (self.heads + 2 * self.kv_heads) * HEAD_DIM)
        expected = []
        for row, length in enumerate(self.lengths):
            keys = normal(length, self.kv_heads, HEAD_DIM)
            for cached in (paged.cache.k, paged.cache.v):
                flat = torch.full((CHUNKS * CHUNK, self.kv_heads, HEAD_DIM), math.nan).to(DEVICE, self.dtype)
                flat[:length] = keys
                cached[layer, paged.pages[row].long()] = flat.view(CHUNKS, CHUNK, self.kv_heads, HEAD_DIM)
            turns = cos[length].view(1, 1, 1, -1), sin[length].view(1, 1, 1, -1)
            qk = rotate(norm(qkv[row].view(1, 1, -1, HEAD_DIM)[:, :, :qk_heads]), *turns)[0, 0].double()
            seen = torch.cat([keys.double(), qk[None, self.heads :]]).repeat_interleave(self.heads // self.kv_heads, 1)
            expected.append(torch.einsum("hd,lhd->hl", qk[: self.heads], seen) / math.sqrt(HEAD_DIM))
        out = qkv.new_full((rows - 1, self.heads * HEAD_DIM), math.nan)
        some = torch.arange(rows - 1, dtype=torch.int32, device=DEVICE)
        places = Places(paged, some, torch.tensor([*self.lengths, 0], device=DEVICE), by_row=True)
        attend(LAUNCH, places, Projected(layer, qkv, (norm.weight, EPS), out), scores)
        return out, paged, expected


def kept(layer: int, head: int, rows: int, batch: int = 4, positions: int = CHUNKS * CHUNK) -> Scores:
    scores = Scores.allocate(layer, head, rows, positions, batch, DEVICE)
    scores.table.fill_(UNTOUCHED)
    return scores


BORDERS = (2 * CHUNK + 3, CHUNK - 1, CHUNK, 0)


@pytest.mark.parametrize("lengths", [BORDERS[:2], BORDERS[2:], BORDERS], ids=["split", "split at a border", "whole"])
@pytest.mark.parametrize(("heads", "kv_heads", "head"), [(4, 2, 0), (4, 2, 3), (3, 1, 2), (4, 4, 1), (32, 1, 17)])
def test_the_scores_are_the_modules_in_any_group(
    heads: int, kv_heads: int, head: int, lengths: tuple[int, ...]
) -> None:
    step, scores = Step(heads, kv_heads, lengths), kept(1, head, len(lengths) + 1)
    out, paged, expected = step.run(scores, layer=1)
    for row, (length, line) in enumerate(zip(lengths, expected, strict=True)):
        torch.testing.assert_close(scores.table[row, : length + 1].double(), line[head], rtol=1e-5, atol=1e-5)
        assert (scores.table[row, length + 1 :] == UNTOUCHED).all()
    assert (scores.table[-1] == UNTOUCHED).all()
    assert not paged.arrived.any()
    plain_out, plain_paged, _ = step.run(None, layer=1)
    assert torch.equal(out, plain_out)
    for ours, plain in ((paged.cache.k, plain_paged.cache.k), (paged.cache.v, plain_paged.cache.v)):
        torch.testing.assert_close(ours, plain, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=on_a_card)])
def test_the_scores_of_any_dtype(dtype: torch.dtype) -> None:
    scores = kept(0, 2, 5)
    _, _, expected = Step(4, 2, BORDERS, dtype).run(scores, layer=0)
    for row, line in enumerate(expected):
        difference = scores.table[row, : line.shape[1]].double() - line[2]
        assert float(difference.norm()) <= TOLERANCE[dtype] * float(line[2].norm())


def test_another_layer_keeps_no_scores() -> None:
    scores = kept(1, 2, 5)
    Step(4, 2, BORDERS).run(scores, layer=0)
    assert (scores.table == UNTOUCHED).all()


VOCAB, SPEECH, END = 96, 64, 70


def drawn(rows: Tensor, positions: Tensor, scores: Scores | None) -> tuple[RowTables, Tensor]:
    """Draws code 0 of some rows, by random logits."""
    tables = RowTables.allocate(len(positions) - 1, 4, VOCAB, 8, 4, 2, like=torch.empty(0, device=DEVICE))
    tables.positions[:] = positions
    tables.params[:] = torch.tensor([0.9, 50, 0.8, 1.05])
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    ended = torch.full((len(rows),), -1, dtype=torch.int32, device=DEVICE)
    draw_code_0(LAUNCH, logits, rows, tables, ended, END, SPEECH, scores)
    return tables, ended


def test_a_window_is_taken_of_each_row() -> None:
    """Inside one chunk, over a border, up to the last token, behind it, at the end of the table; a dummy row's too."""
    positions = torch.tensor([70, 40, CHUNKS * CHUNK - 1, 100, 0], device=DEVICE)
    firsts = [(0, 5), (3, CHUNK - 10), (1, 40), (1, 41), (2, CHUNKS * CHUNK - 3), (4, 0), (0, 39)]
    rows = torch.tensor([row for row, _ in firsts], dtype=torch.int32, device=DEVICE)
    scores = kept(0, 0, len(positions), batch=len(firsts) + 1)
    scores.table[:] = torch.arange(scores.table.numel(), device=DEVICE).view_as(scores.table)
    scores.window.fill_(UNTOUCHED)
    scores.first[: len(firsts)] = torch.tensor([first for _, first in firsts])
    # A row twice would move on twice, so each call has some rows.
    for begin, end in ((0, 3), (3, 6), (6, 7)):
        part = replace(scores, first=scores.first[begin:], window=scores.window[begin:])
        tables, ended = drawn(rows[begin:end], positions, part)
        plain, plain_ended = drawn(rows[begin:end], positions, None)
        assert torch.equal(ended, plain_ended)
        assert all(torch.equal(table, vars(plain)[name]) for name, table in vars(tables).items() if table is not None)
    for (row, first), window in zip(firsts, scores.window, strict=False):
        at = torch.arange(first, first + WINDOW)
        there = at <= positions[row].cpu()
        line = scores.table[row].cpu()[at.clamp(max=scores.table.shape[1] - 1)]
        assert window.tolist() == line.masked_fill(~there, -math.inf).tolist()
    assert (scores.window[-1] == UNTOUCHED).all()


def test_a_window_before_the_prompt_has_no_scores() -> None:
    scores = kept(0, 0, 2, batch=1)
    scores.first[0] = -2
    drawn(torch.zeros(1, dtype=torch.int32, device=DEVICE), torch.tensor([50, 0], device=DEVICE), scores)
    assert scores.window[0].tolist() == [-math.inf] * 2 + [UNTOUCHED] * (WINDOW - 2)


class Overheard(RowView):
    """Keeps the scores of one head of the last query that a layer has seen."""

    alignment = Alignment(1, 2, 0.0)
    heard: Tensor

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = super().attend(layer, q, k, v)
        if layer == self.alignment.layer:
            ((row, _, stop),) = self._spans
            key_head = self.alignment.head // self._cache.group
            keys = self._cache.k[layer, row, :stop, key_head]
            Overheard.heard = keys @ q[0, -1, self.alignment.head] / math.sqrt(q.shape[-1])
        return out


def started(plain: Plain, alignment: Alignment | None, *, deterministic: bool) -> FrameModel:
    """A model whose rows have had random prompts."""
    model = FrameModel(
        plain.talker, plain.predictor, plain.config, rows=ROWS, batch=4, prompt_tokens=24, positions=POSITIONS, ring=4,
        pad_id=PAD, deterministic=deterministic, alignment=alignment, launch=LAUNCH,
    )  # fmt: skip
    tables = model.tables
    tables.params[:] = torch.tensor([0.0, 50, 1.0, PENALTY])
    tables.min_frames[:] = 1 << 40
    tables.text_ids[:, : len(TEXT)] = torch.tensor(TEXT)
    tables.text_counts[:] = len(TEXT)
    for row, length in enumerate(LENGTHS):
        tables.frames[row], tables.positions[row] = -1, length - 1
    packed = torch.cat(prompts(plain))
    model.talker.x[: len(packed)] = packed
    model.token_rows[:] = tables.dummy_row
    model.token_rows[: len(packed)] = torch.tensor([row for row, n in enumerate(LENGTHS) for _ in range(n)])
    model.token_positions[: len(packed)] = torch.tensor([at for n in LENGTHS for at in range(n)])
    model.rows[:] = torch.tensor([*range(ROWS), tables.dummy_row])
    model.last_tokens[:ROWS] = torch.tensor(LENGTHS).cumsum(0) - 1
    model.prefill(4, 24)
    return model


def prompts(plain: Plain) -> list[Tensor]:
    generator, hidden = torch.Generator().manual_seed(2), plain.config.transformer.hidden_size
    return [torch.randn(length, hidden, generator=generator).to(DEVICE) for length in LENGTHS]


@pytest.mark.parametrize("deterministic", [False, True])
@torch.inference_mode()
def test_a_frame_s_window_is_the_modules_and_its_codes_are_as_without(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in other orders and numbers, with windows of their own; the rest of a batch is the dummy row."""
    monkeypatch.setattr("tests.gpu.test_frame.RowView", Overheard)
    plain = Plain(projected=False)
    model = started(plain, Overheard.alignment, deterministic=deterministic)
    without = started(plain, None, deterministic=deterministic)
    assert without.scores is None
    assert model.scores is not None
    for row, prompt in enumerate(prompts(plain)):
        plain.step(row, prompt, 0)
    firsts = {0: 1, 1: 4, 2: 0}
    for number, rows in enumerate(([2, 0, 1], [2, 0], [2])):
        batch = {3: 4}.get(len(rows), len(rows))
        for one in (model, without):
            one.rows[:] = one.tables.dummy_row
            one.rows[: len(rows)] = torch.tensor(rows)
        model.scores.first[: len(rows)] = torch.tensor([firsts[row] for row in rows])
        model.frame(batch)
        without.frame(batch)
        for at, row in enumerate(rows):
            assert model.tables.codes[row, number].tolist() == plain.frame(row, number, LENGTHS[row])
            count = max(0, len(Overheard.heard) - firsts[row])
            assert len(Overheard.heard) == LENGTHS[row] + number + 1
            window = model.scores.window[at]
            torch.testing.assert_close(window[:count], Overheard.heard[firsts[row] :], rtol=1e-4, atol=1e-4)
            assert (window[count:] == -math.inf).all()
        real = slice(0, ROWS)  # several programs write to the dummy row at once
        for name, table in vars(model.tables).items():
            assert table is None or torch.equal(table[real], vars(without.tables)[name][real]), name
        assert torch.equal(model.ended, without.ended)
        assert torch.equal(model.cache.cache.k[:, :-1], without.cache.cache.k[:, :-1])
        assert torch.equal(model.cache.cache.v[:, :-1], without.cache.cache.v[:, :-1])


class Noted(Launcher):
    """Launches nothing, and notes each launch in order: its kernel, its grid, and whether it deals with scores."""

    def __init__(self) -> None:
        super().__init__(H200)
        self.launches: list[tuple[str, tuple[int, ...], bool]] = []

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:
        self.launches.append((kernel.fn.__name__, grid, bool({"SCORED_HEAD", "TAKEN"} & set(meta))))


def frame_launches(alignment: Alignment | None) -> list[tuple[str, tuple[int, ...], bool]]:
    """All launches of a frame of four rows, and of a prompt."""
    config, launch = talker_config("0.6b", layers=2), Noted()
    networks = networks_without_storage(config, RELEASED_CODEC, torch.bfloat16)
    steps = Steps(networks, config, 0, EngineConfig(max_streams=8), alignment, launch)
    steps.frames.frame(4)
    steps.prefill(16)
    return launch.launches


@torch.inference_mode()
def test_scores_take_no_launch_and_one_layer_s_attention() -> None:
    without, aligned = frame_launches(None), frame_launches(Alignment(1, 3, -45.0))
    assert [launch[:2] for launch in aligned] == [launch[:2] for launch in without]
    assert not any(scored for _, _, scored in without)
    assert [name for name, _, scored in aligned if scored] == ["attention_kernel", "draw_code_0_kernel"]
    attentions = [scored for name, grid, scored in aligned if name == "attention_kernel" and grid[1] == 4]
    assert attentions == [False, True]
