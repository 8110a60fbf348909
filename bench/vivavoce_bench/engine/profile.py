"""`vivavoce bench engine --profile`: time and memory traffic of each component of a frame on a GPU.

PyTorch's profiler records one step of a number of rows, and one call of Code2Wav for them. The bytes are those that a
component must read: its weights, once in each pass, and the talker's keys and values. Their share of the memory's
bandwidth, measured by a large copy, shows how far a component is from the lower bound of its time. The rest is latency
or arithmetic.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vivavoce_engine.batching.scheduler import Plan

from vivavoce_bench.engine.steps import Recorder

if TYPE_CHECKING:
    from torch import nn
    from vivavoce_engine.gpu.runner import GraphRunner

CODEC_FRAMES = 4
COPY_BYTES = 1 << 30
COPIES = 10
PREDICTOR, TALKER, SAMPLER, CODEC, COPY = "code predictor", "talker", "sampler", "Code2Wav", "copies"


@dataclass(frozen=True, slots=True)
class DeviceActivity:
    """A kernel or a copy that ran on the device."""

    name: str
    us: float


@dataclass(slots=True)
class Component:
    """Work of a component in one frame of all rows. For Code2Wav, in one call."""

    us: float = 0.0
    kernels: int = 0
    bytes: int = 0


def split_frame(activities: Iterable[DeviceActivity], code_groups: int) -> dict[str, Component]:
    """Assigns a frame's activities, in their order, to components.

    gpu/frame.py first draws all of a frame's codes but the first. The activities after that belong to the talker.
    """
    parts = {name: Component() for name in (PREDICTOR, TALKER, SAMPLER, COPY)}
    drawn = 0
    for activity in activities:
        if activity.name.startswith("draw_code"):
            drawn += 1
            name = SAMPLER
        elif is_copy(activity):
            name = COPY
        else:
            name = PREDICTOR if drawn < code_groups - 1 else TALKER
        parts[name].us += activity.us
        parts[name].kernels += 1
    return parts


def is_copy(activity: DeviceActivity) -> bool:
    return activity.name.startswith(("Memcpy", "Memset"))


def profile(runner: "GraphRunner", rows: int) -> dict[str, Component]:
    """Profiles one frame of each of `rows`, and one Code2Wav call of `CODEC_FRAMES` frames for each of them."""
    recorder = Recorder(runner, 1)
    utterances = recorder.start_utterances(rows)
    recorder.run_frames(utterances, CODEC_FRAMES)
    talker, predictor, codec = runner.networks
    parts = split_frame(_activities(runner, Plan((), utterances, ())), predictor.groups)
    decoded = [
        activity
        for activity in _activities(runner, Plan((), (), tuple((utterance, CODEC_FRAMES) for utterance in utterances)))
        if not is_copy(activity)
    ]
    parts[CODEC] = Component(sum(activity.us for activity in decoded), len(decoded), codec.weight_bytes)
    positions = sum(utterance.pending.prompt.prefill_tokens + CODEC_FRAMES for utterance in utterances)
    parts[TALKER].bytes = _bytes(talker.transformer, talker.codec_head) + positions * runner.position_bytes
    parts[PREDICTOR].bytes = (predictor.groups - 1) * _bytes(predictor.transformer) + _bytes(predictor.lm_head)
    return parts


def _bytes(*networks: "nn.Module") -> int:
    return sum(weight.nbytes for network in networks for weight in network.parameters())


def _activities(runner: "GraphRunner", plan: Plan) -> list[DeviceActivity]:
    import torch
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    with watch(activities=[ProfilerActivity.CUDA]) as watched:
        runner.launch(plan).wait()
        torch.cuda.synchronize()
    events = [event for event in watched.events() or () if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    return [DeviceActivity(event.name, event.time_range.elapsed_us()) for event in events]


def bandwidth_gb_per_s() -> float:
    """Memory bandwidth of a copy that is too large for any cache: GB read and written per second."""
    import torch

    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    target.copy_(source)
    begin.record()
    for _ in range(COPIES):
        target.copy_(source)
    end.record()
    end.synchronize()
    took_ms: float = begin.elapsed_time(end)
    return 2 * COPIES * COPY_BYTES / took_ms / 1e6


def report(parts: dict[str, Component], rows: int, gb_per_s: float) -> None:
    print(f"{rows} rows; memory {gb_per_s:.0f} GB/s; Code2Wav: a call of {CODEC_FRAMES} frames a row")
    print("component        ms      kernels  MB read  of the bandwidth")
    for name, part in parts.items():
        share = 1e6 * part.bytes / max(part.us, 1e-9) / 1e9 / gb_per_s
        read = f"{part.bytes / 1e6:7.1f}  {share:6.1%}" if part.bytes else ""
        print(f"{name:15s}  {part.us / 1000:6.3f}  {part.kernels:7d}  {read}")
