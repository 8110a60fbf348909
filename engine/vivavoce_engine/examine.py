"""Checks of this machine for the engine: the use that serving would make of it, and the command that mends a lack.

`vivavoce doctor` runs them. A check leaves the machine as it is: it deletes what it tries to write, and downloads
nothing. Only the checks of the card import torch.
"""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from safetensors import SafetensorError, safe_open

from vivavoce_engine.checkpoint.files import (
    Checkpoint,
    is_hub_id,
    missing_files,
    read_checkpoint,
    weight_files,
)
from vivavoce_engine.checkpoint.omni import SPEECH_TENSORS
from vivavoce_engine.checkpoint.shards import tensor_bytes_in
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.cpu.library import NO_EXPERTS, why_no_library
from vivavoce_engine.errors import CheckpointError, EngineError, NoRoom
from vivavoce_engine.findings import Finding, State
from vivavoce_engine.gpu.presence import card_present
from vivavoce_engine.model import model_info
from vivavoce_engine.pages import PAGE_POSITIONS
from vivavoce_engine.runtime import is_wsl
from vivavoce_engine.text.answer import frontend_of
from vivavoce_engine.voices.store import VoiceStore

if TYPE_CHECKING:
    from vivavoce_engine.gpu.choice import Choice

Check: TypeAlias = Callable[[], list[Finding]]

DEVICES = Path("/dev")
CACHE_BYTES = 500_000_000
"""Room for the compiled kernels of a model, with a reserve."""
DOWNLOAD_BYTES = 5_000_000_000
"""Room for the largest released checkpoint, with a reserve."""
VOICES_BYTES = 10_000_000
"""Room for a few stored voices."""
LFS_POINTER = b"version https://git-lfs"
"""Beginning of a small file that stands for a large one in a Git repository."""
GB, KB = 1e9, 1024
LOADED = 0.5
"""Load of a machine, as a share of its cores, from which on a trial of its speed is a lower limit."""


def checks(config: EngineConfig, checkpoints: Mapping[str, str], *, launches: bool) -> list[tuple[str, Check]]:
    """Returns pairs (name, check), in the order in which their findings should be read.

    A check may raise anything, and hangs where a driver or a network folder does. `checkpoints` maps names for people
    to folders or hub ids. With `launches` each kernel launch is compiled, which takes a tenth of a second for each.
    """
    asked = checkpoints if launches else {}
    return [
        ("system", check_system),
        ("card", partial(check_needs, config)),
        ("card", partial(check_cards, config)),
        ("runner", partial(check_runner, config, checkpoints)),
        ("kernels", partial(check_kernel_cache, config)),
        *(("model", partial(check_model, name, checkpoint)) for name, checkpoint in checkpoints.items()),
        *(("rows", partial(check_rows, config, name, checkpoint)) for name, checkpoint in checkpoints.items()),
        ("speed", partial(check_speed, config, checkpoints)),
        *(("launches", partial(check_launches, config, name, checkpoint)) for name, checkpoint in asked.items()),
    ]


# ---- the machine and its cards


def check_system() -> list[Finding]:
    """Operating system, Python, cores and memory."""
    if sys.platform == "win32":
        return [
            Finding("system", "error", "Vivavoce runs on Linux and macOS; on Windows, inside WSL2.", "wsl --install")
        ]
    place = f"{platform.system()} inside WSL2" if is_wsl() else platform.system()
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    text = (
        f"{place}, {platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{memory_gb:.1f} GB of memory."
    )
    return [Finding("system", "ok", text)]


def check_needs(config: EngineConfig) -> list[Finding]:
    """Everything that a card needs beside itself: driver, PyTorch, Triton, C compiler, Python's headers.

    A lack is a warning if something else can speak instead, and an error if the settings name what lacks it.
    """
    import torch

    from vivavoce_engine.gpu.choice import choices

    version = f"PyTorch is {torch.__version__}."
    if config.device == "cpu":
        return [Finding("torch", "ok", version)]
    usable = torch.cuda.is_available()
    if config.device == "auto" and config.runner != "triton" and not usable and not card_present():
        return [Finding("torch", "ok", version), Finding("card", "ok", "This system shows no NVIDIA card.")]
    lack: State = "warning"
    try:
        choices(config, cpu_lacks=why_no_library)
    except EngineError:
        lack = "error"
    found = needs_of(config)
    if not usable and all(finding.state != "error" for finding in found):
        found.append(why_hidden())
    return [replace(finding, state=lack) if finding.state == "error" else finding for finding in found]


