"""Makes a model from a checkpoint's name: the one place that puts the parts together.

`read_model` reads everything but the weights, and is cheap. `load_parts` loads the weights into the calling process.
"""

import hashlib
import logging
import math
import os
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.runner import Runner
from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.checkpoint.alignment_cache import with_alignment
from vivavoce_engine.checkpoint.files import Checkpoint, locate_checkpoint, read_checkpoint
from vivavoce_engine.checkpoint.identity import Versions, digest_of_folder, versions_of
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.cpu.library import NO_EXPERTS, why_no_library
from vivavoce_engine.errors import NoRoom, is_out_of_memory
from vivavoce_engine.front.thread import Engine
from vivavoce_engine.model import Model, Parts, model_info
from vivavoce_engine.text.answer import frontend_of
from vivavoce_engine.text.prompt import TextFrontend
from vivavoce_engine.text.transcript import Forcing, TranscriptJudge
from vivavoce_engine.voices.recognizer import recognizer_for
from vivavoce_engine.voices.registry import Voices
from vivavoce_engine.voices.store import VoiceStore

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

GB = 1e9
CAPACITY = frozenset(
    {
        "max_streams",
        "max_queue",
        "max_queue_s",
        "kv_positions",
        "max_prefills_per_step",
        "max_unread_s",
        "max_step_s",
        "gpu_memory",
        "device",
        "threads",
        "alignment_heads",
        "alignment_offset_ms",
        "ref_text_check",
        "ref_text_judge",
    }
)
"""Settings that decide how many utterances run, when, on which of some equal cards, and when words count as spoken: no
sample depends on them. Where PyTorch's sums depend on `threads`, `arithmetic_of` says so."""


class ModelRunner(Runner, Protocol):
    """A runner of a loaded checkpoint, with what loading and benchmarks ask of it."""

    @property
    def device(self) -> "torch.device": ...

    @property
    def config(self) -> EngineConfig:
        """The settings that it was made with, with numbers where a card's memory has settled `auto`."""
        ...

    @property
    def dtype(self) -> str:
        """The dtype of its weights, such as bfloat16."""
        ...

    def arithmetic(self) -> tuple[object, ...]:
        """All that the last bits of its samples may depend on, beside weights, settings, code and packages."""
        ...

    def speaker_embeddings(self) -> dict[str, NDArray[np.float32]]:
        """Name → embedding [hidden] float32 of the preset speakers."""
        ...

    def forcing(self) -> Forcing:
        """Teacher forcing with this runner's weights, on a thread beside the engine's."""
        ...

    def synchronize(self) -> None:
        """Waits until the device is idle."""
        ...


def read_model(name: str, config: EngineConfig, model_id: str | None = None, *, identify: bool = False) -> Model:
    """Reads a checkpoint (a folder or a hub id) without its weights. Does not import torch.

    `model_id` is the name that clients use. The default is the folder's name. `identify` gives the loaded model an
    identity, for which loading reads all of its files once more; a chat model speaks no phrases and has none.

    Raises:
        CheckpointError: the checkpoint cannot be found or is not servable.
    """
    path = locate_checkpoint(name)
    versions = versions_of(path) if identify else None
    checkpoint = with_alignment(read_checkpoint(path), alignment_of(config))
    text, kept = frontend_of(checkpoint), versions if checkpoint.chat is None else None
    model_id = model_id or path.resolve().name
    return Model(model_info(model_id, checkpoint, text), text, partial(load_parts, path, config, model_id, kept))


def alignment_of(config: EngineConfig) -> Alignment | None:
    """The alignment that the settings name."""
    if config.alignment_heads is None or config.alignment_offset_ms is None:
        return None
    layer, head = config.alignment_heads.split(".")
    return Alignment(int(layer), int(head), config.alignment_offset_ms)


def load_parts(path: Path, config: EngineConfig, model_id: str, versions: Versions | None = None) -> Parts:
    """Loads a checkpoint's weights into this process. It gets an identity if its files still have these versions.

    Raises:
        CheckpointError: the checkpoint is not servable.
    """
    from vivavoce_engine.gpu.loading import loading_on  # imports torch, which takes seconds
    from vivavoce_engine.models.reference_encoder import ReferenceEncoder

    started_s = time.monotonic()
    checkpoint = with_alignment(read_checkpoint(path), alignment_of(config))
    runner = make_runner(model_id, checkpoint, config)
    encoder = None
    if checkpoint.encoder is not None:
        with loading_on(runner.device):
            assert isinstance(runner.text, TextFrontend), "only a Base checkpoint encodes"
            judge = TranscriptJudge(runner.text, runner.forcing(), runner.config.max_context)
            encoder = ReferenceEncoder(checkpoint, runner.device, judge)
    log.info("loaded %s in %.1f s", path, time.monotonic() - started_s)
    identity = "" if versions is None else identity_of(path, runner, versions)
    return Parts(runner, runner.speaker_embeddings(), encoder, runner.config, identity)


