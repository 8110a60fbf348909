"""GPU memory that a model takes, counted before it is loaded, and the settings that follow from it.

Weights, tables and buffers are counted by building them of meta tensors, which have shapes and no memory. So the count
follows every change to them. What no tensor shows, such as graphs, is added in constants that were measured.

Triton is imported only to count for GraphRunner. A machine that runs TorchRunner may lack it.
"""

import logging
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vivavoce_engine.checkpoint.files import REFERENCE_SAMPLE_RATE, SPEECH_TOKENIZER, Checkpoint
from vivavoce_engine.checkpoint.shards import shards_of
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.gpu.fitting import GB, CardMemory, Fit, Usage
from vivavoce_engine.gpu.meta import ShapesAlone, networks_without_storage, tensor_bytes
from vivavoce_engine.models.loader import CODEC_ENCODER, SPEAKER_ENCODER, TEXT_ROWS_AT_ONCE
from vivavoce_engine.models.weights import opened
from vivavoce_engine.pages import PAGE_POSITIONS
from vivavoce_engine.runtime import ALLOCATOR_VARIABLES

if TYPE_CHECKING:
    from vivavoce_engine.gpu.launch import Launcher
    from vivavoce_engine.gpu.steps import Steps

log = logging.getLogger(__name__)

MB = 10**6
KERNELS_BYTES = 150 * MB
"""Kernels of Triton, PyTorch and the libraries, which are loaded at their first launch, and the libraries' handles and
workspaces. With this constant and the next three the count is 1 to 3 % above what engines held on an H200 (LOG.md)."""
GRAPH_BYTES = 6 * MB
"""The driver's part of a recorded graph, on average."""
FRAGMENTS_BYTES = 200 * MB
"""Memory that PyTorch reserves and no tensor holds: between tensors, and in the graphs' own pools."""
FIXED_SEGMENTS_BYTES = 250 * MB
"""More of it without expandable segments."""
PLAIN_WORK_BYTES = 400 * MB
"""Intermediate tensors and workspaces of the runner of plain PyTorch. An estimate."""
ENCODING_LAYERS = 5
"""Layers of the reference encoder whose results are there at once, at the rate of the samples: the first ones, which
are the largest by far."""
MIMI_CHANNELS = 64
"""Their channels, if the checkpoint does not say."""
LONGEST_REFERENCE_S = 31


def position_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """Returns the bytes of the talker's keys and values of one position, which is a token or a frame."""
    shape = checkpoint.talker.transformer
    return 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * dtype.itemsize


class Counter:
    """Counts the memory of GraphRunner. `launch` is its card's launcher, which decides the sizes of some buffers."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, launch: "Launcher") -> None:
        self._checkpoint, self._dtype, self._launch = checkpoint, dtype, launch
        self._networks = talker, predictor, decoder = networks_without_storage(
            checkpoint.talker, checkpoint.codec, dtype
        )
        self._weights, self._decoder = tensor_bytes(talker, predictor), tensor_bytes(decoder)
        self._encoder = encoder_bytes(checkpoint)

    def __call__(self, config: EngineConfig) -> Usage:
        from vivavoce_engine.gpu.steps import Steps

        checkpoint, networks = self._checkpoint, self._networks
        settings = replace(config, kv_positions=config.max_context)
        with torch.inference_mode(), ShapesAlone():
            steps = Steps(
                networks,
                checkpoint.talker,
                checkpoint.tts_pad_token_id,
                settings,
                checkpoint.alignment,
                self._launch,
            )
        cache, page = steps.frames.cache.cache, PAGE_POSITIONS * position_bytes(checkpoint, self._dtype)
        pages, code2wav = tensor_bytes(cache.k, cache.v), tensor_bytes(steps.codec)
        assert pages == page * (settings.kv_pages + 1)
        graphs = 0 if config.eager else len([*steps.frame_graphs(), *steps.codec_graphs()])
        return Usage(
            weights=self._weights,
            tables=tensor_bytes(steps) - self._weights - code2wav - pages,
            code2wav=code2wav + self._audio_bytes(steps),
            encoder=self._encoder,
            graphs=graphs,
            unseen=KERNELS_BYTES + graphs * GRAPH_BYTES + fragments_bytes(),
            page=page,
            loading=self._weights + self._decoder + projection_bytes(checkpoint, self._dtype),
            decoder=self._decoder,
        )

    def _audio_bytes(self, steps: "Steps") -> int:
        """Audio and codes of all of Code2Wav's graphs, each of which has a place of its own."""
        codec, groups = self._checkpoint.codec, self._checkpoint.talker.num_code_groups
        frames = sum(batch * frames for batch in steps.codec_batches for frames in steps.pieces)
        return frames * (codec.samples_per_frame * torch.float32.itemsize + groups * torch.int64.itemsize)


