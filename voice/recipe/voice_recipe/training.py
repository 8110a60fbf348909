"""Shared parts of the training stages: a clock for a fixed end time, and averaged weights."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def training_device() -> str:
    """The one GPU of a stage, or the CPU for tests. Uses TF32 for float32 products."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    return "cuda" if torch.cuda.is_available() else "cpu"


class Clock:
    """Progress 0..1 of a stage that ends at a wall-clock time."""

    def __init__(self, end_time: float) -> None:
        self.started, self.steps = time.time(), 0
        self.seconds = max(end_time - self.started, 1.0)

    def tick(self) -> float:
        self.steps += 1
        return min(self.elapsed() / self.seconds, 1.0)

    def elapsed(self) -> float:
        return time.time() - self.started


class Average:
    """Exponential moving average of a module's parameters."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module, self.decay, self.updates = module, decay, 0
        self.values = [p.detach().clone() for p in module.parameters()]

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        rate = 1 - min(self.decay, 1 - 1 / (1 + 0.05 * self.updates))
        torch._foreach_lerp_(self.values, [p.detach() for p in self.module.parameters()], rate)

    def state_dict(self) -> dict[str, Tensor]:
        """The module's state with averaged parameters, on the host."""
        names = [name for name, _ in self.module.named_parameters()]
        averaged = dict(zip(names, self.values, strict=True))
        state = self.module.state_dict()
        return {name: averaged.get(name, value).detach().cpu().clone() for name, value in state.items()}


def save_state(average: Average, out: Path, result: dict[str, Any]) -> None:
    """Write averaged weights in bfloat16, and their result next to them. Replaces files atomically."""
    state = {name: value.bfloat16() for name, value in average.state_dict().items()}
    torch.save(state, out.with_suffix(".tmp"))
    os.replace(out.with_suffix(".tmp"), out)
    out.with_suffix(".json").write_text(json.dumps(result))
