"""Compiles the released models' launches for cards that are not here, without Triton's interpreter.

    python -m tests.support.compiled 8.0 8.6 8.9

prints JSON by card. Triton compiles nothing in a process that has imported it for interpretation, as most tests do.
"""

import contextlib
import io
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import torch
import triton
from vivavoce_bench.cards.random_codec import RELEASED_CODEC
from vivavoce_bench.cards.shapes import talker_config
from vivavoce_engine import EngineConfig
from vivavoce_engine.gpu.card import H200, Card, has_dependent_launch, has_descriptors
from vivavoce_engine.gpu.codec.tiles import Tiles
from vivavoce_engine.gpu.launches import KernelLaunch, Recorder, record_launches
from vivavoce_engine.gpu.linear import GATED, Blocks
from vivavoce_engine.gpu.lowering import lower, shared_bytes, too_large

from tests.support.released_launches import released_launches

ROOT = Path(__file__).parents[2]
KIB = 1024
CARDS = {
    "8.0": (163 * KIB, 108),
    "8.6": (99 * KIB, 82),
    "8.9": (99 * KIB, 82),
    "9.0": (227 * KIB, 132),
    "10.0": (227 * KIB, 148),
    "12.0": (99 * KIB, 170),
}
"""Capability → shared memory of a program (CUDA's programming guide, technical specifications per compute capability),
and the multiprocessors of a card of it."""
ALIKE = {"8.0": "8.6", "8.9": "8.6"}
"""Capability → the one that Triton compiles the same program for, which is compiled in its place."""
MANY_ROWS = (256,)
"""An engine of this many rows launches all that one of fewer rows does."""
EXPERTS = {"gated_experts_kernel": 2, "joined_experts_kernel": 1}
"""Kernels of experts, and the weights that each of them reads."""
TILED = ("gemm_kernel", "product_kernel", "unit_kernel", "attention_kernel", "frame_attention_kernel", *EXPERTS)
"""Kernels with tiles in shared memory. The others use at most a few KB, for sums across warps."""
OTHERWISE = ("TRITON_INTERPRET", "TRITON_OVERRIDE_ARCH")
"""Variables with which Triton compiles nothing, or for one card alone."""
MACHINE = ("8.6", "12.0")
"""Capabilities for which one launch of each kernel is compiled down to machine code."""
REFUSING = ("8.0", "12.0")
"""Capabilities for which an H200's launches are compiled too."""
ROWS_MIN = 64
TILING = (
    "BLOCK_T",
    "BLOCK_N",
    "BLOCK_K",
    "BM",
    "BN_0",
    "BN_1",
    "BK",
    "MODE",
    "NORM",
    "ACTIVATION",
    "LENGTH",
    "CHUNK",
    "TILE",
    "STAGES",
    "SPLITS",
    "SCORED_HEAD",
    "HEIGHTS",
    "QUIET",
    "SORTED",
)
"""Constants that decide how much shared memory a program has."""
SCORED, SCORING = {"SCORED_HEAD", "TAKEN"}, " with scores"
"""Constants of a launch that keeps or takes scores, and what it adds to the kernel's name."""
BLOCKS = ("BLOCK_T", "BLOCK_N", "BLOCK_K", "BM", "BN_0", "BK")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


class Tiled(TypedDict):
    """A launch with tiles."""

    shared: int
    """Bytes of shared memory that the compiler gives it."""
    tiles: int | None
    """Bytes of its tiles by the formula that stages are chosen with; None for attention, whose formula is a limit."""


class Machine(TypedDict):
    """A kernel in machine code."""

    registers: int
    spilled: int
    """Bytes of each thread's registers that are spilled."""
    shared: int


class Compiled(TypedDict):
    """All that is known of one card."""

    tiled: dict[str, Tiled]
    """By launch; one of each tiling."""
    largest: int
    """Bytes of the largest tiles of all launches, by the formula."""
    float32: int
    """Most bytes of shared memory that the compiler gives attention in float32."""
    dependent: int
    """Number of launches that begin early."""
    refused: int | None
    """Number of an H200's launches that do not fit, for the cards in REFUSING."""
    machine: dict[str, Machine]
    """By kernel, for the cards in MACHINE."""


def card_of(capability: str) -> Card:
    """A card of this compute capability."""
    major, minor = map(int, capability.split("."))
    shared, multiprocessors = CARDS[capability]
    number = (major, minor)
    early, descriptors = has_dependent_launch(number), has_descriptors(number)
    return Card(f"sm_{major}{minor}", number, shared, multiprocessors, early, descriptors, fast_cosine=True)


@cache
def shared(launch: KernelLaunch, capability: tuple[int, int]) -> int:
    return shared_bytes(launch, capability)


def tiled_launches(launches: list[KernelLaunch]) -> list[KernelLaunch]:
    """One launch of each tiling, for the compiler."""
    tiled = [launch for launch in launches if launch.name in TILED]
    return list({tiling(launch): launch for launch in tiled}.values())


def tiling(launch: KernelLaunch) -> tuple[Any, ...]:
    constants = dict(launch.constants)
    return (launch.name, launch.warps, launch.stages, *map(constants.get, TILING))