class PlainCounter:
    """Counts the memory of TorchRunner, whose rows have pages for a whole context each."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        self._checkpoint, self._dtype = checkpoint, dtype
        self._networks = networks_without_storage(checkpoint.talker, checkpoint.codec, dtype)
        self._encoder = encoder_bytes(checkpoint)

    def __call__(self, config: EngineConfig) -> Usage:
        talker, predictor, decoder = self._networks
        like, rows = talker.codec_head.weight, config.rows
        decoder_bytes = tensor_bytes(decoder) * self._dtype.itemsize // torch.float32.itemsize
        with ShapesAlone():
            frame_cache = predictor.frame_cache(self._checkpoint.talker, rows)
        return Usage(
            weights=tensor_bytes(talker, predictor),
            tables=tensor_bytes(frame_cache.k, frame_cache.v),
            code2wav=decoder_bytes + rows * decoder.layout.size * like.itemsize,
            encoder=self._encoder,
            graphs=0,
            unseen=KERNELS_BYTES + fragments_bytes() + PLAIN_WORK_BYTES,
            page=PAGE_POSITIONS * position_bytes(self._checkpoint, self._dtype),
            loading=tensor_bytes(talker, predictor) + decoder_bytes + projection_bytes(self._checkpoint, self._dtype),
            decoder=0,
        )


def projection_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """Bytes that projecting the text embedding takes beside the result: its weights, and one part on its way."""
    config = checkpoint.talker
    wide, inner, hidden = config.text_hidden_size, config.text_projection_size, config.transformer.hidden_size
    weights = inner * (wide + hidden + 1) + hidden
    return (weights + TEXT_ROWS_AT_ONCE * (wide + 2 * inner + hidden)) * dtype.itemsize


def encoder_bytes(checkpoint: Checkpoint) -> int:
    """Bytes of the reference encoder while it encodes the longest recording: float32. 0 if the model does not clone."""
    if checkpoint.encoder is None:
        return 0
    values = values_in(checkpoint.path, SPEAKER_ENCODER) + values_in(checkpoint.path / SPEECH_TOKENIZER, CODEC_ENCODER)
    channels: int = checkpoint.encoder.codec.mimi.get("num_filters", MIMI_CHANNELS)
    values += ENCODING_LAYERS * channels * LONGEST_REFERENCE_S * REFERENCE_SAMPLE_RATE
    return values * torch.float32.itemsize


def values_in(folder: Path, prefix: str) -> int:
    """Number of values of all tensors of a folder whose names begin with `prefix`. Reads no values.

    Raises:
        CheckpointError: a file is broken.
    """
    shapes: list[list[int]] = []
    for path in shards_of(folder, (prefix,)):
        with opened(path) as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 (no mapping)
            shapes += [file.get_slice(name).get_shape() for name in names]
    return sum(map(math.prod, shapes))


def fragments_bytes() -> int:
    settings = (os.environ.get(name, "") for name in ALLOCATOR_VARIABLES)
    expandable = any("expandable_segments:true" in setting.lower() for setting in settings)
    return FRAGMENTS_BYTES + (0 if expandable else FIXED_SEGMENTS_BYTES)


def settle(config: EngineConfig, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> EngineConfig:
    """Returns the settings for GraphRunner on this card, with numbers for `auto`. Call it before anything is loaded.

    Raises:
        NoRoom: the model does not fit with the settings that are given. Names those that would.
    """
    from vivavoce_engine.gpu.launch import Launcher

    return _settled(Fit(config, CardMemory.of(device), Counter(checkpoint, dtype, Launcher.of(device))), device)


def settle_plain(
    config: EngineConfig, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> EngineConfig:
    """Returns the settings for TorchRunner on this card. Raises as `settle`."""
    return _settled(Fit(config, CardMemory.of(device), PlainCounter(checkpoint, dtype), plain=True), device)


def _settled(fit: Fit, device: torch.device) -> EngineConfig:
    config = fit.settle()
    needed = fit.count(config).peak(fit.pages(config)[1])
    log.info(
        "%d rows and %d positions of keys and values on %s: at most %.1f of %.1f GB that may be used (%s)",
        config.rows,
        fit.pages(config)[1] * PAGE_POSITIONS,
        device,
        needed / GB,
        fit.allowed / GB,
        fit.memory,
    )
    return config
