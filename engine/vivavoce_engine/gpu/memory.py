"""GPU memory: bytes of a position in the KV cache, and a check that a configuration fits the card."""

import torch

from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import CheckpointError
from vivavoce_engine.pages import PAGE_POSITIONS


def position_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """Returns the bytes of the talker's keys and values of one position, which is a token or a frame."""
    shape = checkpoint.talker.transformer
    return 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * dtype.itemsize


def check_memory(checkpoint: Checkpoint, config: EngineConfig, device: torch.device, dtype: torch.dtype) -> None:
    """Raises CheckpointError if the weights and the talker's keys and values alone exceed the allowed memory."""
    if device.type != "cuda":
        return
    position = position_bytes(checkpoint, dtype)
    weights_bytes = (checkpoint.path / "model.safetensors").stat().st_size
    positions = config.kv_pages * PAGE_POSITIONS
    needed = position * (positions + PAGE_POSITIONS) + weights_bytes
    free, _ = torch.cuda.mem_get_info(device)
    allowed = config.gpu_memory * free
    if needed > allowed:
        fits = max(0, int((allowed - weights_bytes) / position) // PAGE_POSITIONS - 1) * PAGE_POSITIONS
        raise CheckpointError(
            f"{positions} positions of KV cache and the weights take {needed / 1e9:.1f} GB, but {allowed / 1e9:.1f} GB "
            f"of {device} may be used; {fits} positions would fit (--kv-positions; it is no less than --max-context)"
        )
