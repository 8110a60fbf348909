"""`vivavoce bench plan`: number of replicas that a rate of requests needs, simulated with recorded step times.

Requests arrive as a Poisson process, and a load balancer sends each to a random replica. Each replica therefore sees a
Poisson process too. The command searches for the smallest number of replicas that keeps the promised time to first
audio and share of underruns, and simulates one of them. The last line of the output is one JSON document.
"""

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vivavoce_engine.config import EngineConfig

from vivavoce_bench.listener.metrics import percentile
from vivavoce_bench.planning.simulation import FRAME_S, Arrival, SimulatedListener, Simulation, Stall
from vivavoce_bench.planning.step_times import StepTimes, StepTimesError, read_step_times

RESULTS = Path("bench/results")
"""Folder of the repository's recorded step times, engine-NAME.json."""
UNFIT, USAGE_ERROR = 1, 2
ENOUGH_REQUESTS = 500
"""Least requests of a simulated replica, however long they take. Fewer say little about the slowest 5 %."""
MAX_REPLICAS = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `vivavoce bench plan`. Entry point of the command line."""
    defaults = EngineConfig()
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--gpu", metavar="NAME", help=f"step times of {RESULTS}/engine-NAME.json")
    where.add_argument("--steps", type=Path, help="file of step times, written by `vivavoce bench steps`")
    parser.add_argument("--model", help="model to simulate, if the file has step times of several")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--rate", type=float, help="requests per second on all replicas together")
    what.add_argument(
        "--check", type=Path, help="result of `vivavoce bench load -o`; simulates its requests and compares the figures"
    )
    parser.add_argument(
        "--ttfa-ms", type=float, default=100.0, help="largest allowed p95 of the time to first audio [%(default)s]"
    )
    parser.add_argument(
        "--underruns", type=float, default=0.0, help="largest allowed share of requests with underruns [%(default)s]"
    )
    parser.add_argument(
        "--serving-ms", type=float, default=0.0, help="delay that network and client add to all audio [%(default)s]"
    )
    parser.add_argument(
        "--fronts", type=int, default=1, help="HTTP processes of a replica, as of `vivavoce serve` [%(default)s]"
    )
    parser.add_argument("--audio-s", type=float, default=4.5, help="mean length of speech [%(default)s]")
    parser.add_argument("--max-streams", type=int, default=defaults.rows, help="rows of a replica [%(default)s]")
    parser.add_argument("--max-queue", type=int, default=defaults.max_queue, help="[%(default)s]")
    parser.add_argument(
        "--duration", type=float, default=60.0, help="least seconds to simulate, after 10 s of warm-up [%(default)s]"
    )
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    """Runs `vivavoce bench plan`. Entry point of the command line."""
    try:
        path = args.steps or RESULTS / f"engine-{args.gpu.lower()}.json"
        times = read_step_times(path, args.model)
        config = EngineConfig(max_streams=args.max_streams, max_queue=args.max_queue)
        if args.fronts < 1:
            raise ValueError("--fronts must be above 0")
        engine = SimulatedEngine(times, config, args.serving_ms / 1000, args.fronts)
        return _check(engine, args.check) if args.check else _plan(engine, args)
    except (StepTimesError, ValueError) as error:
        print(f"vivavoce: {error}", file=sys.stderr)
        return USAGE_ERROR


@dataclass(frozen=True, slots=True)
class SimulatedEngine:
    """The engine and machine to simulate."""

    times: StepTimes
    config: EngineConfig
    serving_s: float
    fronts: int = 1
    """HTTP processes, each of which takes the times of `front_ms`."""

    def simulation(self, stalls: Iterable[Stall] = ()) -> Simulation:
        """Creates a simulation, for one run."""
        return Simulation(self.times, self.config, self.serving_s, stalls, self.fronts)

    def with_front(self, factor: float) -> "SimulatedEngine":
        """Copy whose HTTP processes take `factor` times as long."""
        return replace(self, times=replace(self.times, front_ms=self.times.front_ms.times(factor)))

    def facts(self) -> dict[str, Any]:
        return {
            "machine": self.times.machine,
            "model": self.times.model,
            "assumed": self.times.assumed,
            "max_streams": self.config.rows,
            "fronts": self.fronts,
            "serving_ms": 1000 * self.serving_s,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """Figures of the listeners of one replica."""

    replicas: int
    rate: float
    """Requests per second to one replica."""
    requests: int
    ttfa_ms_p50: float
    ttfa_ms_p95: float
    underrun_share: float
    refused_share: float
    audio_s_per_s: float

    def keeps(self, ttfa_ms: float, underruns: float) -> bool:
        """True if no request is refused and both promises are kept."""
        return not self.refused_share and self.ttfa_ms_p95 <= ttfa_ms and self.underrun_share <= underruns


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that arrive as a Poisson process.

    Lengths of speech vary as those of single sentences do: a gamma distribution whose standard deviation is 40 % of its
    mean. `shortest_s` is the least time to simulate after the warm-up.
    """

    rate: float
    audio_s: float
    shortest_s: float
    seed: int
    warmup_s: float = 10.0

    def duration_s(self, replicas: int) -> float:
        """Simulated time of one replica after the warm-up."""
        return max(self.shortest_s, ENOUGH_REQUESTS * replicas / self.rate)

    def arrivals(self, replicas: int) -> Iterator[Arrival]:
        """Yields the arrivals at one replica."""
        end_s = self.warmup_s + self.duration_s(replicas)
        draw = random.Random(f"{self.seed}/{replicas}")
        shape = 1 / 0.4**2
        at_s = draw.expovariate(self.rate / replicas)
        while at_s < end_s:
            audio_s = draw.gammavariate(shape, self.audio_s / shape)
            yield Arrival(at_s, max(2, round(audio_s / FRAME_S)))
            at_s += draw.expovariate(self.rate / replicas)


