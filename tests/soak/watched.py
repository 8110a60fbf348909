"""Observation of the server's processes from outside: their resources (Linux's /proc), and the server's gauges."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

GAUGES = ("vivavoce_active_rows", "vivavoce_queued", "vivavoce_live_sessions")
KIB_A_MIB = 1024


@dataclass(frozen=True, slots=True)
class Held:
    """What the processes have. `pieces` may grow by what is made once, on first use; memory by a share."""

    rss_mib: float
    threads: int
    files: int

    def __str__(self) -> str:
        return f"{self.rss_mib:.0f} MiB, {self.threads} threads, {self.files} file descriptors"


def held_by(pid: int) -> Held:
    """By a process and all below it."""
    rss_kib = threads = files = 0
    for process in family_of(pid):
        fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        rss_kib += int(fields["VmRSS"].split()[0])
        threads += int(fields["Threads"])
        files += len(list((process / "fd").iterdir()))
    return Held(rss_kib / KIB_A_MIB, threads, files)


def family_of(pid: int) -> Iterator[Path]:
    process = Path(f"/proc/{pid}")
    yield process
    for task in (process / "task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family_of(int(child))


async def gauges(client: httpx.AsyncClient) -> dict[str, float]:
    """Rows, queue and live connections, summed over models."""
    text = (await client.get("/metrics")).text
    found = dict.fromkeys(GAUGES, 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in found:
                found[sample.name] += sample.value
    return found
