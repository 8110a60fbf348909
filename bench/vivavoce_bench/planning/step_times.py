"""Step times: the time of each part of an engine step on some machine, recorded for the simulation. Pure Python.

A file of step times is JSON. Each time stands under the quantity that it depends on. Times that depend on weights have
an entry for each model:

    {"machine": "…",
     "frame_ms": {"1.7b": {"1": 6.3, "64": 8.4}},          by rows: code predictor and talker, one frame a row
     "prefill_ms": {"1.7b": {"1": 3.0, "2": 3.4}},         by prompts started in one step
     "code2wav_us_per_frame": {"1x1": 1500, "32x4": 61},   by rows x frames of a call
     "host_ms": {"1": 0.1, "64": 0.4},                     by rows: scheduling and the rest
     "start_host_ms": {"1.7b": {"1": 1.1, "2": 1.3}},      by prompts started: the host's work before the device can
                                                           begin them; hidden while the device is busy
     "steps_ahead": 1,                                     0 if the host waits for each step, 1 if it works beside it
     "decoding_slows": 0.5,                                delay of the next frame, as a share of Code2Wav's time
     "decoders": 1,                                        threads of a CPU that decode beside the frames; times are
                                                           those of one thread
     "front_ms": {"request": 2.3, "report": 0.5, "piece": 0.3}}    of the HTTP process: to pass a request on, for the
                                                           report of a step, for each piece of audio in a report

Other keys are ignored. Between recorded points, times are interpolated linearly. Beyond the last one, the line through
the last two continues. `frame_ms` and `code2wav_us_per_frame` are required. A missing `prefill_ms` is taken to equal
the time of a frame of as many rows. Everything else that is missing is taken to be 0.
"""

import json
import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivavoce_engine.batching.scheduler import Plan


class StepTimesError(Exception):
    """A file of step times cannot be used. The message says why."""


class Curve:
    """Piecewise linear function through measured points. With a single point, it is proportional."""

    def __init__(self, points: Mapping[float, float]) -> None:
        assert points
        self._points = sorted(points.items())
        if len(self._points) == 1:
            self._points.insert(0, (0.0, 0.0))

    def __call__(self, x: float) -> float:
        at = min(max(bisect_left(self._points, (x,)), 1), len(self._points) - 1)
        (x0, y0), (x1, y1) = self._points[at - 1 : at + 1]
        # Constant below the first point: a batch of 1 costs as much as the smallest measured batch.
        return y0 if x < x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)


ZERO = Curve({0: 0.0, 1: 0.0})


@dataclass(frozen=True, slots=True)
class FrontTimes:
    """Times of the HTTP process, in ms. It does one thing at a time."""

    request: float = 0.0
    """To pass a request on to the engine."""
    report: float = 0.0
    """To handle the engine's report of a step that produced audio, without its pieces."""
    piece: float = 0.0
    """To handle each piece of audio in a report."""

    def times(self, factor: float) -> "FrontTimes":
        """Times of a host that takes `factor` times as long."""
        return FrontTimes(self.request * factor, self.report * factor, self.piece * factor)


@dataclass(frozen=True)
class StepTimes:
    """Step times of one model on one machine, in ms."""

    machine: str
    model: str
    frame_ms: Curve
    prefill_ms: Curve
    code2wav_ms: Curve
    """Time of a Code2Wav call by its rows times its frames. The division into rows matters little."""
    host_ms: Curve
    start_host_ms: Curve = ZERO
    steps_ahead: int = 0
    decoding_slows: float = 0.0
    decoders: int = 0
    front_ms: FrontTimes = FrontTimes()
    assumed: tuple[str, ...] = ()
    """Names of times that were not recorded and are assumed as the module's docstring says."""

    def talking_ms_of(self, plan: Plan) -> float:
        """Time of the prefill and of one frame for each row."""
        return (self.prefill_ms(len(plan.start)) if plan.start else 0.0) + (
            self.frame_ms(len(plan.step)) if plan.step else 0.0
        )

    def decoding_ms_of(self, plan: Plan) -> float:
        """Time of Code2Wav, which runs one call for each length of piece."""
        calls = Counter(frames for _, frames in plan.vocode)
        return sum(self.code2wav_ms(rows * frames) for frames, rows in calls.items())

    def host_ms_of(self, plan: Plan) -> float:
        """Time of the host's work before the device can begin a step."""
        start_ms = self.start_host_ms(len(plan.start)) if plan.start else 0.0
        return self.host_ms(max(len(plan.step), len(plan.vocode))) + start_ms


TAKES_NO_TIME = StepTimes("none", "none", ZERO, ZERO, ZERO, ZERO)
"""Step times of a machine that takes no time."""


def read_step_times(path: Path, model: str | None) -> StepTimes:
    """Reads a file of step times. `model` is needed if the file holds several.

    Raises:
        StepTimesError: the file is missing or incomplete, or does not hold the model.
    """
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        models = document["frame_ms"]
        model = _choose(model, models)
        frame_ms = _curve(models[model])
        prefill = document.get("prefill_ms", {}).get(model)
        host, start_host = document.get("host_ms"), document.get("start_host_ms", {}).get(model)
        assumed = [name for name, found in (("prefill_ms", prefill), ("host_ms", host)) if found is None]
        return StepTimes(
            machine=str(document.get("machine", path.stem)),
            model=model,
            frame_ms=frame_ms,
            prefill_ms=frame_ms if prefill is None else _curve(prefill),
            code2wav_ms=_calls(document["code2wav_us_per_frame"]),
            host_ms=ZERO if host is None else _curve(host),
            start_host_ms=ZERO if start_host is None else _curve(start_host),
            steps_ahead=int(document.get("steps_ahead", 0)),
            decoding_slows=float(document.get("decoding_slows", 0.0)),
            decoders=int(document.get("decoders", 0)),
            front_ms=FrontTimes(**{name: float(ms) for name, ms in document.get("front_ms", {}).items()}),
            assumed=tuple(assumed),
        )
    except OSError as error:
        raise StepTimesError(f"there are no step times at {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise StepTimesError(f"{path} holds no step times: {error!r}") from error


def _choose(model: str | None, models: Iterable[str]) -> str:
    known = sorted(models)
    if model is None and len(known) == 1:
        return known[0]
    if model not in known:
        raise StepTimesError(f"which model? There are step times of {', '.join(known)}")
    return model


def _curve(points: Mapping[str, float]) -> Curve:
    return Curve({float(x): float(y) for x, y in points.items()})


def _calls(us_per_frame: Mapping[str, float]) -> Curve:
    """{"32x4": 61} → ms of a call of 128 frames. Calls of the same size are averaged."""
    calls: defaultdict[int, list[float]] = defaultdict(list)
    for name, us in us_per_frame.items():
        rows, _, frames = name.partition("x")
        size = int(rows) * int(frames)
        calls[size].append(float(us) * size / 1000)
    return Curve({size: statistics.mean(values) for size, values in calls.items()})
