"""Read the reference outputs stored in tests/golden; its README describes their contents."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

GOLDEN = Path(__file__).parents[1] / "golden"
WAVE_STRIDE = 17  # every 17th sample is stored; 17 is coprime to 1920, so each phase of the upsampling occurs


@dataclass(frozen=True)
class Golden:
    """The two files of one name: tensors keyed `call/what`, and the calls that made them."""

    tensors: dict[str, NDArray[Any]]
    info: dict[str, Any]

    @property
    def calls(self) -> dict[str, dict[str, Any]]:
        calls: dict[str, dict[str, Any]] = self.info["calls"]
        return calls


def load_golden(name: str) -> Golden:
    """Load tests/golden/NAME.safetensors, if there is one, and NAME.json."""
    info = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    tensors = GOLDEN / f"{name}.safetensors"
    return Golden(load_file(tensors) if tensors.exists() else {}, info)


def thin(wave: NDArray[np.float32]) -> NDArray[np.float32]:
    """Samples of a waveform that the golden files store."""
    return wave[::WAVE_STRIDE]
