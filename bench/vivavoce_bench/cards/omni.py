"""Checks and times the speech side of Qwen3-Omni on a GPU: talker with experts, code predictor, Code2Wav.

    python -m vivavoce_bench.cards.omni --out FILE [--rows 1 8 32] [--tune] [--skip-checks]

Weights are random, with the released shapes, made on the card: 7 GB. Reports the kernels' difference from the PyTorch
modules, the equality of graphs and single launches, milliseconds a frame, bytes and share of bandwidth, first audio
after the first id of an answer, and memory.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.device import copy_into, to_host
from vivavoce_engine.gpu.codec.decoder import GpuCodec
from vivavoce_engine.gpu.graphs import Graphs
from vivavoce_engine.gpu.starts import TOKEN_FIELDS, RowStart
from vivavoce_engine.gpu.steps import Steps
from vivavoce_engine.models.codec_decoder import CodecRows
from vivavoce_engine.models.layers import KVCache, RowView
from vivavoce_engine.models.talker import Talker
from vivavoce_engine.pages import pages_of
from vivavoce_engine.text.prompt import NO_ID

from vivavoce_bench.cards import frame
from vivavoce_bench.cards.frame import DEVICE, PROMPT, build, launcher
from vivavoce_bench.cards.omni_engine import time_engine
from vivavoce_bench.cards.omni_experts import (
    BANDWIDTH_TB_S,
    BF16,
    F32,
    Json,
    check_experts,
    distance,
    expert_bytes,
    mixtures,
    time_experts,
    tune,
)
from vivavoce_bench.cards.random_codec import OMNI_CODEC, random_code2wav
from vivavoce_bench.cards.shapes import OMNI, random_models, talker_config
from vivavoce_bench.cards.timing import median_ms

COMMAND = ("python", "-m", "vivavoce_bench.cards.omni", *sys.argv[1:])
ROWS, CONTEXT, POSITIONS, OPENING = 32, 2048, 1280, 300
"""Rows of the timed engine, positions of its longest row and of each, and tokens of a prompt before its first id."""
PROMPT_SIZES = (512, 64, 16)
"""Tokens of a call of prompts, the largest first."""
SHIFT = -8
"""Positions that a picture of 3 x 4 tokens takes from what is behind it."""


# ---- the frame


@torch.inference_mode()
def check_frame() -> Json:
    """A prompt with a picture, and the first frame behind it, by kernels and by modules in float32."""
    config, found = talker_config(OMNI), Json()
    exact, predictor = random_models(config, DEVICE, F32)
    axes = picture_axes()
    for name, dtype in (("fp32", F32), ("bf16", BF16)):
        model = build(OMNI, dtype, 2, 128, dependent=False, deterministic=True)
        tables, dummy = model.tables, model.tables.dummy_row
        assert model.token_axes is not None
        assert tables.shifts is not None
        frame.set_row(model, 1, 3, greedy=True)
        tables.shifts[1] = SHIFT
        given = frame.prompt(model, 3)
        model.rows[0], model.last_tokens[0] = dummy, PROMPT - 1
        model.talker.x[:PROMPT], model.token_rows[:PROMPT], model.token_axes[:PROMPT] = given, 1, axes.T
        model.token_positions[:PROMPT] = torch.arange(PROMPT, device=DEVICE)
        model.prefill(1, PROMPT)
        cache = KVCache(config.transformer, 1, PROMPT + 1, exact.codec_head.weight)
        view = RowView(cache, [0], [0], PROMPT, positions=axes[:, None])
        found[f"{name} prompt"] = distance(tables.hidden[dummy], exact(given.float()[None], view)[0, -1])
        model.rows[0] = 1
        model.frame(1)
        view = RowView(cache, [0], [PROMPT], 1, positions=torch.full((3, 1, 1), PROMPT + SHIFT, device=DEVICE))
        text, opening = tables.text_ids[1, :1], torch.tensor([config.codec_bos_id], device=DEVICE)
        x = exact.text_embedding(text) + exact.codec_embedding(opening)
        found[f"{name} frame"] = distance(tables.hidden[1], exact(x[None], view)[0, -1])
        found[f"{name} equal codes"] = frame.equal_codes(
            predictor, config, tables.hidden[1].float(), tables.codes[1, 0]
        )
        del model
    return found


def picture_axes() -> Tensor:
    """Positions on three axes [3, PROMPT] of a prompt with a picture of 3 x 4 tokens behind its eighth token."""
    axes = torch.arange(PROMPT, device=DEVICE).repeat(3, 1)
    picture = torch.arange(12, device=DEVICE)
    axes[:, 8:20] = 8 + torch.stack([0 * picture, picture // 4, picture % 4])
    axes[:, 20:] += SHIFT
    return axes


@torch.inference_mode()
def check_graphs() -> Json:
    """Frames by graphs and by single launches, with and without dependent launch, and rows alone and in a batch."""
    found: Json = {}
    codes, seeds, rows = {}, [100 + row for row in range(ROWS)], list(range(ROWS))
    for dependent in (False, True):
        model = build(OMNI, BF16, ROWS, 256, dependent, deterministic=True)
        frame.start(model, rows, seeds)
        codes[f"launches {dependent}"] = frame.speak(model, rows, 8)
        graphs = Graphs(torch.cuda.Stream(), eager=False)  # type: ignore[no-untyped-call]
        graphs.record(ROWS, partial(model.frame, ROWS))
        frame.start(model, rows, seeds)
        torch.cuda.synchronize()
        replay = partial(graphs.replay, ROWS)
        codes[f"graph {dependent}"] = frame.speak(model, rows, 8, replay)
    usual = codes["launches False"]
    for name, some in codes.items():
        found[f"{name} equals launches"] = bool(torch.equal(some, usual))
    for batch in (1, 2, 5, 8):
        frame.start(model, rows[3 : 3 + batch], seeds[3 : 3 + batch])
        alone = frame.speak(model, rows[3 : 3 + batch], 8)
        found[f"{batch} rows as among {ROWS}"] = bool(torch.equal(alone, usual[3 : 3 + batch]))
    found["codes differ"] = len({tuple(row.flatten().tolist()) for row in usual}) == ROWS
    return found


# ---- Code2Wav


@torch.inference_mode()
def check_code2wav() -> Json:
    """Code2Wav in pieces by kernels, against the PyTorch module's whole decoding in float32."""
    decoder = random_code2wav(OMNI_CODEC, DEVICE)
    codes = torch.randint(OMNI_CODEC.codebook_size, (3, 24, OMNI_CODEC.num_quantizers), device=DEVICE)
    index = torch.arange(3, device=DEVICE)
    skip = decoder.lookahead_samples
    exact = CodecRows(decoder, 3, decoder.final_conv.weight).decode(index, codes)[:, skip:]
    found: Json = {"skip": skip, "samples": exact.shape[1], "rms": float(exact.square().mean().sqrt())}
    for name, dtype in (("fp32", F32), ("bf16", BF16)):
        for sizes in ((1,) * 24, (8, 8, 8), (1, 2, 4, 8, 8, 1)):
            codec = GpuCodec(decoder, 3, 8, dtype, launch=launcher(dependent=True))
            parts = [codec.decode(index, piece) for piece in torch.split(codes, list(sizes), dim=1)]
            audio = torch.cat(parts, dim=1)[:, skip:]
            found[f"{name} {sizes[:4]}"] = {
                "relative": distance(audio, exact), "largest": float((audio - exact).abs().max())
            }  # fmt: skip
    module = decoder.to(BF16)
    audio = CodecRows(module, 3, module.final_conv.weight).decode(index, codes)[:, skip:].float()
    found["module bf16"] = {"relative": distance(audio, exact), "largest": float((audio - exact).abs().max())}
    return found


