"""Checks and times the frame on a GPU.

    python -m vivavoce_bench.cards.frame --out FILE [--sizes 0.6b 1.7b] [--batches 1 8 …] [--contexts 200 1000]

Weights are random, with the released shapes. Reports the kernels' difference from the plain PyTorch modules, the
independence of a row's result from its batch, the equality of a graph and single launches, and milliseconds per frame.
"""

import argparse
import json
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.checkpoint.networks import TalkerConfig
from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.frame import FrameModel
from vivavoce_engine.gpu.graphs import Graphs
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.layers import KVCache, RowView

from vivavoce_bench.cards.shapes import OMNI, SIZES, random_models, talker_config
from vivavoce_bench.cards.timing import median_ms

DEVICE = torch.device("cuda")
PROMPT = 40
RING = 16
HEAD = Alignment(layer=3, head=0, offset_ms=0.0)
"""Any head: each costs the same."""
TURNS = 9


def launcher(dependent: bool) -> Launcher:
    """The card's launcher; with `dependent` its kernels begin early if the card can do that."""
    card = Card.of(DEVICE)
    return Launcher(replace(card, dependent_launch=dependent and card.dependent_launch))


def build(
    size: str,
    dtype: torch.dtype,
    rows: int,
    positions: int,
    dependent: bool,
    *,
    layers: int | None = None,
    deterministic: bool = False,
    alignment: Alignment | None = None,
) -> FrameModel:
    config = talker_config(size, layers)
    talker, predictor = random_models(config, DEVICE, dtype)
    model = FrameModel(
        talker, predictor, config, rows=rows, batch=rows, prompt_tokens=max(256, 4 * PROMPT), positions=positions,
        ring=RING, pad_id=5, deterministic=deterministic, alignment=alignment,
        opening_id=config.codec_bos_id if size == OMNI else None,
        launch=launcher(dependent),
    )  # fmt: skip
    model.tables.params[:] = torch.tensor([0.9, 50, 1.0, 1.05], device=DEVICE)
    model.tables.params[:, 1, 3] = 1.0
    model.tables.min_frames[:] = 1 << 40
    return model


def set_row(model: FrameModel, row: int, seed: int, greedy: bool = False) -> None:
    tables = model.tables
    # What draws code 0 moves the position on: the prompt's end, or what is read before the first frame.
    tables.seeds[row], tables.frames[row], tables.positions[row] = seed, -1, PROMPT - (tables.kept is None)
    tables.seen[row] = 0
    tables.text_ids[row, :20] = torch.arange(20, device=DEVICE) + seed % 100
    tables.text_counts[row] = 20
    if greedy:
        tables.params[row, :, 0] = 0.0


def prompt(model: FrameModel, seed: int) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    x = torch.randn(PROMPT, model.talker.hidden, generator=generator, device=DEVICE)
    return x.to(model.talker.x.dtype)


def start(model: FrameModel, rows: list[int], seeds: list[int], greedy: bool = False) -> None:
    """Prefills each row on its own, as a scheduler may."""
    for row, seed in zip(rows, seeds, strict=True):
        set_row(model, row, seed, greedy)
        model.rows[0] = row if model.tables.kept is None else model.tables.dummy_row
        model.talker.x[:PROMPT] = prompt(model, seed)
        model.token_rows[:PROMPT] = row
        model.token_positions[:PROMPT] = torch.arange(PROMPT, device=DEVICE)
        if model.token_axes is not None:
            model.token_axes[:PROMPT] = torch.arange(PROMPT, device=DEVICE)[:, None]
        model.last_tokens[0] = PROMPT - 1
        model.prefill(1, PROMPT)


def speak(model: FrameModel, rows: list[int], frames: int, step: Callable[[], None] | None = None) -> Tensor:
    """Codes [rows, frames, groups] of started rows."""
    model.rows[:] = model.tables.dummy_row
    model.rows[: len(rows)] = torch.tensor(rows, dtype=torch.int32)
    for _ in range(frames):
        (step or (lambda: model.frame(len(rows))))()
    return model.tables.codes[rows, :frames].clone()


def equal_codes(predictor: CodePredictor, config: TalkerConfig, hidden: Tensor, codes: Tensor) -> float:
    """Share of the codes [groups] of a frame that the module would draw too, given those before them."""
    forced, equal = iter(codes[1:].tolist()), list[bool]()

    def draw(_: int, logits: Tensor) -> Tensor:
        code = next(forced)
        equal.append(code == logits.argmax(-1).item())
        return torch.tensor([code], device=DEVICE)

    predictor(hidden[None], codes[:1], predictor.frame_cache(config, 1), draw)
    return sum(equal) / len(equal)


