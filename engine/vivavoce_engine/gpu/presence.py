"""Signs by which an operating system shows that it has an NVIDIA card. Torch-free: nothing touches the card."""

import re
from pathlib import Path

DRIVER_FILE = Path("/proc/driver/nvidia/version")
WSL_GPU = Path("/dev/dxg")
"""The card of a Windows host inside WSL2, of whatever maker."""
WSL_DRIVER = Path("/usr/lib/wsl/lib/libcuda.so.1")


def card_present() -> bool:
    """True if the operating system shows an NVIDIA card, even if PyTorch cannot use it."""
    return DRIVER_FILE.is_file() or (WSL_GPU.exists() and WSL_DRIVER.exists())


def driver_version() -> str | None:
    """Returns the NVIDIA driver's version, such as 580.65.06. None if there is none, and inside WSL2."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", DRIVER_FILE.read_text("utf-8", "replace"))
    except OSError:
        return None
    return found[1] if found else None
