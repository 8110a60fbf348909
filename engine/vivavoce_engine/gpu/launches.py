"""Lists every kernel launch that an engine makes. No device is needed, and nothing is computed.

The networks are made of meta tensors, which have shapes and no memory. All graphs are then "launched" by a launcher
that only notes what it is asked for.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.checkpoint.networks import CodecDecoderConfig, TalkerConfig
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.launch import DEPENDENT, Launcher
from vivavoce_engine.gpu.meta import networks_without_storage
from vivavoce_engine.gpu.steps import Steps

POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}
"""Triton's names of pointers."""
DESCRIPTOR = "tensordesc"
"""Beginning of Triton's names of descriptors."""
ABSENT = "none"
"""The type of an argument that is None."""
WARPS, STAGES = 4, 3
"""Triton's defaults."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A distinct launch: Triton compiles one program for it. Values of run-time arguments are left out."""

    name: str
    types: tuple[str, ...]
    """Triton's types of the run-time arguments, in order."""
    constants: tuple[tuple[str, Any], ...]
    """Name and value of each constant, sorted by name."""
    warps: int
    stages: int
    dependent: bool
    """True for a kernel that begins while the kernel in front of it ends."""
    kernel: Any = field(compare=False, repr=False)
    """The kernel itself, as Triton's decorator made it."""
    registers: int = 0
    """Most registers of a thread; 0 is no limit."""

    def __str__(self) -> str:
        constants = " ".join(f"{name}={value}" for name, value in self.constants)
        ending = f", {self.registers} registers" if self.registers else ""
        ending += ", dependent" if self.dependent else ""
        return f"{self.name}({' '.join(self.types)}; {constants}) {self.warps} warps, {self.stages} stages{ending}"


class Recorder(Launcher):
    """Launches nothing, and notes each distinct launch in `launches`."""

    def __init__(self, card: Card) -> None:
        super().__init__(card)
        self.launches: set[KernelLaunch] = set()

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:  # noqa: ANN401
        assert all(size > 0 for size in grid)
        warps, stages = meta.pop("num_warps", WARPS), meta.pop("num_stages", STAGES)
        registers = meta.pop("maxnreg", 0)
        types, constants = tuple(map(type_name, arguments)), tuple(sorted(meta.items()))
        dependent = self.card.dependent_launch and DEPENDENT in kernel.arg_names
        self.launches.add(
            KernelLaunch(kernel.fn.__name__, types, constants, warps, stages, dependent, kernel, registers)
        )


def type_name(argument: Tensor | TensorDescriptor | float | None) -> str:
    """Returns Triton's name for the type of a run-time argument."""
    if argument is None:
        return ABSENT
    if isinstance(argument, TensorDescriptor):
        return f"{DESCRIPTOR}<{POINTERS[argument.base.dtype].removeprefix('*')}{list(argument.block_shape)}>".replace(
            " ", ""
        )
    if isinstance(argument, Tensor):
        return POINTERS[argument.dtype]
    return "fp32" if isinstance(argument, float) else "i32"


def record_launches(
    config: TalkerConfig,
    codec: CodecDecoderConfig,
    settings: EngineConfig,
    dtype: torch.dtype,
    recorder: Recorder,
    alignment: Alignment | None = None,
) -> None:
    """Notes the launches of a model's graphs, and those that prime Code2Wav, in `recorder`."""
    with torch.inference_mode():
        networks = networks_without_storage(config, codec, dtype)
        steps = Steps(networks, config, 0, settings, alignment, recorder)
        for _, launch in (*steps.frame_graphs(), *steps.codec_graphs()):
            launch()
        primed = steps.pieces[0] if networks[2].lookahead_samples == 0 else 0
        for frames in range(1, primed + 1):
            for more in (0, networks[2].memory_frames):
                codes = torch.zeros(frames + more, config.num_code_groups, dtype=torch.int64, device="meta")
                steps.codec.prime(0, codes)
