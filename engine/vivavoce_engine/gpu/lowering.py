"""Compiles launches for any NVIDIA card, on a machine that may have none, to learn whether they fit it.

The first half of Triton's compiler decides how much shared memory a program has: from the kernel's source to the
allocation of its tiles. It takes a tenth of a second for a launch. This module names private parts of Triton.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import triton
from triton._C.libtriton import ir, nvidia, passes
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptx_version_from_options
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime import JITFunction

from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.launch import DEPENDENT
from vivavoce_engine.gpu.launches import ABSENT, DESCRIPTOR, KernelLaunch

KNOWN_TRITON = ("3.6", "3.7")
ALIGNED = [["tt.divisibility", 16]]
"""Attribute of a pointer to a multiple of 16 bytes, as all buffers are."""
WARP_SIZE = 32


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program in Triton's GPU dialect: its tiles have layouts, and its loops are pipelines."""

    backend: Any
    options: Any
    context: Any
    """Owns the module, which is lost without it."""
    module: Any
    metadata: dict[str, Any]


def lower(launch: KernelLaunch, capability: tuple[int, int]) -> Lowered:
    """Compiles a launch for a card down to Triton's GPU dialect.

    Raises:
        RuntimeError: this Triton is of another version, or interprets kernels.
    """
    if not triton.__version__.startswith(KNOWN_TRITON):
        raise RuntimeError(f"launches are lowered with Triton {' or '.join(KNOWN_TRITON)}, not {triton.__version__}")
    if not isinstance(launch.kernel, JITFunction):
        raise RuntimeError("Triton interprets kernels in this process, because TRITON_INTERPRET is set")
    architecture = 10 * capability[0] + capability[1]
    target = GPUTarget("cuda", architecture, WARP_SIZE)
    backend, source = make_backend(target), _source(launch)
    given = source.parse_options() | {"num_warps": launch.warps, "num_stages": launch.stages}
    if launch.registers:
        given["maxnreg"] = launch.registers
    options = backend.parse_options(given)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    metadata: dict[str, Any] = {}
    module = source.make_ir(target, options, functions, backend.get_module_map(), context)
    module = backend.make_ttir(module, metadata, options, architecture)
    module = backend.make_ttgir(module, metadata, options, architecture)
    return Lowered(backend, options, context, module, metadata)


def shared_bytes(launch: KernelLaunch, capability: tuple[int, int]) -> int:
    """Returns the shared memory of a launch on a card, in bytes. Raises as `lower`."""
    lowered = lower(launch, capability)
    architecture = lowered.backend.target.arch
    manager = ir.pass_manager(lowered.context)
    # The passes at the beginning of the backend's `make_llir`, up to the one that allocates.
    passes.ttgpuir.add_combine_tensor_select_and_if(manager)
    passes.ttgpuir.add_allocate_warp_groups(manager)
    passes.convert.add_scf_to_cf(manager)
    passes.gluon.add_inliner(manager)
    ptx_version = get_ptx_version_from_options(lowered.options, architecture)
    nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, architecture, ptx_version)
    manager.run(lowered.module, "allocate")
    return int(lowered.module.get_int_attr("ttg.shared"))


def too_large(launches: Iterable[KernelLaunch], card: Card) -> dict[KernelLaunch, int]:
    """Returns the launches that do not fit a card, with the bytes of shared memory that each wants. Raises as
    `lower`."""
    wanted = {launch: shared_bytes(launch, card.capability) for launch in launches}
    return {launch: size for launch, size in wanted.items() if size > card.shared_bytes}


def _source(launch: KernelLaunch) -> ASTSource:
    """The kernel with the launch's types and constants."""
    types = dict(zip(launch.kernel.arg_names, launch.types, strict=False))
    constants = dict(launch.constants) | ({DEPENDENT: True} if launch.dependent else {})
    signature: dict[str, str] = {}
    values: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], Any] = {}
    for parameter in launch.kernel.params:
        place, kind = (parameter.num,), types.get(parameter.name, ABSENT)
        signature[parameter.name] = "constexpr" if kind == ABSENT else kind
        if kind == ABSENT:
            absent = None if parameter.name in types else parameter.default
            values[place] = constants.get(parameter.name, absent)
        elif kind.startswith("*"):
            attributes[place] = ALIGNED
        elif not kind.startswith(DESCRIPTOR):
            assert kind == "fp32" or parameter.do_not_specialize, f"{parameter.name} of {launch.name} is specialised"
    return ASTSource(launch.kernel, signature, values, attributes)