def tiles_bytes(launch: KernelLaunch, card: Card) -> int | None:
    constants, itemsize = dict(launch.constants), torch.bfloat16.itemsize
    if launch.name == "gemm_kernel":
        t, n, k = (constants[name] for name in ("BLOCK_T", "BLOCK_N", "BLOCK_K"))
        blocks = Blocks(t, n, k, launch.warps, launch.stages)
        return card.held(launch.stages) * blocks.stage_bytes(constants["MODE"], itemsize)
    if launch.name in EXPERTS:
        t, n, k = (constants[name] for name in ("BLOCK_T", "BLOCK_N", "BLOCK_K"))
        held = card.held(launch.stages) if n >= ROWS_MIN else launch.stages - 1
        return int(held * (EXPERTS[launch.name] * n + t) * k * itemsize)
    if launch.name in ("product_kernel", "unit_kernel"):
        rows, columns, more, depth = (constants[name] for name in ("BM", "BN_0", "BN_1", "BK"))
        tiles = Tiles(rows, columns, more, depth, launch.warps, launch.stages)
        # Tensor cores that read shared memory take 64 rows or more. The others are used for fewer.
        held = card.held(launch.stages) if rows >= ROWS_MIN else launch.stages - 1
        return held * tiles.stage_bytes(torch.bfloat16)
    return None


def kernel_of(launch: KernelLaunch) -> str:
    """The kernel's name. One that keeps or takes scores counts as a kernel of its own."""
    constants = dict(launch.constants)
    return launch.name + SCORING * (not SCORED.isdisjoint(constants))


def heaviest(launches: list[KernelLaunch]) -> list[KernelLaunch]:
    """One launch of each kernel, the one with the largest tiles."""

    def tile(launch: KernelLaunch) -> tuple[float, str]:
        constants = dict(launch.constants)
        gated = 2 if constants.get("MODE") == GATED.value else 1
        return gated * math.prod(max(1, constants.get(name, 1)) for name in BLOCKS), str(launch)

    return list({kernel_of(launch): launch for launch in sorted(launches, key=tile)}.values())


def machine_code(launch: KernelLaunch, capability: tuple[int, int]) -> Machine:
    """Compiles a launch down to machine code."""
    lowered = lower(launch, capability)
    backend, options, metadata = lowered.backend, lowered.options, lowered.metadata
    architecture = backend.target.arch
    code = backend.make_llir(lowered.module, metadata, options, architecture)
    code = backend.make_ptx(code, metadata, options, architecture)
    with triton.knobs.nvidia.scope(), contextlib.redirect_stdout(io.StringIO()) as told:
        triton.knobs.nvidia.dump_ptxas_log = True
        backend.make_cubin(code, metadata, options, architecture)
    spills, registers = SPILLS.search(told.getvalue()), REGISTERS.search(told.getvalue())
    assert spills, told.getvalue()
    assert registers, told.getvalue()
    spilled = max(int(spills[1]), int(spills[2]))
    return {"registers": int(registers[1]), "spilled": spilled, "shared": metadata["shared"]}


def compile_for(capability: str) -> Compiled:
    card, alike = card_of(capability), card_of(ALIKE.get(capability, capability)).capability
    launches = released_launches(card, MANY_ROWS)
    tiled = {
        str(launch): Tiled(shared=shared(launch, alike), tiles=tiles_bytes(launch, card))
        for launch in tiled_launches(launches)
    }
    chosen = heaviest(launches) if capability in MACHINE else []
    machine = {kernel_of(launch): machine_code(launch, card.capability) for launch in chosen}
    dependent = sum(launch.dependent for launch in launches)
    count = refused(card, launches) if capability in REFUSING else None
    largest = max(tiles_bytes(launch, card) or 0 for launch in launches)
    wide = max(shared(launch, alike) for launch in tiled_launches(attention_in_float32(card)))
    return Compiled(tiled=tiled, largest=largest, float32=wide, dependent=dependent, refused=count, machine=machine)


def attention_in_float32(card: Card) -> list[KernelLaunch]:
    """Launches of attention of the wide released model in float32, with few rows and a long context."""
    recorder, config = Recorder(card), talker_config("1.7b", layers=1)
    settings = EngineConfig(max_streams=2, max_context=2048)
    record_launches(config, RELEASED_CODEC, settings, torch.float32, recorder)
    return sorted((launch for launch in recorder.launches if launch.name == "attention_kernel"), key=str)


def refused(card: Card, launches: list[KernelLaunch]) -> int:
    """Number of an H200's launches that a card would refuse."""
    as_on_h200 = released_launches(replace(H200, dependent_launch=card.dependent_launch), MANY_ROWS)
    return len(too_large(set(as_on_h200) - set(launches), card))


@cache
def compiled(*capabilities: str) -> dict[str, Compiled]:
    """Runs this program in a process of its own, and returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if name not in OTHERWISE}
    command = [sys.executable, "-m", "tests.support.compiled", *capabilities]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Compiled] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps({capability: compile_for(capability) for capability in sys.argv[1:]}))