def simulate(engine: SimulatedEngine, workload: Workload, replicas: int) -> Verdict:
    """Simulates one of `replicas` replicas. Counts its requests after the warm-up."""
    everybody = engine.simulation().run(workload.arrivals(replicas))
    heard = [each for each in everybody if each.arrival.at_s >= workload.warmup_s]
    served = [each for each in heard if not each.refused]
    ttfa_ms = [1000 * each.ttfa_s for each in served if each.ttfa_s is not None] or [0.0]
    return Verdict(
        replicas=replicas,
        rate=workload.rate / replicas,
        requests=len(heard),
        ttfa_ms_p50=round(percentile(ttfa_ms, 50), 3),
        ttfa_ms_p95=round(percentile(ttfa_ms, 95), 3),
        underrun_share=sum(each.underruns > 0 for each in served) / max(1, len(served)),
        refused_share=1 - len(served) / max(1, len(heard)),
        audio_s_per_s=round(sum(each.arrival.frames for each in served) * FRAME_S / workload.duration_s(replicas), 3),
    )


def fewest_replicas(
    engine: SimulatedEngine, workload: Workload, ttfa_ms: float, underruns: float
) -> tuple[int | None, list[Verdict]]:
    """Finds the fewest replicas that keep the promises, or None if no number does. Returns all verdicts too."""
    tried: dict[int, Verdict] = {}

    def fits(replicas: int) -> bool:
        if replicas not in tried:
            tried[replicas] = simulate(engine, workload, replicas)
        return tried[replicas].keeps(ttfa_ms, underruns)

    # With less than one request in 100 s at each replica, more replicas change nothing.
    most = min(MAX_REPLICAS, max(1, math.ceil(100 * workload.rate)))
    high = 1
    while not fits(high):
        if high == most:
            return None, list(tried.values())
        high = min(2 * high, most)
    low = high // 2  # does not fit, or is 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high, [tried[replicas] for replicas in sorted(tried)]


