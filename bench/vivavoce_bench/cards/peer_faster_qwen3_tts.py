r"""Times faster-qwen3-tts from PyPI on a GPU, for comparison with this project's frame.

    pip install --no-deps --target SITE faster-qwen3-tts==0.5.4 qwen-tts-hf==0.1.1.post1 \
        transformers==5.15.1 tokenizers==0.22.2
    PYTHONPATH=bench:SITE python -m vivavoce_bench.cards.peer_faster_qwen3_tts --out FILE [--sizes 0.6b 1.7b]

Its speech tokenizer does not load under transformers 5.17.

The script loads random CustomVoice checkpoints of the released shapes through the package's public interface. A frame
is the work between two frames of one request: code predictor, sampling and talker, without Code2Wav. Its time is the
median time from one call of the code predictor's graph to the next; the package's loop synchronises between them. The
package's talker attends to the whole static cache at any context. The time is therefore given for the default cache
and for the shortest cache that holds such a request.
"""

import argparse
import gc
import importlib
import importlib.machinery
import importlib.metadata
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from vivavoce_bench.cards.random_checkpoint import (
    HIDDEN,
    released_codec_config,
    released_config,
    write_random_checkpoint,
)

if TYPE_CHECKING:
    from faster_qwen3_tts import FasterQwen3TTS

DEFAULT_CACHE, SHORT_CACHE = 2048, 512
FRAMES = 120
CONTEXTS = range(150, 251)
"""Positions in the cache of the frames that are measured. The prompt below has about 140."""
REQUESTS = 3
FIRST_CHUNKS = 10
CHUNK_FRAMES = (1, 8)  # the minimum, and the value in its README
LONG_TEXT = " ".join(["The quick brown fox jumps over the lazy dog and then speaks with a calm clear voice."] * 7)
SHORT_TEXT = "The quick brown fox jumps over the lazy dog."
VOICE = {"speaker": "ryan", "language": "english"}
UNUSED = (
    ("librosa", "librosa.filters"),
    ("soundfile",),
    ("sox",),
    ("onnxruntime",),
    ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"),
)
"""Packages that it imports for reference recordings and other codecs. No request here needs them."""