def needs_of(config: EngineConfig) -> list[Finding]:
    """Findings about all that the card of these settings needs, as they are for Triton's kernels."""
    import torch

    from vivavoce_engine.gpu import needs

    there = torch.cuda.is_available() and card_number(config) < torch.cuda.device_count()
    return needs.check_all(torch.device("cuda", card_number(config)) if there else None)


def why_hidden() -> Finding:
    """The reason for which PyTorch finds no card, although driver and PyTorch go together."""
    import torch

    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        text = f"CUDA_VISIBLE_DEVICES is {visible!r}, which leaves PyTorch no card."
        return Finding("card", "error", text, "unset CUDA_VISIBLE_DEVICES")
    if not is_wsl() and not any(DEVICES.glob("nvidia[0-9]*")):
        text = f"A driver is loaded, but {DEVICES} has no card, as in a container that was started without cards."
        return Finding("card", "error", text, "docker run --gpus all ...")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return Finding("card", "error", f"PyTorch cannot use the card: {first_line(error)}.", "nvidia-smi")
    return Finding("card", "error", "PyTorch finds no card.", "nvidia-smi")


def card_number(config: EngineConfig) -> int:
    """Returns the number of the card that the settings choose, where they do not choose the CPU."""
    return int(config.device.partition(":")[2] or 0)


def check_cards(config: EngineConfig) -> list[Finding]:
    """One finding for each card. Only on the card that serves is memory touched, to learn how much of it is free."""
    import torch

    if config.device == "cpu" or not torch.cuda.is_available():
        return []
    return [describe_card(number, number == card_number(config)) for number in range(torch.cuda.device_count())]


def describe_card(number: int, serves: bool) -> Finding:
    """Describes a card that PyTorch can use."""
    import torch

    card = torch.cuda.get_device_properties(number)
    # As in gpu/card.py, which cannot be imported where Triton is missing.
    shared_bytes = getattr(card, "shared_memory_per_block_optin", card.shared_memory_per_block)
    text = (
        f"cuda:{number} is {card.name} (sm_{card.major}{card.minor}) with {card.multi_processor_count} "
        f"multiprocessors, {shared_bytes // KB} KB of shared memory a block, "
        f"and {card.total_memory / GB:.1f} GB of memory"
    )
    if not serves:
        return Finding("card", "ok", f"{text}.")
    try:
        free_bytes, _ = torch.cuda.mem_get_info(number)
    except RuntimeError as error:
        return Finding("card", "error", f"{text}, which cannot be used: {first_line(error)}.", "nvidia-smi")
    return Finding("card", "ok", f"{text}, of which {free_bytes / GB:.1f} GB are free.")


def check_runner(config: EngineConfig, checkpoints: Mapping[str, str]) -> list[Finding]:
    """The runner and device that serving would take, and the loss beside the best ones. A small model may take others
    than a large one, so the findings name their models where they differ."""
    told = {name: _runner_of(config, _readable(checkpoint)) for name, checkpoint in checkpoints.items()}
    distinct = list(dict.fromkeys(told.values())) or [_runner_of(config, None)]
    if len(distinct) == 1:
        return distinct
    return [replace(found, text=f"{name}: {found.text}") for name, found in told.items()]


def _first_choice(config: EngineConfig, files: Checkpoint | None) -> "Choice":
    """The runner and device that serving would try first for a checkpoint, or for a large one if there is none."""
    from vivavoce_engine.gpu.choice import SMALL_HIDDEN_SIZE, choices

    if files is None:
        return choices(config, SMALL_HIDDEN_SIZE, why_no_library)[0]
    cpu_lacks = why_no_library if files.chat is None else lambda: NO_EXPERTS
    return choices(config, files.talker.transformer.hidden_size, cpu_lacks)[0]