# ---- the engine's steps


class Speech:
    """The launches of an engine, in graphs on its two streams."""

    def __init__(self, rows: Sequence[int]) -> None:
        config = talker_config(OMNI)
        talker, predictor = random_models(config, DEVICE, BF16)
        decoder = random_code2wav(OMNI_CODEC, DEVICE)
        settings = EngineConfig(max_streams=ROWS, max_context=CONTEXT, kv_positions=ROWS * POSITIONS)
        self.steps = Steps((talker, predictor, decoder), config, 5, settings, None, launcher(dependent=True))
        del decoder
        torch.cuda.empty_cache()
        self.weights_gb = (
            sum(one.numel() * one.itemsize for net in (talker, predictor) for one in net.parameters()) / 1e9
        )
        self.tables_gb = torch.cuda.memory_allocated() / 1e9 - self.weights_gb
        self.frames, self.rows = torch.cuda.Stream(), rows  # type: ignore[no-untyped-call]
        self.codec = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        self.graphs, self.codec_graphs = Graphs(self.frames, eager=False), Graphs(self.codec, eager=False)
        frames = self.steps.frames
        for row in range(ROWS):
            pages = row * pages_of(POSITIONS) + torch.arange(pages_of(CONTEXT), device=DEVICE)
            frames.cache.pages[row] = pages % settings.kv_pages
        frames.tables.params[:] = torch.tensor([0.9, 50, 1.0, 1.05], device=DEVICE)
        frames.tables.params[:, 1] = torch.tensor([1.0, 50, 0.8, 1.0], device=DEVICE)
        frames.tables.min_frames[:] = 1 << 40
        torch.cuda.synchronize()
        with torch.cuda.stream(self.frames):
            self.graphs.record("rows", self.steps.starts.set_rows)
            self.graphs.record("tokens", self.steps.starts.embed_tokens)
            for count in sorted(rows, reverse=True):
                self.graphs.record(("frame", count), partial(frames.frame, count))
            for size in PROMPT_SIZES:
                self.graphs.record(("prompt", size), partial(self.steps.prefill, size))
        with torch.cuda.stream(self.codec):
            for count in sorted(rows, reverse=True):
                for pieces in (8, 1):
                    self.codec_graphs.record((count, pieces), partial(self.steps.decode, count, pieces))
        torch.cuda.synchronize()

    def set_positions(self, position: int) -> None:
        tables = self.steps.frames.tables
        tables.frames[:], tables.positions[:] = 0, position
        tables.seeds[:] = torch.arange(len(tables.seeds), device=DEVICE)
        tables.code_0[:] = torch.arange(len(tables.seeds), device=DEVICE) * 37 % 2048
        self.steps.frames.rows[:ROWS] = torch.arange(ROWS, device=DEVICE)
        self.steps.codec_rows[:] = torch.arange(ROWS, device=DEVICE)
        torch.cuda.synchronize()

    def step_ms(self, count: int, frames_each: int, steps: int = 48) -> float:
        """Milliseconds of a step with its share of Code2Wav beside it, as the engine runs them."""
        self.set_positions(200)
        began_s = 0.0
        for step in range(-8, steps):
            if step == 0:
                torch.cuda.synchronize()
                began_s = time.perf_counter()
            with torch.cuda.stream(self.frames):
                self.graphs.replay(("frame", count))
                done = self.frames.record_event()
            if step % frames_each == 0:
                self.codec.wait_event(done)
                with torch.cuda.stream(self.codec):
                    self.codec_graphs.replay((count, frames_each))
        torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - began_s) / steps

    def first_audio(self) -> Json:
        """Milliseconds from an answer's first id to its first audio on the host, and of the prompt before it."""
        starts, taken = self.steps.starts, {"prompt": list[float](), "first audio": list[float]()}
        for number in range(25):
            self.set_positions(0)
            begun_s = time.perf_counter()
            with torch.cuda.stream(self.frames):
                params = [0.9, 50, 1.0, 1.05, 1.0, 50, 0.8, 1.0]
                pages = list(range(pages_of(CONTEXT)))
                starts.upload_rows([RowStart(0, number, OPENING, 0, 0, params, pages)])
                self.graphs.replay("rows")
                self._prompt(np.arange(OPENING) % 900)
                torch.cuda.synchronize()
            opened_s = time.perf_counter()
            with torch.cuda.stream(self.frames):
                frames = self.steps.frames
                copy_into(frames.tables.text_ids[0], [7])
                copy_into(frames.tables.text_counts[:1], [1])
                copy_into(frames.rows, [0])
                self.graphs.replay(("frame", 1))
                done = self.frames.record_event()
            self.codec.wait_event(done)
            with torch.cuda.stream(self.codec):
                self.steps.codec.reset(0)
                copy_into(self.steps.codec_rows, [0])
                copy_into(self.steps.codec_first, [0])
                self.codec_graphs.replay((1, 1))
                audio = to_host(self.steps.decoded[1, 1][0])
                self.codec.record_event().synchronize()
            assert audio.shape == (1, 1920)
            taken["prompt"].append(1000 * (opened_s - begun_s))
            taken["first audio"].append(1000 * (time.perf_counter() - opened_s))
        return {name: round(statistics.median(each[5:]), 3) for name, each in taken.items()}

    def _prompt(self, ids: Any) -> None:
        """Runs a prompt of row 0, whose first id of the answer is not known."""
        packed = np.full((len(ids), self.steps.starts.token_fields), NO_ID, np.int64)
        packed[:, 0], packed[:, 2], packed[:, 4] = ids, 0, 0
        packed[:, 3] = np.arange(len(ids))
        packed[:, TOKEN_FIELDS:] = packed[:, 3:4]
        self.steps.starts.upload_tokens(packed, {})
        self.graphs.replay("tokens")
        self.graphs.replay(("prompt", PROMPT_SIZES[0]))


