"""Device and runner of an engine: the order in which they are tried, and what each of them loses.

`auto` never turns a machine that can speak into one that cannot: what a card cannot do, the plain runner does, and what
it cannot do either, the CPU does. A device or a runner that the user names is used, or refused in a sentence.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import CheckpointError, EngineError, NoRoom, is_out_of_memory
from vivavoce_engine.findings import Finding
from vivavoce_engine.gpu import needs
from vivavoce_engine.gpu.presence import card_present

log = logging.getLogger(__name__)

PLAIN_LOSES = (
    "PyTorch's own kernels run instead of Vivavoce's, without CUDA graphs: speech is exact, but slower than real time "
    "(a frame of 80 ms takes the 0.6B model 134 ms beside an H200). Each stream holds memory for all of max_context."
)
CPU_PLAIN_LOSES = "PyTorch speaks instead of Vivavoce's kernels for CPUs, which are about four times as fast."
IDLE_CARD = "The card is idle, because int8 is a dtype of the CPU's kernels alone; any other dtype speaks on the card."
SMALL_HIDDEN_SIZE = 1024
"""Least width of a talker that PyTorch's kernels run faster on a card than on a CPU. The host launches each operation,
which takes longer than a CPU takes to compute it for a small model, such as the shipped voice."""
Runner = TypeVar("Runner")


@dataclass(frozen=True, slots=True)
class Choice:
    """A device and a runner to try. `config` names both; neither is `auto`."""

    config: EngineConfig
    loses: str = ""
    """The loss beside the best use of this machine, and its reason. Empty if there is none."""

    @property
    def name(self) -> str:
        return f"the {self.config.runner} runner on {self.config.device}"


def choices(
    config: EngineConfig, hidden_size: int = SMALL_HIDDEN_SIZE, cpu_lacks: Callable[[], str] = lambda: ""
) -> list[Choice]:
    """Returns what to try for a talker of this width, the best first; never empty.

    `cpu_lacks` returns the reason for which the CPU's kernels cannot be used, in a sentence, or an empty string if they
    can. It is called only where they could be chosen, because it loads them.

    Raises:
        EngineError: this machine lacks the named device, or what the named runner needs.
    """
    if config.device == "cpu" or config.runner == "native" or config.dtype == "int8":
        return list(on_cpu(config, cpu_lacks, IDLE_CARD if leaves_card_idle(config) else ""))
    unusable = why_unusable(config.device)
    if unusable and config.device != "auto":
        raise EngineError(f"device {config.device} cannot be used: {unusable}")
    if unusable:
        why = f"the CPU speaks although there is a card: {unusable}" if card_present() else ""
        return list(on_cpu(config, cpu_lacks, why))
    device = "cuda" if config.device == "auto" else config.device
    found = list(on_card(replace(config, device=device)))
    if config.device != "auto" or config.runner == "triton":
        return found
    if hidden_size < SMALL_HIDDEN_SIZE and config.runner == "auto":
        reasons = [sentence(finding) for finding in blockers(torch.device(device))]
        found = [choice for choice in found if choice.config.runner == "triton"]
        why = " ".join([*reasons, "The CPU speaks, which is faster for a small model."])
        return [*found, *on_cpu(config, cpu_lacks, why)]
    return [*found, *on_cpu(config, cpu_lacks, "The CPU speaks, and not the card.")]


def leaves_card_idle(config: EngineConfig) -> bool:
    """True if there is a card, and the dtype alone keeps speech from it."""
    named = config.device == "cpu" or config.runner == "native"
    return config.dtype == "int8" and not named and torch.cuda.is_available()


def on_cpu(config: EngineConfig, cpu_lacks: Callable[[], str], loses: str = "") -> Iterator[Choice]:
    """Yields the runners for a CPU, in order. `cpu_lacks` as `choices` has it; `loses` is lost by all of them."""
    if config.runner == "triton":
        raise EngineError("runner triton needs an NVIDIA card" + (f": {loses}" if loses else "; use torch or auto"))
    config = replace(config, device="cpu")
    if config.runner == "torch":
        yield Choice(config, loses)
        return
    no_float16 = "Vivavoce's kernels for CPUs have no float16."
    lacks = no_float16 if config.dtype == "float16" else cpu_lacks()
    needed = "runner native" if config.runner == "native" else "dtype int8" if config.dtype == "int8" else ""
    if lacks and needed:
        raise EngineError(f"{needed} cannot be used: {lacks}")
    if not lacks:
        yield Choice(replace(config, runner="native"), loses)
    if not needed:
        yield Choice(replace(config, runner="torch"), " ".join(filter(None, [loses, lacks, CPU_PLAIN_LOSES])))


def on_card(config: EngineConfig) -> Iterator[Choice]:
    """Yields the runners for a card that PyTorch can use, in order."""
    missing = blockers(torch.device(config.device))
    if config.runner != "torch" and not missing:
        yield Choice(replace(config, runner="triton"))
    elif config.runner == "triton":
        raise EngineError("runner triton cannot be used: " + " ".join(sentence(finding) for finding in missing))
    if config.runner == "torch":
        yield Choice(config)
    elif config.runner == "auto":
        reasons = " ".join(sentence(finding) for finding in missing)
        yield Choice(replace(config, runner="torch"), f"{reasons} {PLAIN_LOSES}".strip())


def blockers(device: torch.device) -> list[Finding]:
    """Returns the reasons for which Triton kernels cannot run on this card."""
    return [finding for finding in needs.check_all(device) if finding.state == "error"]


def why_unusable(name: str) -> str:
    """Returns the reason for which PyTorch cannot use the card `name`, and what mends it. Empty if it can.

    A card whose memory others hold can be used: to load a model there raises NoRoom, which may pass.
    """
    if not torch.cuda.is_available():
        found = [needs.check_driver(), needs.check_torch()]
        errors = [sentence(finding) for finding in found if finding.state == "error"]
        return " ".join(errors) or "PyTorch finds no card that it can use (is CUDA_VISIBLE_DEVICES set?)."
    device, count = torch.device("cuda" if name == "auto" else name), torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        return f"this machine has {count} card{'s' * (count > 1)}, numbered from 0."
    try:
        float(torch.ones(1, device=device) + 1)
    except RuntimeError as error:
        if is_out_of_memory(error):
            return ""
        first = str(error).strip().partition("\n")[0]
        return f"PyTorch {torch.__version__} cannot compute on {torch.cuda.get_device_name(device)}: {first}"
    return ""


def sentence(finding: Finding) -> str:
    return finding.text + (f" Mend it with: `{finding.mend}`." if finding.mend else "")


def first_that_works(options: list[Choice], make: Callable[[EngineConfig], Runner]) -> Runner:
    """Makes the runner of the first of `options` that can be made, and logs what is lost and why.

    Raises:
        EngineError: the last choice failed, or the checkpoint is at fault.
    """
    while True:
        choice, *options = options
        if choice.loses:
            log.warning("%s: %s", choice.name, choice.loses)
        try:
            return make(choice.config)
        except Exception as error:
            if isinstance(error, CheckpointError) and not isinstance(error, NoRoom):
                raise
            if isinstance(error, NoRoom):  # the plain runner takes more memory, not less
                options = [other for other in options if other.config.device != choice.config.device]
            if not options:
                raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            log.warning("%s cannot be used (%s); trying %s", choice.name, reason, options[0].name)
            log.debug("the error in full", exc_info=True)
        if torch.cuda.is_available():
            with suppress(RuntimeError):  # a CUDA context that an error has destroyed frees nothing
                torch.cuda.empty_cache()  # what the runner that failed has left