def _runner_of(config: EngineConfig, files: Checkpoint | None) -> Finding:
    try:
        first = _first_choice(config, files)
    except EngineError as error:
        return Finding("runner", "error", f"Nothing can speak with these settings: {_untold(str(error), config)}.")
    if first.loses:
        return Finding("runner", "warning", f"Serving takes {first.name}: {_untold(first.loses, config)}.")
    return Finding("runner", "ok", f"Serving takes {first.name}.")


def _readable(checkpoint: str) -> Checkpoint | None:
    """A checkpoint's configuration. None if there is no checkpoint that can be read, as the model's check says."""
    try:
        path = located(checkpoint)
        return None if path is None else read_checkpoint(path)
    except CheckpointError:
        return None


def _untold(reasons: str, config: EngineConfig) -> str:
    """The reasons for a choice without those that `check_needs` tells."""
    from vivavoce_engine.gpu.choice import sentence

    for finding in needs_of(config):
        reasons = reasons.replace(sentence(finding), "")
    return " ".join(reasons.split()).rstrip(":. ")


def check_kernel_cache(config: EngineConfig) -> list[Finding]:
    """The folder of compiled kernels, where Triton's kernels would run."""
    from vivavoce_engine.gpu.choice import choices

    try:
        first = choices(config, cpu_lacks=why_no_library)[0]
    except EngineError:
        return []  # the runner's check has said so
    if first.config.runner != "triton":
        return []
    folder = kernel_cache()
    reason = why_not_writable(folder, CACHE_BYTES)
    if not reason:
        return [Finding("kernels", "ok", f"Compiled kernels are kept in {folder}.")]
    text = f"Compiled kernels cannot be kept: {reason}."
    return [Finding("kernels", "error", text, "export TRITON_CACHE_DIR=FOLDER  # one that can be written to")]


def kernel_cache() -> Path:
    """Returns the folder in which Triton keeps compiled kernels."""
    home = os.environ.get("TRITON_HOME") or str(Path.home())
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))


# ---- files