def dense_bytes() -> Json:
    """Bytes of weights that a frame reads beside the experts: the talker's rest, and all passes of the predictor."""
    config = talker_config(OMNI)
    with torch.device("meta"):
        talker = Talker(config)
    stack = [p for name, p in talker.transformer.named_parameters() if ".mlp." not in name]
    attention = sum(p.numel() for p in stack) + talker.codec_head.weight.numel()
    layer = 1024 * (16 + 2 * 8) * 128 + 2048 * 1024 + 3 * 1024 * 3072
    predictor = 15 * (5 * layer + 2048 * 1024)
    return {"talker": 2 * attention, "predictor": 2 * predictor}


@torch.inference_mode()
def time_speech(rows: Sequence[int], contexts: Sequence[int]) -> Json:
    speech, found = Speech(rows), Json()
    frames = speech.steps.frames
    dense = sum(dense_bytes().values())
    for context in contexts:
        for count in rows:
            speech.set_positions(context)
            with torch.cuda.stream(speech.frames):
                ms = median_ms(partial(speech.graphs.replay, ("frame", count)), 40)
                chosen = frames.talker._experts.chosen[:count, :6]
                hit = len(set(chosen.flatten().tolist()))
            layer = expert_bytes(mixtures(frames)[0], 1) // 2
            mixture = mixtures(frames)[0]
            read = dense + 20 * (2 * layer + 2 * (hit - mixture.top) * 3 * mixture.inner * mixture.hidden)
            found[f"frame ms, {count} rows at {context}"] = {
                "ms": round(ms, 3), "GB": round(read / 1e9, 2), "experts hit": hit,
                "share of bandwidth": round(read / ms / 1e9 / BANDWIDTH_TB_S, 3),
            }  # fmt: skip
    with torch.cuda.stream(speech.codec):
        for count in rows:
            for pieces in (1, 8):
                ms = median_ms(partial(speech.codec_graphs.replay, (count, pieces)), 20)
                found[f"code2wav ms, {count} rows of {pieces} frames"] = round(ms, 3)
    for size in PROMPT_SIZES:
        speech.set_positions(0)
        with torch.cuda.stream(speech.frames):
            found[f"prompt ms, {size} tokens"] = round(median_ms(partial(speech.graphs.replay, ("prompt", size))), 3)
    for count in rows:
        found[f"step ms, {count} rows, audio of each frame"] = round(speech.step_ms(count, 1), 3)
        found[f"step ms, {count} rows, audio of 8 frames"] = round(speech.step_ms(count, 8), 3)
    found["after the first id, ms"] = speech.first_audio()
    found["experts"] = time_experts(frames)
    found["memory GB"] = {
        "talker and predictor": round(speech.weights_gb, 2),
        "Code2Wav, tables, keys and values": round(speech.tables_gb, 2),
        f"in all, {ROWS} rows": round(torch.cuda.memory_allocated() / 1e9, 2),
        "reserved": round(torch.cuda.memory_reserved() / 1e9, 2),
        "graphs recorded": len(speech.graphs) + len(speech.codec_graphs),
    }
    return found