def _plan(engine: SimulatedEngine, args: argparse.Namespace) -> int:
    for name in ("rate", "audio_s", "duration", "ttfa_ms"):
        if not getattr(args, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0")
    workload = Workload(args.rate, args.audio_s, args.duration, args.seed)
    replicas, tried = fewest_replicas(engine, workload, args.ttfa_ms, args.underruns)
    parts = f"{engine.config.rows} rows, {engine.fronts} HTTP process{'es' if engine.fronts > 1 else ''} a replica"
    print(f"{engine.times.machine}, {engine.times.model}; {parts}")
    for name in engine.times.assumed:
        print(f"{name} was not recorded: see vivavoce_bench/planning/step_times.py for what is assumed")
    print("replicas  requests/s each  TTFA p50 / p95 ms  underruns  refused  audio s/s each")
    for each in tried:
        print(
            f"{each.replicas:8d}  {each.rate:15.2f}  {each.ttfa_ms_p50:7.0f} / {each.ttfa_ms_p95:<7.0f}  "
            f"{each.underrun_share:9.2%}  {each.refused_share:7.2%}  {each.audio_s_per_s:14.1f}"
        )
    promise = f"TTFA p95 of {args.ttfa_ms:g} ms and underruns in at most {args.underruns:.2%} of requests"
    if replicas is None:
        print(f"no number of replicas keeps {promise}")
    else:
        print(f"{replicas} replicas keep {promise} at {args.rate:g} requests/s")
    document = {"bench": "plan", **engine.facts(), "replicas": replicas, "tried": [asdict(each) for each in tried]}
    print(json.dumps(document, ensure_ascii=False))
    return 0 if replicas is not None else UNFIT


# ---- against a real run ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure, measured and simulated."""

    figure: str
    measured: float
    simulated: float

    @property
    def ratio(self) -> float | None:
        return self.simulated / self.measured if self.measured else None


def compare_run(
    engine: SimulatedEngine, facts: Mapping[str, Any], requests: Sequence[dict[str, Any]]
) -> tuple[list[Compared], SimulatedEngine]:
    """Simulates the requests of a run, with speech of the same lengths, and compares the figures.

    Requests arrive at the times at which they were sent. In a closed loop each arrives when one of the listeners has
    heard the end of its last speech. If the run recorded stalls of the machine (cards/server.py does), the simulation
    has the same stalls. If it recorded the CPU time of the HTTP processes, `front_ms` is scaled to it in the returned
    engine, because it may come from another host; the comparison of that CPU time is the one before scaling. The time
    to first audio is that of the first sample, because a simulation has no silence.
    """
    sent = sorted((each for each in requests if each["error"] is None), key=lambda each: each["sent_s"])
    heard, front_cpu_s = _simulate_run(engine, facts, sent)
    if front_cpu_s and "front_cpu_s" in facts:
        engine = engine.with_front(facts["front_cpu_s"] / front_cpu_s)
        heard, _ = _simulate_run(engine, facts, sent)
    pairs = [(a, b) for a, b in zip(sent, heard, strict=True) if not a["warmup"]]
    if not pairs:
        raise ValueError("the run has no complete request in its measured time")
    measured = [each for each, _ in pairs]
    simulated = [each for _, each in pairs]
    first_ms = [1000 * (each.ttfa_s or 0.0) for each in simulated]
    whole_ms = [1000 * ((each.ended_s or 0.0) - each.arrival.at_s) for each in simulated]
    compared = []
    for name, figure, values in (
        ("first audio", "first_playable_ms", first_ms),
        ("end to end", "end_to_end_ms", whole_ms),
    ):
        for percent in (50, 95):
            real = percentile([each[figure] for each in measured], percent)
            compared.append(Compared(f"{name} p{percent} ms", real, percentile(values, percent)))
    underruns = sum(bool(each["gaps"]) for each in measured), sum(each.underruns > 0 for each in simulated)
    compared.append(Compared("requests with underruns", *underruns))
    if "front_cpu_s" in facts:
        compared.append(Compared("HTTP processes, CPU s", facts["front_cpu_s"], front_cpu_s))
    return compared, engine


def _simulate_run(
    engine: SimulatedEngine, facts: Mapping[str, Any], sent: Sequence[dict[str, Any]]
) -> tuple[list[SimulatedListener], float]:
    """Simulates the requests of a run. Returns its listeners, and the CPU seconds of its HTTP processes."""
    listeners = facts["load"].get("listeners")
    lengths = [max(1, round(each["audio_s"] / FRAME_S)) for each in sent]
    simulation = engine.simulation(_stalls(facts))
    if listeners is None:
        heard = simulation.run(Arrival(each["sent_s"], frames) for each, frames in zip(sent, lengths, strict=True))
    else:
        pause_s = statistics.median(each["lag_ms"] for each in sent) / 1000 if sent else 0.0
        heard = simulation.run_closed(lengths, listeners, pause_s)
    return heard, simulation.front_busy_s


def _stalls(facts: Mapping[str, Any]) -> list[Stall]:
    return [Stall(*stall) for stall in facts.get("stalls", ())]


def _check(engine: SimulatedEngine, path: Path) -> int:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        runs = list(zip(result["runs"], result["requests"], strict=True))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is no result of `vivavoce bench load -o`: {error!r}") from error
    checked = []
    for facts, requests in runs:
        compared, scaled = compare_run(engine, facts, requests)
        stalled_ms = 1000 * sum(stall.length_s for stall in _stalls(facts)) if "stalls" in facts else None
        stood_still = "not recorded when" if stalled_ms is None else f"for {stalled_ms:.0f} ms"
        print(f"{facts['load']}: {facts['requests']} requests; the machine stood still: {stood_still}")
        print("                          measured  simulated  simulated / measured")
        for each in compared:
            ratio = "" if each.ratio is None else f"{each.ratio:.3f}"
            print(f"{each.figure:24}  {each.measured:8.1f}  {each.simulated:9.1f}  {ratio}")
        front_ms = {name: round(ms, 3) for name, ms in asdict(scaled.times.front_ms).items()}
        if scaled is not engine:
            print(f"all figures but the CPU are simulated with front_ms scaled to the measured CPU: {front_ms}")
        figures = [{**asdict(each), "ratio": each.ratio} for each in compared]
        about = {"load": facts["load"], "requests": facts["requests"], "stalled_ms": stalled_ms, "front_ms": front_ms}
        checked.append({**about, "figures": figures})
    print(json.dumps({"bench": "plan", **engine.facts(), "checked": checked}, ensure_ascii=False))
    return 0