class _Absent(ModuleType):
    """Replaces a package that is not installed. Its functions raise ImportError when called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
        self.__path__: list[str] = []
        self.__version__ = "0"

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*_: object, **__: object) -> NoReturn:
            raise ImportError(f"{self.__name__} is not installed")

        return call


def replace_absent_packages() -> list[str]:
    """Replaces packages that cannot be imported, and returns their names."""
    replaced = []
    for names in UNUSED:
        try:
            for name in names:
                importlib.import_module(name)
        except Exception as error:
            print(f"{names[0]} does not import ({error!r}): replaced by an empty module", flush=True)
            replaced.append(names[0])
            for name in names:
                sys.modules[name] = _Absent(name)
            for name in names[1:]:
                parent, _, child = name.rpartition(".")
                setattr(sys.modules[parent], child, sys.modules[name])
    return replaced


def frame_times(peer: "FasterQwen3TTS") -> dict[str, float]:
    """Median milliseconds per frame at the measured contexts, over several requests."""
    starts: list[float] = []
    prompt_tokens: list[int] = []
    run, prefill = peer.predictor_graph.run, peer.talker_graph.prefill_kv

    def timed_run(x: torch.Tensor) -> torch.Tensor:
        starts.append(time.perf_counter())
        codes: torch.Tensor = run(x)
        return codes

    def counted_prefill(cache: object) -> int:
        prompt_tokens.append(prefill(cache))
        return prompt_tokens[-1]

    peer.predictor_graph.run, peer.talker_graph.prefill_kv = timed_run, counted_prefill
    samples_ms, requests_ms = [], []
    for request in range(REQUESTS + 1):
        starts.clear()
        audio, rate = peer.generate_custom_voice(text=LONG_TEXT, max_new_tokens=FRAMES, **VOICE)
        if len(starts) != FRAMES or not len(audio[0]) == 1920 * FRAMES:
            raise RuntimeError(f"asked for {FRAMES} frames, got {len(starts)} and {len(audio[0])} samples at {rate} Hz")
        if request == 0:
            continue  # the first request captures the graphs
        times_ms = [1000 * (end - start) for start, end in itertools.pairwise(starts)]
        samples_ms += [value for frame, value in enumerate(times_ms) if prompt_tokens[-1] + frame in CONTEXTS]
        requests_ms.append(statistics.mean(times_ms))
    del peer.predictor_graph.run, peer.talker_graph.prefill_kv
    if len(samples_ms) < 50:
        raise RuntimeError(f"only {len(samples_ms)} frames at contexts {CONTEXTS}: the prompt has {prompt_tokens[-1]}")
    deciles = statistics.quantiles(samples_ms, n=10)
    return {
        "median": round(statistics.median(samples_ms), 3),
        "p10": round(deciles[0], 3),
        "p90": round(deciles[-1], 3),
        "mean_of_whole_requests": round(statistics.mean(requests_ms), 3),
        "frames": len(samples_ms),
        "prompt_tokens": prompt_tokens[-1],
    }


def first_chunk_ms(peer: "FasterQwen3TTS", chunk_frames: int) -> float:
    """Median milliseconds from the call to the first samples on the host."""
    samples_ms = []
    for request in range(FIRST_CHUNKS + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        chunks = peer.generate_custom_voice_streaming(
            text=SHORT_TEXT, max_new_tokens=2 * chunk_frames, chunk_size=chunk_frames, **VOICE
        )
        samples, _, _ = next(chunks)
        elapsed_ms = 1000 * (time.perf_counter() - begin)
        if len(samples) != 1920 * chunk_frames:
            raise RuntimeError(f"the first chunk has {len(samples)} samples, not {chunk_frames} frames")
        if request >= 2:
            samples_ms.append(elapsed_ms)
        for _ in chunks:
            pass
    return round(statistics.median(samples_ms), 2)


def versions() -> dict[str, str]:
    names = ("faster-qwen3-tts", "qwen-tts-hf", "transformers", "torch", "triton", "accelerate")
    return {name: importlib.metadata.version(name) for name in names}


def measure(folder: Path, size: str, cache: int, result: dict[str, Any]) -> None:
    from faster_qwen3_tts import FasterQwen3TTS

    began_s = time.perf_counter()
    peer = FasterQwen3TTS.from_pretrained(str(folder), device="cuda", dtype=torch.bfloat16, max_seq_len=cache)
    peer.warmup(prefill_len=100)
    print(f"{size}, cache {cache}: loaded and captured in {time.perf_counter() - began_s:.1f} s", flush=True)
    key = "frame_ms" if cache == DEFAULT_CACHE else f"frame_ms_cache_{cache}"
    times = frame_times(peer)
    result.setdefault(key, {})[size] = {"1": times["median"]}
    result.setdefault("details", {})[f"{size}, cache {cache}"] = times
    print(f"{size}, cache {cache}: {times}", flush=True)
    if cache == DEFAULT_CACHE:
        for frames in CHUNK_FRAMES:
            value = first_chunk_ms(peer, frames)
            result.setdefault("first_chunk_ms", {}).setdefault(size, {})[f"{frames} frames"] = value
            print(f"{size}: first chunk of {frames} frames after {value} ms", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", choices=list(HIDDEN), default=list(HIDDEN))
    parser.add_argument("--scratch", type=Path, help="folder for temporary checkpoints (6 GB)")
    parser.add_argument("--budget-s", type=float, default=110, help="seconds after which no further measurement starts")
    args = parser.parse_args()
    began_s = time.perf_counter()
    replaced = replace_absent_packages()
    result: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "versions": versions(),
        "command": " ".join(["python", *sys.argv]),
        "packages_replaced": replaced,
    }
    failed = False
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        for cache in (DEFAULT_CACHE, SHORT_CACHE):
            for size in args.sizes:
                elapsed_s = time.perf_counter() - began_s
                if elapsed_s > args.budget_s:
                    print(f"{size}, cache {cache}: left out after {elapsed_s:.0f} s", flush=True)
                    continue
                try:
                    folder = Path(scratch) / size
                    if not folder.exists():
                        codec = released_codec_config()
                        write_random_checkpoint(folder, released_config(size), codec, torch.device("cuda"))
                        print(f"{size}: written in {time.perf_counter() - began_s - elapsed_s:.1f} s", flush=True)
                    measure(folder, size, cache, result)
                except Exception:
                    traceback.print_exc()
                    failed = True
                gc.collect()
                torch.cuda.empty_cache()
                args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"done in {time.perf_counter() - began_s:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