def check(size: str) -> dict[str, Any]:
    """Compares the kernels with the modules, a row alone with a row in a batch, and a graph with single launches."""
    return check_modules(size) | check_batches(size)


@torch.inference_mode()
def check_modules(size: str) -> dict[str, Any]:
    """Compares the kernels of a prompt and of a frame with the modules."""
    result: dict[str, Any] = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        config = talker_config(size)
        talker, predictor = random_models(config, DEVICE, dtype)
        exact, exact_predictor = random_models(config, DEVICE, torch.float32)
        model = build(size, dtype, 4, 128, dependent=False)
        start(model, [2], [7], greedy=True)
        ours = model.tables.hidden[2].float().clone()
        hidden = {}
        for kind, module in (("same dtype", talker), ("float32", exact)):
            like = module.codec_head.weight
            view = RowView(KVCache(config.transformer, 1, PROMPT, like), [0], [0], PROMPT)
            hidden[kind] = module(prompt(model, 7)[None].to(like.dtype), view)[0, -1].float()
        cosine = torch.nn.functional.cosine_similarity
        result[f"{name} prefill cosine to float32"] = cosine(ours, hidden["float32"], dim=0).item()
        result[f"{name} module's cosine to float32"] = cosine(hidden["same dtype"], hidden["float32"], dim=0).item()
        code_0 = model.tables.code_0[2].clone()
        codes = speak(model, [2], 1)[0, 0]
        for kind, twin, base in (("same dtype", predictor, ours.to(dtype)), ("float32", exact_predictor, ours)):
            share = equal_codes(twin, config, base, torch.cat([code_0[None], codes[1:]]))
            result[f"{name} codes equal to the {kind} module"] = share
        del talker, predictor, exact, exact_predictor, model
    return result


@torch.inference_mode()
def check_batches(size: str) -> dict[str, Any]:
    """Compares a row alone with a row in a batch, and a graph with single launches."""
    result: dict[str, Any] = {}
    for deterministic in (False, True):
        model = build(size, torch.bfloat16, 64, 256, dependent=False, deterministic=deterministic)
        seeds = [1000 + 37 * row for row in range(64)]
        rows = list(range(64))
        start(model, rows, seeds)
        together = speak(model, rows, 8)
        for batch in (1, 2, 5, 8, 16, 33):
            some = rows[3 : 3 + batch]
            model.tables.codes.zero_()
            start(model, some[::-1], [seeds[row] for row in some[::-1]])
            alone = speak(model, some, 8)
            same = (alone == together[3 : 3 + batch]).float().mean().item()
            result[f"deterministic={deterministic}: codes equal in a batch of {batch} and of 64"] = same
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    graphs = Graphs(stream, eager=False)
    graphs.record(64, lambda: model.frame(64))
    start(model, rows, seeds)
    torch.cuda.synchronize()
    result["graph equals launches"] = bool((speak(model, rows, 8, lambda: graphs.replay(64)) == together).all())
    return result


@torch.inference_mode()
def times(size: str, batches: list[int], contexts: list[int], dependent: bool, deterministic: bool) -> dict[str, Any]:
    """Median milliseconds per frame by context and batch."""
    result: dict[str, Any] = {}
    kind = f"{size} dependent launch={dependent} deterministic={deterministic}"
    rows = max(batches)
    model = build(size, torch.bfloat16, rows, max(contexts) + 200, dependent, deterministic=deterministic)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    graphs = Graphs(stream, eager=False)
    model.rows[:] = torch.arange(rows, device=DEVICE)
    model.tables.positions[:] = max(contexts)
    for batch in sorted(batches, reverse=True):
        graphs.record(batch, partial(model.frame, batch))
    with torch.cuda.stream(stream):
        for context in contexts:
            for batch in batches:
                model.tables.frames[:], model.tables.positions[:] = 0, context
                value = round(median_ms(partial(graphs.replay, batch)), 4)
                result.setdefault(str(context), {})[str(batch)] = value
                print(f"{kind} context {context} batch {batch}: {value:.3f} ms", flush=True)
    return result