def why_not_writable(folder: Path, needed_bytes: int) -> str:
    """Returns the reason for which a folder cannot be written to, or made. Empty if there is none."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"vivavoce")
        free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        return f"{place} cannot be written to ({error.strerror or error})"
    if free_bytes < needed_bytes:
        return f"the disk of {place} has {free_bytes / GB:.2f} GB free, less than {needed_bytes / GB:g} GB"
    return ""


def check_voices(folder: Path, max_voices: int) -> list[Finding]:
    """The folder of stored voices: it can be written to and is not full, and no server has left half a file there."""
    if reason := why_not_writable(folder, VOICES_BYTES):
        mend = "vivavoce serve --voices-dir FOLDER  # one that can be written to"
        return [Finding("voices", "error", f"No voices can be stored in {folder}: {reason}.", mend)]
    if not folder.exists():
        return [Finding("voices", "ok", f"{folder} will be made for stored voices.")]
    store = VoiceStore(folder, max_voices)
    count, stale = len(store.names()), len(store.stale())
    if count >= max_voices:
        text = f"{folder} is full: {count} voices are stored, and {max_voices} may be."
        return [Finding("voices", "warning", text, f"vivavoce serve --max-voices {2 * max_voices}")]
    left = (
        f", and {stale} files that an interrupted server has left; the next stored voice clears them" if stale else ""
    )
    return [Finding("voices", "ok", f"{folder} holds {count} stored voices{left}.")]


def check_model(name: str, checkpoint: str) -> list[Finding]:
    """The files of a checkpoint, without reading weights: present, complete, and of a kind that can be served."""
    again = "" if Path(checkpoint).is_dir() else f"hf download --force-download {checkpoint}"
    try:
        path = located(checkpoint)
        if path is None:
            return [_not_downloaded(name, checkpoint)]
        files = read_checkpoint(path)
        info = model_info(name, files, frontend_of(files))
    except CheckpointError as error:
        return [Finding("model", "error", f"{name} cannot be served: {error}.", again if is_hub_id(checkpoint) else "")]
    broken = [Finding("model", "error", f"{name}: {why}.", again) for why in map(why_broken, weight_files(path)) if why]
    if broken:
        return broken
    size_gb = tensor_bytes_in(weight_files(path), ("",) if files.chat is None else SPEECH_TENSORS) / GB
    speakers = f"{len(info.speakers)} speakers, " if info.speakers else ""
    what = "complete" if files.chat is None else "complete to speak"
    return [Finding("model", "ok", f"{name} is {what} ({info.task}, {speakers}{size_gb:.2f} GB).")]


def _chosen(config: EngineConfig, checkpoint: str) -> tuple[Checkpoint, EngineConfig] | None:
    """A checkpoint's configuration, and the settings that serving would try first for it. None if either is missing:
    the checks of model and runner say so."""
    files = _readable(checkpoint)
    try:
        return None if files is None else (files, _first_choice(config, files).config)
    except EngineError:
        return None


def check_rows(config: EngineConfig, name: str, checkpoint: str) -> list[Finding]:
    """The rows that serving would give a model, which are the utterances that it speaks at once; alone on its card."""
    import torch

    from vivavoce_engine.cpu.threads import on_threads, share_out
    from vivavoce_engine.device import resolve_dtype

    found = _chosen(config, checkpoint)
    if found is None:
        return []
    files, chosen = found
    device = torch.device(chosen.device)
    if device.type == "cpu":
        if chosen.runner == "native":
            chosen = on_threads(chosen, share_out(chosen.threads, files.talker.transformer.hidden_size))
        return [Finding("rows", "ok", f"{name} speaks {chosen.rows} utterances at once on the CPU.")]
    from vivavoce_engine.gpu.memory import settle, settle_plain

    settled_by = settle_plain if chosen.runner == "torch" else settle
    try:
        settled = settled_by(chosen, files, device, resolve_dtype(chosen.dtype, device))
    except NoRoom as error:
        if config.device == "auto":
            return [Finding("rows", "warning", f"{name} does not fit {device}, so the CPU speaks: {error}.")]
        return [Finding("rows", "error", f"{name} does not fit {device}: {error}.")]
    text = f"{name} speaks {settled.rows} utterances at once on {device}"
    if chosen.runner == "triton":
        text += f", with {settled.kv_pages * PAGE_POSITIONS} positions of keys and values that they share"
    return [Finding("rows", "ok", f"{text}.")]


def check_speed(config: EngineConfig, checkpoints: Mapping[str, str]) -> list[Finding]:
    """The speed of the models that the CPU's kernels would speak, by a trial of a second each.

    Where they speak none of the released models, a last finding tells what those would take.
    """
    from vivavoce_engine.cpu.work import RELEASED, work_of

    found, works = [], []
    for name, checkpoint in checkpoints.items():
        chosen = _chosen(config, checkpoint)
        if chosen is not None and chosen[1].runner == "native":
            found.append(_speed_of(name, *chosen))
            works.append(work_of(chosen[0].talker, chosen[0].codec))
    if works and not set(works) & set(RELEASED.values()):
        found.append(_released_speed(config))
    return found


def _speed_of(name: str, files: Checkpoint, config: EngineConfig) -> Finding:
    from vivavoce_engine.cpu.forecast import forecast
    from vivavoce_engine.cpu.library import BFLOAT16, INT8, load_library
    from vivavoce_engine.cpu.threads import share_out
    from vivavoce_engine.cpu.work import work_of

    library, work = load_library(), work_of(files.talker, files.codec)
    threads = share_out(config.threads, files.talker.transformer.hidden_size)
    told = forecast(library, work, INT8 if config.dtype == "int8" else BFLOAT16, threads)
    where = f"on {threads} ({library.level})"
    if told.streams:
        return Finding("speed", "ok", f"By a trial {where}, {name} takes {told}{_busy()}.")
    rounded = None if config.dtype == "int8" else forecast(library, work, INT8, threads)
    mend = "vivavoce serve --dtype int8" if rounded is not None and rounded.streams else ""
    return Finding("speed", "warning", f"By a trial {where}, {name} takes {told}{_busy()}.", mend)


def _released_speed(config: EngineConfig) -> Finding:
    from vivavoce_engine.cpu.forecast import forecast
    from vivavoce_engine.cpu.library import INT8, load_library
    from vivavoce_engine.cpu.threads import share_out
    from vivavoce_engine.cpu.work import RELEASED, RELEASED_HIDDEN_SIZE

    threads = share_out(config.threads, RELEASED_HIDDEN_SIZE)
    told = [f"{size} would take {forecast(load_library(), work, INT8, threads)}" for size, work in RELEASED.items()]
    where = f"--dtype int8 on {threads}"
    return Finding("speed", "ok", f"Of the released models with {where}, {'; '.join(told)}.")


def _busy() -> str:
    """A remark for a trial that other programs have slowed down. Empty on an idle machine."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return f" (beside other work: the load is {load:.1f})" if load > LOADED * (os.cpu_count() or 1) else ""


