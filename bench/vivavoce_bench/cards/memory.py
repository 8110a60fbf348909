"""Memory of an engine on a card, as it is counted before the model is loaded and as the driver shows it afterwards.

    python -m vivavoce_bench.cards.memory --model FOLDER --rows 2 8 64 256 [--device cuda:0] [--out FILE]

Each number of rows has a process of its own, which speaks one utterance, and encodes 30 s of noise if the model clones.
Nothing else may run on the card meanwhile. The columns `graphs and kernels` and `fragments` are measured for the
constants of vivavoce_engine/gpu/memory.py.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from vivavoce_engine.runtime import use_expandable_segments

MB = 1e6
NOISE_S = 30


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of an engine at rest, counted and measured. CUDA's context is in neither but has a field of its own."""

    rows: int
    positions: int
    graphs: int
    counted: int
    counted_peak: int
    counted_tensors: int
    measured: int
    """Less free memory, by the driver, than before the model was loaded."""
    reserved_peak: int
    """Most that PyTorch had at any time."""
    reserved: int
    allocated: int
    before: int
    """Not free before the model was loaded: CUDA's context, and what other processes have."""

    @property
    def outside(self) -> int:
        """Memory that PyTorch does not manage: graphs, kernels, handles of libraries."""
        return self.measured - self.reserved

    @property
    def fragments(self) -> int:
        return self.reserved - self.allocated


def measure(model: Path, rows: int, device: str) -> Memory:
    """Loads the model into this process and measures it. Call it once in a process, before torch is imported."""
    use_expandable_segments()
    import numpy as np
    import torch
    from vivavoce_engine.batching.admission import Admission
    from vivavoce_engine.checkpoint.files import read_checkpoint
    from vivavoce_engine.config import EngineConfig
    from vivavoce_engine.device import resolve_dtype
    from vivavoce_engine.gpu.fitting import CardMemory
    from vivavoce_engine.gpu.launch import Launcher
    from vivavoce_engine.gpu.memory import Counter
    from vivavoce_engine.load import load_parts
    from vivavoce_engine.process.worker import warm_up

    card = torch.device(device)
    before = CardMemory.of(card)
    parts = load_parts(model, EngineConfig(max_streams=rows, device=device, runner="triton"), "model")
    config = parts.config
    assert config is not None
    warm_up(parts.runner, config, Admission(config, parts.runner.info.frame_s))
    if parts.encoder is not None:
        noise = np.random.default_rng(1).normal(0, 0.1, NOISE_S * 24000)
        parts.encoder.encode(noise.astype(np.float32))
    torch.cuda.synchronize(card)
    after = CardMemory.of(card)
    usage = Counter(read_checkpoint(model), resolve_dtype(config.dtype, card), Launcher.of(card))(config)
    pages = config.kv_pages
    return Memory(
        rows=rows,
        positions=pages * 64,
        graphs=usage.graphs,
        counted=usage.at_rest(pages),
        counted_peak=usage.peak(pages),
        counted_tensors=usage.weights + usage.tables + usage.code2wav + (pages + 1) * usage.page,
        measured=before.free - after.free,
        reserved_peak=torch.cuda.max_memory_reserved(card),
        reserved=torch.cuda.memory_reserved(card),
        allocated=torch.cuda.memory_allocated(card),
        before=before.total - before.free,
    )


def measure_apart(model: Path, rows: int, device: str) -> Memory:
    """Measures in a process of its own."""
    command = [sys.executable, "-m", "vivavoce_bench.cards.memory", "--one", "--model", str(model), "--device", device]
    done = subprocess.run([*command, "--rows", str(rows)], stdout=subprocess.PIPE, text=True, check=True)
    return Memory(**json.loads(done.stdout.splitlines()[-1]))


def table(results: list[Memory]) -> str:
    """The results as a table for Markdown, in MB."""
    lines = [
        "| rows | positions | counted | measured | counted / measured | tensors counted / allocated | fragments "
        "| graphs and kernels (number of graphs) | most counted / reserved | context and others |",
        "|---" * 10 + "|",
    ]
    lines += [
        f"| {one.rows} | {one.positions} | {one.counted / MB:.0f} | {one.measured / MB:.0f} "
        f"| {one.counted / one.measured:.2f} | {one.counted_tensors / MB:.0f} / {one.allocated / MB:.0f} "
        f"| {one.fragments / MB:.0f} | {one.outside / MB:.0f} ({one.graphs}) "
        f"| {one.counted_peak / MB:.0f} / {one.reserved_peak / MB:.0f} | {one.before / MB:.0f} |"
        for one in results
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a checkpoint")
    parser.add_argument("--rows", type=int, nargs="+", default=[2, 8, 64, 256])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(asdict(measure(args.model, args.rows[0], args.device))))
        return
    results = [measure_apart(args.model, rows, args.device) for rows in args.rows]
    print(table(results))
    if args.out is not None:
        args.out.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