@torch.inference_mode()
def word_times(size: str, batches: list[int], context: int, dependent: bool) -> dict[str, Any]:
    """Milliseconds of a frame that keeps a head's scores, over those of one that keeps none, by batch.

    The two take turns, so that both see the same clock of the card. The ratio is the median of the turns' ratios.
    """
    rows = max(batches)
    models = [build(size, torch.bfloat16, rows, context + 200, dependent, alignment=kept) for kept in (HEAD, None)]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    recorded = []
    for model in models:
        graphs = Graphs(stream, eager=False)
        model.rows[:] = torch.arange(rows, device=DEVICE)
        model.tables.positions[:] = context
        for batch in sorted(batches, reverse=True):
            graphs.record(batch, partial(model.frame, batch))
        recorded.append(graphs)
    result: dict[str, Any] = {}
    with torch.cuda.stream(stream):
        for batch in batches:
            turns = []
            for _ in range(TURNS):
                for model in models:
                    model.tables.frames[:], model.tables.positions[:] = 0, context
                turns.append([median_ms(partial(graphs.replay, batch)) for graphs in recorded])
            kept_ms, plain_ms = (statistics.median(column) for column in zip(*turns, strict=True))
            ratio = statistics.median(kept / plain for kept, plain in turns)
            result[str(batch)] = {"ms": round(kept_ms, 4), "without_ms": round(plain_ms, 4), "ratio": round(ratio, 4)}
            print(f"{size} word times, batch {batch}: {result[str(batch)]}", flush=True)
    return result


def kernel_shares(
    size: str, batch: int, dependent: bool, *, deterministic: bool = False
) -> list[tuple[str, int, float]]:
    """Triples (kernel, launches, microseconds) of one frame, longest first."""
    from torch.profiler import ProfilerActivity, profile

    with torch.inference_mode():
        model = build(size, torch.bfloat16, batch, 400, dependent, deterministic=deterministic)
        model.rows[:] = torch.arange(batch, device=DEVICE)
        model.tables.positions[:] = 200
        graphs = Graphs(torch.cuda.Stream(), eager=False)  # type: ignore[no-untyped-call]
        graphs.record(batch, lambda: model.frame(batch))
        graphs.replay(batch)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            graphs.replay(batch)
            torch.cuda.synchronize()
    rows = [(event.key, event.count, event.self_device_time_total) for event in profiler.key_averages()]
    return sorted(rows, key=lambda row: -row[2])


def compile_ahead(job: tuple[str, int, bool, bool]) -> None:
    """Compiles the kernels of a batch size, on stacks of one layer. Runs in a process of its own."""
    size, batch, dependent, fixed = job
    try:
        with torch.inference_mode():
            positions = 1200 if batch < 200 else 400
            model = build(size, torch.bfloat16, batch, positions, dependent, layers=1, deterministic=fixed)
            model.frame(batch)
            start(model, [0], [1])
            torch.cuda.synchronize()
    except Exception:
        traceback.print_exc()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), help="of 0.6b, 1.7b and omni")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--contexts", nargs="+", type=int, default=[200, 1000])
    parser.add_argument(
        "--dependent-launch", nargs="+", type=int, choices=(0, 1), default=[0, 1], help="1: where the card has it"
    )
    parser.add_argument("--deterministic", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--skip-checks", action="store_true")
    parser.add_argument("--profile", action="store_true", help="also measure the time of each kernel")
    parser.add_argument("--word-times", action="store_true", help="also measure what they cost a frame")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--checks-only", action="store_true")
    args = parser.parse_args()
    began_s = time.perf_counter()
    jobs = (
        []
        if args.checks_only
        else [
            (size, batch, bool(dependent), bool(fixed))
            for size in args.sizes
            for batch in (1, 2, 4, 8, 32, 64, 128)
            for dependent in args.dependent_launch
            for fixed in args.deterministic
        ]
    )
    with multiprocessing.get_context("spawn").Pool(16) as pool:
        pool.map(compile_ahead, jobs, chunksize=1)
    if args.compile_only:
        return
    print(f"compiled in {time.perf_counter() - began_s:.0f} s", flush=True)
    result: dict[str, Any] = {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    sections: list[tuple[str, Callable[[], Any]]] = []
    for size in args.sizes:
        for dependent in () if args.checks_only else args.dependent_launch:
            for batch in (1, 64) if args.profile else ():
                shares = partial(kernel_shares, size, batch, bool(dependent))
                sections.append((f"kernels {size} {batch} dependent launch {dependent}", shares))
            for fixed in args.deterministic:
                timed = partial(times, size, args.batches, args.contexts, bool(dependent), bool(fixed))
                sections.append((f"times {size} dependent launch {dependent} deterministic {fixed}", timed))
        for dependent in args.dependent_launch if args.word_times else ():
            kept = partial(word_times, size, args.batches, args.contexts[0], bool(dependent))
            sections.append((f"word times {size} dependent launch {dependent}", kept))
        if not args.skip_checks:
            sections.append((f"check {size}", partial(check, size)))
    for name, section in sections:
        try:
            result[name] = section()
            print(name, json.dumps(result[name])[:1800], flush=True)
        except Exception:
            traceback.print_exc()
        torch.cuda.empty_cache()
        args.out.write_text(json.dumps(result, indent=1))
    print(f"done in {time.perf_counter() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