def check_launches(config: EngineConfig, name: str, checkpoint: str) -> list[Finding]:
    """The kernel launches of a model that want more shared memory than its card has."""
    import torch

    from vivavoce_engine.device import resolve_dtype

    found = _chosen(config, checkpoint)
    if found is None:
        return []
    files, chosen = found
    if chosen.runner != "triton":
        return [Finding("launches", "ok", f"{name} needs no launches of Triton here.")]
    from vivavoce_engine.gpu.card import Card
    from vivavoce_engine.gpu.launches import Recorder, record_launches
    from vivavoce_engine.gpu.lowering import too_large
    from vivavoce_engine.gpu.memory import settle

    device = torch.device(chosen.device)
    dtype, recorder = resolve_dtype(chosen.dtype, device), Recorder(Card.of(device))
    try:
        settled = settle(chosen, files, device, dtype)
    except NoRoom:
        return []  # the check of rows says so
    record_launches(files.talker, files.codec, settled, dtype, recorder, files.alignment)
    large = too_large(recorder.launches, recorder.card)
    if not large:
        return [Finding("launches", "ok", f"All {len(recorder.launches)} kernel launches of {name} fit the card.")]
    worst, wanted = max(large.items(), key=lambda item: item[1])
    count = f"{len(large)} of {len(recorder.launches)} kernel launches of {name}"
    room = f"the card's {recorder.card.shared_bytes} bytes of shared memory"
    text = f"{count} do not fit {room}; the largest wants {wanted}: {worst}."
    return [Finding("launches", "error", text, "vivavoce serve --runner torch")]


def located(checkpoint: str) -> Path | None:
    """Returns the folder of a checkpoint. None for one of the hub that has not been downloaded as a whole.

    Raises:
        CheckpointError: it is neither a folder nor a name that a model on the hub can have.
    """
    path = Path(checkpoint)
    return path if path.is_dir() else in_hub_cache(checkpoint)


def why_broken(path: Path) -> str:
    """Returns the reason for which a safetensors file is not whole, by its header and size. Empty if it is whole."""
    try:
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                return f"{path} stands for a file that Git LFS has not fetched (git lfs pull)"
        with safe_open(path, framework="np"):
            return ""
    except (SafetensorError, OSError) as error:
        size_mb = path.stat().st_size / 1e6 if path.exists() else 0.0
        return f"{path} ({size_mb:.1f} MB) is not whole; the download may have broken off ({first_line(error)})"


def in_hub_cache(hub_id: str) -> Path | None:
    """Returns the folder of a checkpoint that has been downloaded from the hub as a whole. None if it has not.

    Raises:
        CheckpointError: the name cannot be that of a model on the hub.
    """
    if not is_hub_id(hub_id):
        raise CheckpointError(f"{hub_id} is neither a folder nor a hub id of the form owner/model")
    from huggingface_hub import snapshot_download  # takes a second to import
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        path = Path(snapshot_download(hub_id, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise CheckpointError(f"{hub_id} is neither a folder nor a hub id: {error}") from error
    return None if missing_files(path) else path


def _not_downloaded(name: str, hub_id: str) -> Finding:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        text = f"{name} is neither a folder nor downloaded, and HF_HUB_OFFLINE forbids to download it."
        return Finding("model", "error", text, f"HF_HUB_OFFLINE=0 hf download {hub_id}")
    cache = Path(constants.HF_HUB_CACHE)
    if reason := why_not_writable(cache, DOWNLOAD_BYTES):
        text = f"{name} is not downloaded and cannot be downloaded: {reason}."
        return Finding("model", "error", text, "export HF_HOME=FOLDER  # on a disk with more room")
    text = f"{name} is neither a folder nor downloaded; the first start downloads it into {cache}."
    return Finding("model", "warning", text, f"hf download {hub_id}")


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
