"""This machine made to look like one with a card: PyTorch's and the system's view of cards is replaced."""

import importlib.util
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from vivavoce_engine.gpu import needs, presence

Machine = Callable[..., None]

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Jul 30 12:00:00 UTC 2025\nGCC version: 12\n"
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"


def machine_with_card(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Machine:
    """Returns a function that gives this machine a card, with the lacks that its arguments name.

    The CPU has kernels.
    """
    for module in ("examine", "load"):
        monkeypatch.setattr(f"vivavoce_engine.{module}.why_no_library", lambda: "")

    def look_like(
        capability: tuple[int, int] = (8, 6),
        *,
        driver: str | None = "580.65.06",
        cuda: str | None = "13.0",
        hip: str | None = None,
        usable: bool = True,
        triton: bool = True,
        compiler: bool = True,
        headers: bool = True,
        computes: bool = True,
        full: bool = False,
        cards: int = 1,
    ) -> None:
        file = folder / "version"
        if driver is not None:
            file.write_text(DRIVER.format(driver))
        monkeypatch.setattr(presence, "DRIVER_FILE", file)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA Card")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        real = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: real(name) if triton or name != "triton" else None
        )
        monkeypatch.setattr(needs, "wanted_triton", lambda: None)
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if compiler else None)
        monkeypatch.delenv("CC", raising=False)
        (folder / "Python.h").touch() if headers else None
        monkeypatch.setattr(sysconfig, "get_paths", lambda *_: {"include": str(folder)})

        with torch.device("meta"):  # lists, once in a process, the functions that follow it: with the real one
            real_ones = torch.ones
            real_ones(1)

        def ones(*shape: Any, device: torch.device | None = None, **settings: Any) -> torch.Tensor:
            if device is None or device.type != "cuda":
                return real_ones(*shape, device=device, **settings)
            if full:
                raise RuntimeError("CUDA error: out of memory\nmore")
            if not computes:
                raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nmore")
            return torch.zeros(1)

        monkeypatch.setattr(torch, "ones", ones)

    return look_like