def kernels(rows: int) -> Json:
    """Launches and microseconds of each kernel in a frame, the longest first. Dependent launches overlap."""
    shares = frame.kernel_shares(OMNI, rows, dependent=True, deterministic=True)
    return {name: [count, round(us)] for name, count, us in shares[:16]}


# ---- the command


def compile_codec(frames: int) -> None:
    """Compiles Code2Wav's kernels. Runs in a process of its own."""
    try:
        with torch.inference_mode():
            decoder = random_code2wav(OMNI_CODEC, DEVICE)
            codec = GpuCodec(decoder, ROWS, 8, BF16, launch=launcher(dependent=True))
            for batch in (1, 3, 8, 32):
                codes = torch.zeros(batch, frames, OMNI_CODEC.num_quantizers, dtype=torch.int64, device=DEVICE)
                codec.decode(torch.arange(batch, device=DEVICE), codes)
            torch.cuda.synchronize()
    except Exception:
        traceback.print_exc()


def compile_ahead(rows: Sequence[int]) -> None:
    """Compiles most kernels in parallel, on stacks of one layer."""
    jobs = [(OMNI, count, dependent, True) for count in {*rows, 1, 2, 5, 8, ROWS} for dependent in (False, True)]
    with multiprocessing.get_context("spawn").Pool(10) as pool:
        codec = pool.map_async(compile_codec, (1, 2, 4, 8), chunksize=1)
        pool.map(frame.compile_ahead, jobs, chunksize=1)
        codec.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--contexts", nargs="+", type=int, default=[200, 1000])
    parser.add_argument("--skip-checks", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="SECTION", help="names of the sections to run")
    parser.add_argument("--tune", action="store_true", help="also try other tilings of the experts' products")
    args = parser.parse_args()
    began_s, result = time.perf_counter(), Json(card=torch.cuda.get_device_name(), command=" ".join(COMMAND))
    result["versions"] = {"torch": torch.__version__, "triton": triton.__version__}
    compile_ahead(args.rows)
    print(f"compiled in {time.perf_counter() - began_s:.0f} s", flush=True)
    sections: list[tuple[str, Callable[[], Any]]] = []
    if not args.skip_checks:
        sections += [("experts", check_experts), ("frame", check_frame), ("graphs", check_graphs)]
        sections += [("code2wav", check_code2wav)]
    sections += [("times", partial(time_speech, args.rows, args.contexts))]
    sections += [("engine", partial(time_engine, args.rows))]
    sections += [(f"kernels {rows}", partial(kernels, rows)) for rows in (1, ROWS)]
    if args.tune:
        sections += [("tilings", lambda: tune(build(OMNI, BF16, 1, 128, dependent=True, deterministic=True)))]
    for name, section in sections:
        if args.only and name not in args.only:
            continue
        try:
            result[name] = section()
        except Exception as failure:
            traceback.print_exc()
            result[name] = f"failed: {failure}"
        print(f"{time.perf_counter() - began_s:.0f} s: {name}", json.dumps(result[name], indent=1)[:6000], flush=True)
        torch.cuda.empty_cache()
        args.out.write_text(json.dumps(result, indent=1))
    print(f"done in {time.perf_counter() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
