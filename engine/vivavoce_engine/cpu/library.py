"""The library of the CPU's kernels (native/): the one that this processor runs, and its C interface for ctypes.

Each structure is the twin of one in native/interface.h: the same fields in the same order. Torch-free.
"""

import ctypes
import logging
import os
import platform
import sys
from ctypes import c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vivavoce_engine.config import LEVEL_VARIABLE
from vivavoce_engine.cpu.build import digest_of, digest_path, sources_digest, stored_digests
from vivavoce_engine.errors import EngineError

log = logging.getLogger(__name__)

INTERFACE = 3
"""VIVAVOCE_INTERFACE of the header that the structures below are twins of."""
BLOCK = 32
"""Outputs of a block of packed weights."""
FLOAT32, BFLOAT16, INT8, INT11 = range(4)
"""Kinds of weights."""
FOLDER = Path(__file__).parent / "native"
BUILD = "python -m vivavoce_engine.cpu.build"
"""The command that compiles the libraries, or says what it lacks."""
NO_EXPERTS = "Vivavoce's kernels for CPUs have no mixture of experts, which the talker of Qwen3-Omni is."
SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
CPU_INFO = Path("/proc/cpuinfo")
AVX2_FLAGS = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
"""Flags of /proc/cpuinfo that code for x86-64-v3 may use."""
AVX512_FLAGS = AVX2_FLAGS | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}
"""Flags that code for x86-64-v4 with VNNI may use."""
WINDOWS_AVX2, WINDOWS_AVX512 = 40, 41
"""Numbers of processor features that Windows tells."""


class NoLibrary(EngineError):
    """No library of kernels can be used here. Says why."""


class Refused(EngineError):
    """A kernel refused its arguments, and has changed nothing."""


class Matrix(ctypes.Structure):
    _fields_ = (
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int32),
        ("outputs", c_int32),
        ("kind", c_int32),
        ("block", c_int32),
    )


class Table(ctypes.Structure):
    _fields_ = (("weights", c_void_p), ("rows", c_int32), ("width", c_int32), ("kind", c_int32))


