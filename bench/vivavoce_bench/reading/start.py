"""A process that loads the reading of text and prints the cost as JSON: CPU time, and the memory so far."""

import json
import re
import resource
import sys
import time
from pathlib import Path

TEXTS = {"en": "It costs $5.50 on 12/25/2024.", "zh": "价格是5元。"}
"""A text for each language, with numbers: their rules are loaded when they are first needed."""


def peak_mb() -> float:
    """Most memory that this process has held, in megabytes."""
    if sys.platform == "linux":
        # ru_maxrss would include the peak of the process that started this one.
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        assert found is not None
        return int(found[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2  # bytes on macOS


def main() -> None:
    before_mb, started_s = peak_mb(), time.process_time()
    from vivavoce_text import STAGES, Profile, speakable

    costs = {"import": (time.process_time() - started_s, peak_mb() - before_mb)}
    for language, text in TEXTS.items():
        started_s = time.process_time()
        speakable(text, language, Profile(frozenset(STAGES), "names", "ascii"))
        costs[f"first text, {language}"] = (time.process_time() - started_s, peak_mb() - before_mb)
    print(
        json.dumps({name: {"cpu_s": round(cpu_s, 2), "memory_mb": round(mb, 1)} for name, (cpu_s, mb) in costs.items()})
    )


if __name__ == "__main__":
    main()
