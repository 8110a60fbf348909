"""The measured machine, and the texts that benchmarks speak."""

import os
import platform

TEXTS = (
    "The train to the coast leaves at nine, and the second one at half past ten.",
    "Could you tell me where the nearest library is, please?",
    "She packed two sandwiches, a blue notebook and an old map of the valley.",
    "Rain is expected in the evening, so take an umbrella with you.",
)


def describe_machine(device: str) -> str:
    """Describes the machine that the figures belong to: CPU, cores, threads, device."""
    import torch

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {name}"


def shipped_voice() -> str:
    from vivavoce_voice import CHECKPOINT

    return str(CHECKPOINT)