class Layer(ctypes.Structure):
    _fields_ = (
        ("qkv", Matrix),
        ("out", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("norm_1", c_void_p),
        ("norm_2", c_void_p),
        ("qk_norm", c_void_p),
        ("scale_1", c_void_p),
        ("scale_2", c_void_p),
    )


class Stack(ctypes.Structure):
    _fields_ = (
        ("layers", c_void_p),
        ("norm", c_void_p),
        ("frequencies", c_void_p),
        ("count", c_int32),
        ("hidden", c_int32),
        ("inner", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("positions", c_int32),
        ("epsilon", c_float),
    )


class Talker(ctypes.Structure):
    _fields_ = (
        ("stack", Stack),
        ("head", Matrix),
        ("text", Table),
        ("codec", Table),
        ("later", c_void_p),
        ("groups", c_int32),
        ("end_code", c_int32),
        ("first_control", c_int32),
        ("pad_id", c_int32),
        ("alignment_layer", c_int32),
        ("alignment_head", c_int32),
    )


class Predictor(ctypes.Structure):
    _fields_ = (
        ("stack", Stack),
        ("projection", Matrix),
        ("heads", c_void_p),
        ("inputs", c_void_p),
        ("groups", c_int32),
        ("has_projection", c_int32),
    )


class Sampling(ctypes.Structure):
    _fields_ = (("temperature", c_float), ("top_p", c_float), ("penalty", c_float), ("top_k", c_int32))


class Rows(ctypes.Structure):
    _fields_ = (
        ("talker_keys", c_void_p),
        ("talker_values", c_void_p),
        ("frame_keys", c_void_p),
        ("frame_values", c_void_p),
        ("hidden", c_void_p),
        ("seed", c_void_p),
        ("code_0", c_void_p),
        ("trailing", c_void_p),
        ("trailing_count", c_void_p),
        ("min_frames", c_void_p),
        ("codes", c_void_p),
        ("seen", c_void_p),
        ("talker_sampling", c_void_p),
        ("predictor_sampling", c_void_p),
        ("rows", c_int32),
        ("ring", c_int32),
        ("trailing_length", c_int32),
    )


class Snake(ctypes.Structure):
    _fields_ = (("frequency", c_void_p), ("magnitude", c_void_p))


class Conv(ctypes.Structure):
    _fields_ = (
        ("matrix", Matrix),
        ("taps", c_int32),
        ("dilation", c_int32),
        ("inputs", c_int32),
        ("outputs", c_int32),
    )


class Unit(ctypes.Structure):
    _fields_ = (("snake_1", Snake), ("snake_2", Snake), ("conv_1", Conv), ("conv_2", Conv))


class Upsampling(ctypes.Structure):
    _fields_ = (("snake", Snake), ("conv", Conv), ("rate", c_int32), ("channels", c_int32), ("units", Unit * 3))


class Latent(ctypes.Structure):
    _fields_ = (
        ("conv", Conv),
        ("ratio", c_int32),
        ("channels", c_int32),
        ("depthwise", c_void_p),
        ("depthwise_bias", c_void_p),
        ("norm", c_void_p),
        ("norm_bias", c_void_p),
        ("gamma", c_void_p),
        ("wide", Matrix),
        ("narrow", Matrix),
    )


class Codec(ctypes.Structure):
    _fields_ = (
        ("codebooks", c_void_p),
        ("semantic", Matrix),
        ("acoustic", Matrix),
        ("pre", Conv),
        ("input", Matrix),
        ("output", Matrix),
        ("stack", Stack),
        ("latents", c_void_p),
        ("head", Conv),
        ("blocks", c_void_p),
        ("snake", Snake),
        ("mono", c_void_p),
        ("mono_bias", c_float),
        ("codebook_count", c_int32),
        ("semantic_count", c_int32),
        ("window", c_int32),
        ("latent_count", c_int32),
        ("block_count", c_int32),
        ("channels", c_int32),
        ("samples_per_frame", c_int32),
        ("memory_frames", c_int32),
    )


STRUCTURES: tuple[type[ctypes.Structure], ...] = (
    Matrix,
    Table,
    Layer,
    Stack,
    Talker,
    Predictor,
    Sampling,
    Rows,
    Snake,
    Conv,
    Unit,
    Upsampling,
    Latent,
    Codec,
)
P, I32, I64 = c_void_p, c_int32, c_int64
SIGNATURES: dict[str, tuple[type[Any] | None, tuple[type[Any], ...]]] = {
    "vivavoce_interface": (I32, ()),
    "vivavoce_isa": (ctypes.c_char_p, ()),
    "vivavoce_refusal": (ctypes.c_char_p, (I32,)),
    "vivavoce_pool": (P, (I32,)),
    "vivavoce_pool_end": (None, (P,)),
    "vivavoce_start_scratch": (I64, (P, I32)),
    "vivavoce_start": (I32, (P, P, P, I32, I32, P, P)),
    "vivavoce_force": (I32, (P, P, P, P, I32, P, P)),
    "vivavoce_frame_scratch": (I64, (P, P, I32)),
    "vivavoce_frame": (I32, (P, P, P, P, I32, P, P, P, P, P, P, P)),
    "vivavoce_code2wav_state": (I64, (P,)),
    "vivavoce_code2wav_scratch": (I64, (P, I32)),
    "vivavoce_code2wav": (I32, (P, P, P, I64, I32, I32, P, P, P)),
    "vivavoce_product": (I32, (P, P, P, I64, I32, I32, I64, P, P, I64)),
    "vivavoce_draw": (I32, (P, I32, P, c_float)),
    "vivavoce_uniform": (c_float, (I64, I64, I32)),
}
"""Function → its result and its arguments. A pointer is an address; ctypes holds no GIL while the function runs."""


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded library. `functions` has those of SIGNATURES as attributes."""

    level: str
    path: Path
    functions: Any
    sha256: str
    """SHA-256 of the bytes that were loaded, in hexadecimal."""

    def check(self, result: int) -> None:
        """Raises Refused if a function's result is one."""
        if result < 0:
            raise Refused(f"the kernels refused: {self.functions.vivavoce_refusal(result).decode()}")


def levels_here() -> tuple[str, ...]:
    """The levels of instructions that this processor has, the fastest first."""
    machine = platform.machine().lower()
    if machine in ("arm64", "aarch64"):
        return ("neon",)
    if machine not in ("x86_64", "amd64"):
        return ()
    wide = _x86_levels()
    return (*wide, "portable")


def _x86_levels() -> tuple[str, ...]:
    if sys.platform == "win32":
        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        found = bool(present(WINDOWS_AVX2)), bool(present(WINDOWS_AVX512))
    else:
        flags = _cpu_flags()
        found = flags >= AVX2_FLAGS, flags >= AVX512_FLAGS
    return ("avx512", "avx2") if all(found) else ("avx2",) if found[0] else ()


def _cpu_flags() -> frozenset[str]:
    """The processor's flags as Linux tells them. Empty elsewhere."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


def file_of(level: str) -> Path:
    return FOLDER / f"libvivavoce-{level}{SUFFIX}"


def load_library() -> Library:
    """Loads the library of the best level that this processor has, or of the level that LEVEL_VARIABLE names.

    Raises:
        NoLibrary: there is none that can be used. Says why.
    """
    return _load(os.environ.get(LEVEL_VARIABLE, ""))


def why_no_library() -> str:
    """The reason for which the CPU's kernels cannot be used. Empty if they can."""
    try:
        load_library()
    except NoLibrary as error:
        return str(error)
    return ""


@cache
def _load(named: str) -> Library:
    if ctypes.sizeof(c_void_p) != 8:
        raise NoLibrary("the CPU's kernels need a 64-bit Python.")
    levels = levels_here()
    if not levels:
        raise NoLibrary(f"there are no kernels for processors of the kind {platform.machine()}.")
    if named and named not in levels:
        raise NoLibrary(f"{LEVEL_VARIABLE} is {named!r}; this processor has {', '.join(levels)}.")
    reasons: list[str] = []
    for level in (named,) if named else levels:
        path = file_of(level)
        if not path.is_file():
            continue
        try:
            library = _open(level, path)
            for reason in reasons:
                log.warning("%s The kernels of level %s speak instead.", reason, level)
            return library
        except (OSError, AttributeError, NoLibrary) as error:
            reasons.append(f"{path.name}: {error}")
    raise NoLibrary(" ".join(reasons) or f"the CPU's kernels are not built. Mend it with: `{BUILD}`.")


def _open(level: str, path: Path) -> Library:
    sha256 = digest_of(path)
    try:
        built, sources = stored_digests(path)
    except FileNotFoundError:
        raise NoLibrary(f"{digest_path(path).name} is missing. Build both again with: `{BUILD}`.") from None
    if sha256 != built:  # a file that is cut off would end the process as it is loaded
        raise NoLibrary(f"the file is not as it was built. Build it again with: `{BUILD}`.")
    if sources_digest() not in ("", sources):  # in a clone, whose Python may speak to another C++
        raise NoLibrary(f"it was built from other sources than those of this clone. Build it again with: `{BUILD}`.")
    functions = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    if functions.vivavoce_interface() != INTERFACE:
        raise NoLibrary(f"its interface is {functions.vivavoce_interface()}, not {INTERFACE}; build it again.")
    return Library(level, path, functions, sha256)