def identity_of(path: Path, runner: ModelRunner, versions: Versions) -> str:
    """The identity (see SpeechEngine) of a runner whose checkpoint had these versions before any of it was read."""
    config = runner.config
    reason = why_not_reproducible(config, runner.device.type, runner.dtype)
    weights = "" if reason else digest_of_folder(path)
    if not reason and versions_of(path) != versions:  # last, so that it covers all that has been read
        reason = "its files have changed since the server began to read them"
    if reason:
        log.warning("speech of %s cannot be cached: %s", path.name, reason)
        return ""
    heard = {name: value for name, value in asdict(config).items() if name not in CAPACITY}
    code = digest_of_folder(Path(__file__).parent, "*.py")
    facts = (weights, code, heard, runner.dtype, runner.arithmetic(), versions_of_packages())
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def why_not_reproducible(config: EngineConfig, device: str, dtype: str) -> str:
    """The reason for which one seed may give other samples under another load. Empty if there is none.

    `device` is "cpu" or "cuda"; the settings are those that loading has settled.
    """
    if device == "cpu":
        if config.runner == "native" or dtype == "float32":
            return ""
        return f"with PyTorch on a CPU a seed gives the same samples in float32 alone, not in {dtype}"
    if config.runner != "triton":
        return "on a card a seed gives the same samples with the runner triton alone"
    if not config.deterministic:
        return "on a card a seed gives the same samples with the setting `deterministic` alone"
    return "" if dtype == "bfloat16" else f"on a card a seed gives the same samples in bfloat16 alone, not in {dtype}"


def versions_of_packages() -> dict[str, str]:
    """Versions of the packages that compute. A package that is missing has none."""
    found = {}
    for name in ("numpy", "safetensors", "tokenizers", "torch", "transformers", "triton"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def make_runner(name: str, checkpoint: Checkpoint, config: EngineConfig) -> ModelRunner:
    """Creates the best runner that this machine can have: Vivavoce's kernels on a card or a CPU, else PyTorch's.

    Raises:
        EngineError: the named device or runner cannot be used, or the checkpoint does not fit.
    """
    from vivavoce_engine.gpu.choice import choices, first_that_works  # imports torch, which takes seconds

    cpu_lacks = why_no_library if checkpoint.chat is None else lambda: NO_EXPERTS
    options = choices(config, checkpoint.talker.transformer.hidden_size, cpu_lacks)
    return first_that_works(options, partial(_make, name, checkpoint))


def _make(name: str, checkpoint: Checkpoint, config: EngineConfig) -> ModelRunner:
    import torch

    from vivavoce_engine.cpu.native_runner import NativeRunner
    from vivavoce_engine.cpu.runner import TorchRunner
    from vivavoce_engine.device import resolve_dtype

    device = torch.device(config.device)
    if device.type == "cpu":
        made = NativeRunner if config.runner == "native" else TorchRunner
        if checkpoint.chat is not None:
            state_memory(name, checkpoint, config, resolve_dtype(config.dtype, device))
        try:
            return made(name, checkpoint, config)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            rows, positions = config.rows, config.max_context
            raise NoRoom(
                f"this machine's memory does not hold the model with {rows} row{'s' * (rows > 1)} of {positions} "
                f"positions; a lower --max-streams or --max-context takes less"
            ) from error
    from vivavoce_engine.gpu.loading import loading_on

    with loading_on(device):
        dtype = resolve_dtype(config.dtype, device)
        if config.runner == "torch":
            from vivavoce_engine.gpu.memory import settle_plain

            return TorchRunner(name, checkpoint, settle_plain(config, checkpoint, device, dtype))
        from vivavoce_engine.gpu.runner import GraphRunner

        return GraphRunner(name, checkpoint, config, device, dtype)


def state_memory(name: str, checkpoint: Checkpoint, config: EngineConfig, dtype: "torch.dtype") -> None:
    """Logs the memory that a checkpoint will take on a CPU, before any of it is taken.

    Raises:
        NoRoom: the machine has less memory than the weights alone take.
    """
    from vivavoce_engine.gpu.memory import position_bytes
    from vivavoce_engine.gpu.meta import networks_without_storage, tensor_bytes

    *speaking, code2wav = networks_without_storage(checkpoint.talker, checkpoint.codec, dtype)
    weights_gb = (tensor_bytes(*speaking) + tensor_bytes(code2wav) * dtype.itemsize / 4) / GB  # it is made in float32
    cache_gb = config.rows * config.max_context * position_bytes(checkpoint, dtype) / GB
    told = f"{name} takes {weights_gb:.2f} GB of memory for the weights of its speech in {str(dtype)[6:]}"
    log.info("%s, and up to %.2f GB for the keys and values of %d streams", told, cache_gb, config.rows)
    machine_gb = memory_bytes() / GB
    if weights_gb > machine_gb:
        raise NoRoom(f"{told}; this machine has {machine_gb:.2f} GB")


def memory_bytes() -> float:
    """Memory of this machine; infinite on a system that does not tell it."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return math.inf


def load_engine(
    name: str, config: EngineConfig, model_id: str | None = None, store: VoiceStore | None = None
) -> Engine:
    """Creates an engine in this process without starting it. Engines may share a `store`. Raises as `read_model`."""
    path = locate_checkpoint(name)
    parts = load_parts(path, config, model_id or path.resolve().name)
    config = parts.config or config
    voices = Voices(
        parts.runner.info,
        parts.presets,
        parts.encoder,
        store,
        config.ref_text_check,
        recognizer_for(config.ref_text_judge),
    )
    return Engine(parts.runner, config, voices)
