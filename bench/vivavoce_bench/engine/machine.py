"""The measured machine and its engine's settings, and the texts that benchmarks speak."""

import argparse
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce_engine.config import EngineConfig

if TYPE_CHECKING:
    from vivavoce_engine.load import ModelRunner

TEXTS = (
    "The train to the coast leaves at nine, and the second one at half past ten.",
    "Could you tell me where the nearest library is, please?",
    "She packed two sandwiches, a blue notebook and an old map of the valley.",
    "Rain is expected in the evening, so take an umbrella with you.",
)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the settings of an engine that decide how fast it is."""
    defaults = EngineConfig()
    parser.add_argument("--device", default=defaults.device)
    parser.add_argument("--runner", default=defaults.runner)
    parser.add_argument("--dtype", default=defaults.dtype)
    parser.add_argument(
        "--threads",
        type=lambda text: text if text == "auto" else int(text),
        default=defaults.threads,
        help="threads that compute on a CPU [%(default)s]",
    )


def engine_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of `add_engine_arguments`, for EngineConfig."""
    return {name: getattr(args, name) for name in ("device", "runner", "dtype", "threads")}


def describe_machine(runner: "ModelRunner") -> str:
    """Describes what the figures belong to: CPU, cores, threads, device, runner and dtype."""
    import torch
    from vivavoce_engine.cpu.library import load_library
    from vivavoce_engine.device import cpu_model

    device, kind, threads = str(runner.device), runner.config.runner, runner.config.threads
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    told = [
        f"{platform.machine()} {cpu_model()}".strip(),
        f"{os.cpu_count()} cores",
        f"{torch.get_num_threads() if threads == 'auto' else threads} threads",
        name,
        f"{kind} {load_library().level}" if kind == "native" else kind,
        runner.dtype,
    ]
    return ", ".join(told)


def resident_mb() -> float:
    """Memory of this process that is in use now, in MB; nan where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def shipped_voice() -> str:
    from vivavoce_voice import CHECKPOINT

    return str(CHECKPOINT)
