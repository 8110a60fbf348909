"""Tables of one file of results each, for cards/tables.py."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from vivavoce_bench.cards.cells import NONE, Rows, number, numbers
from vivavoce_bench.engine import cpu_table

Json = Mapping[str, Any]
ROWS = ("1", "8", "64", "256")


# ---- the engine -----------------------------------------------------------------------------------------------


def engine_table(document: Json) -> Rows:
    """All figures of the engine on one card, by rows."""
    rows: Rows = [["", *(f"{rows} row{'s' if rows != '1' else ''}" for rows in ROWS)]]
    for size, times in document["frame_ms"].items():
        rows.append([f"{size.upper()}, milliseconds a frame", *(number(times.get(count)) for count in ROWS)])
    for name, told in (
        ("frame_ms_without_deterministic", "`--deterministic false`"),
        ("frame_ms_context_1000", "at a context of 1000"),
        ("frame_ms_context_1000_without_deterministic", "at a context of 1000, `--deterministic false`"),
    ):
        if name in document:
            sizes = document[name]
            cells = [numbers([times.get(count) for times in sizes.values()]) for count in ROWS]
            rows.append([f"{' / '.join(map(str.upper, sizes))}, {told}", *cells])
    decoded = [_code2wav(document.get("code2wav_us_per_frame", {}), count) for count in ROWS]
    rows.append(["Code2Wav, microseconds a frame, 4 frames a call", *decoded])
    rows += list(_whole_engine(document))
    for peer, measured in document.get("peers", {}).items():
        sizes = measured["frame_ms"]
        told = f"{peer} {measured['versions'].get(peer, '')}, {' / '.join(map(str.upper, sizes))}"
        times = [numbers([times.get(count) for times in sizes.values()]) for count in ROWS]
        rows.append([f"{told}, milliseconds a frame", *times])
        chunks = [times.get("1 frames") for times in measured.get("first_chunk_ms", {}).values()]
        rows.append([f"{told}, first chunk of one frame, ms", numbers(chunks) if chunks else NONE, NONE, NONE, NONE])
    return [row for row in rows if any(row[1:]) or row is rows[0]]


def _code2wav(us_per_frame: Mapping[str, float], rows: str) -> str:
    """Time of these rows with four frames each, or of half of the rows if that is the most that was timed."""
    if f"{rows}x4" in us_per_frame:
        return number(us_per_frame[f"{rows}x4"])
    half = str(int(rows) // 2)
    timed = us_per_frame.get(f"{half}x4") if half not in ROWS else None
    return NONE if timed is None else f"{number(timed)} ({half} rows)"


def _whole_engine(document: Json) -> Iterator[list[str]]:
    for model, by_streams in document.get("engine_audio_s_per_s", {}).items():
        dry = document.get("engine_dry_streams", {}).get(model, {})
        name = f"whole {model.upper()} engine"
        yield [f"{name}, seconds of audio a second", *(number(by_streams.get(count)) for count in ROWS)]
        yield [f"{name}, streams that ran dry", *(str(dry.get(count, NONE)) for count in ROWS)]
    for model, burst in document.get("burst", {}).items():
        told = f"{burst['requests']} long texts at one moment while {burst['running']} streams of {model.upper()} run"
        times = numbers([burst["first_audio_ms_mean"], burst["first_audio_ms_max"]])
        yield [f"{told}: first audio, mean / last, ms", times, NONE, NONE, NONE]
    yield ["first PCM of an idle engine, median, ms", number(document.get("first_pcm_ms")), NONE, NONE, NONE]


# ---- bounds ---------------------------------------------------------------------------------------------------

GAPS = 3
"""Kernels that a row names."""


def roofline_table(document: Json) -> Rows:
    """The time of each call beside its bound, and the kernels that are farthest from theirs, in microseconds.

    The bound of a kernel is the larger of its bytes and its FLOPs, each at the rate that the card reached.
    """
    reached = document["measured"]
    bytes_per_s, flops_per_s = reached["read bytes_per_s"], reached["cublas flops_per_s"]
    told = f"bound at {bytes_per_s / 1e12:.2f} TB/s and {flops_per_s / 1e12:.0f} TFLOP/s, ms"
    rows: Rows = [["", "measured, ms", told, f"the {GAPS} largest gaps: launches, µs in all (bound)"]]
    for name, call in document.items():
        if not isinstance(call, dict) or "kernels" not in call:
            continue
        bounds_us = [
            each["launches"] * max(each["mbytes_each"] * 1e12 / bytes_per_s, each["gflop_each"] * 1e15 / flops_per_s)
            for each in call["kernels"]
        ]
        kernels = sorted(zip(call["kernels"], bounds_us, strict=True), key=lambda pair: pair[1] - pair[0]["us"])
        gaps = [f"{each['kernel']}: {each['launches']}, {each['us']:.0f} ({us:.0f})" for each, us in kernels[:GAPS]]
        rows.append([name, number(call["ms"]), number(sum(bounds_us) / 1000), "; ".join(gaps)])
    return rows


# ---- servers --------------------------------------------------------------------------------------------------

SERVER_HEAD = [
    "load",
    "requests: refused, failed, all",
    "first audio p50 / p95 / p99, ms",
    "safe start p50 / p95, ms",
    "audio a second, s",
    "ran dry, the longest, ms",
    "dry with 250 ms held",
    "cores: each HTTP process, engines",
]


def server_table(document: Json) -> Rows:
    """Rows by load of each server in a result of cards/server.py, and under each those of its classes of texts.

    A document of cards/report.py has several such results, by the number of fronts.
    """
    rows: Rows = [SERVER_HEAD]
    for fronts, measured in results_by_fronts(document):
        for model, entries in measured["server"].items():
            for cards, entry in entries.items():
                which = [f"cards {cards}"] if len(entries) > 1 else []
                for kind in ("rate", "listeners", "burst"):
                    for name, run in entry.get(kind, {}).items():
                        told = [model.upper(), *which, *([fronts] if fronts else ()), load_name(kind, name)]
                        rows += _server_rows(", ".join(told), run)
    return _without_empty_columns(rows)


def results_by_fronts(document: Json) -> list[tuple[str, Json]]:
    """The results of cards/server.py in a document, each with its fronts in words; "" where that is not known."""
    if "fronts" not in document:
        return [("", document)]
    return [
        ("one HTTP process" if fronts == "1" else f"{fronts} fronts", measured)
        for fronts, measured in document["fronts"].items()
    ]


def load_name(kind: str, name: str) -> str:
    """A load in words. Its name is the amount, and behind it the classes of texts unless they are the usual ones."""
    amount, *texts = name.split()
    told = {"rate": "{} requests/s", "listeners": "{} listeners", "burst": "{} at once, idle"}[kind].format(amount)
    lengths = [_length(text) for text in texts]
    return told + (f" of {', '.join(lengths)}" if lengths else "")


def _length(text_class: str) -> str:
    """A class of texts in words: its length in seconds, if it has one: p=en:5.7s → 5.7 s."""
    texts = text_class.rpartition("=")[2].partition("@")[0]
    length = texts.rpartition(":")[2]
    return f"{length[:-1]} s" if ":" in texts and length.endswith("s") else text_class


def _server_rows(name: str, run: Json) -> Rows:
    cores = cores_told(run)
    rows = [[name, f"{run['refused']}, {run['failed']}, {run['requests']}", *_heard(run, run["audio_s_per_s"]), cores]]
    if len(run.get("classes", {})) > 1:
        for text_class, heard in run["classes"].items():
            rows.append([f"· {text_class}", str(heard["heard"]), *_heard(heard, None), NONE])
    for burst in run.get("bursts", ()):
        last = f"last of {burst['requests']}: {number(burst['last_first_audio_ms'])}"
        rows.append(
            [
                f"· burst at {burst['at_s']:g} s",
                str(burst["heard"]),
                last,
                "",
                "",
                str(burst["underrun_requests"]),
                "",
                "",
            ]
        )
    return rows


def cores_told(run: Json) -> str:
    """Shares of a core of each server's processes: from the least to the most of its HTTP processes, then engines."""
    told = []
    every = run.get("server_cores", ())
    for cores, kinds in zip(every, run.get("server_processes", [None] * len(every)), strict=True):
        if kinds is None:
            told.append(", ".join(f"{share:.2f}" for share in cores))
            continue
        by_kind = {kind: [share for share, its in zip(cores, kinds, strict=True) if its == kind] for kind in kinds}
        fronts = by_kind.get("front") or by_kind["server"]
        least, most = f"{min(fronts):.2f}", f"{max(fronts):.2f}"
        http = least if least == most else f"{least} to {most}"
        told.append(", ".join((http, *(f"{share:.2f}" for share in by_kind.get("engine", ())))))
    return "; ".join(told)


def _heard(heard: Json, audio_s_per_s: float | None) -> list[str]:
    first, safe = heard["ttfa_ms"] or {}, heard.get("safe_start_ms") or {}
    dry = heard["underrun_requests"]
    held = heard.get("buffered", {}).get("250")
    return [
        numbers([first.get(which) for which in ("p50", "p95", "p99")]),
        numbers([safe.get(which) for which in ("p50", "p95")]),
        number(audio_s_per_s),
        f"{dry}, {number(heard['longest_underrun_ms'])}" if dry else "0",
        NONE if held is None else str(held["requests"]),
    ]


LOAD_HEAD = [*SERVER_HEAD[:1], "requests: incomplete, all", *SERVER_HEAD[2:7], "own lag p95, ms", "generators, cores"]


def load_table(document: Json) -> Rows:
    """Rows by load of a result of `vivavoce bench load -o`, and under each those of its classes of texts."""
    rows: Rows = [LOAD_HEAD]
    for run in document["runs"]:
        ((kind, amount),) = [(kind, amount) for kind, amount in run["load"].items() if kind != "every_s"]
        name = load_name({"poisson_rate": "rate"}.get(kind, kind), f"{amount:g}")
        counts = f"{run['incomplete']}, {run['requests']}"
        generators = run.get("generators", {"lag_p95_ms": None, "cores": ()})
        own = [number(generators["lag_p95_ms"]), ", ".join(f"{cores:.2f}" for cores in generators["cores"])]
        rows.append([name, counts, *_heard(_as_of_server(run), run["received_audio_s_per_s"]), *own])
        if len(run["classes"]) > 1:
            for text_class, heard in run["classes"].items():
                counts = f"{heard['incomplete']}, {heard['requests']}"
                rows.append([f"· {text_class}", counts, *_heard(_as_of_server(heard), None), NONE, NONE])
    return _without_empty_columns(rows)


def _as_of_server(heard: Json) -> Json:
    return {
        **heard["figures"],
        **heard,
        "ttfa_ms": heard["figures"].get("ttfa_ms"),
        "longest_underrun_ms": heard["longest_stall_ms"],
    }


def _without_empty_columns(rows: Rows) -> Rows:
    filled = [any(row[column] for row in rows[1:]) for column in range(len(rows[0]))]
    return [[cell for cell, keep in zip(row, filled, strict=True) if keep] for row in rows]


# ---- a CPU -----------------------------------------------------------------------------------------------


def streams_table(document: Json) -> Rows:
    """The figures of the engine on a CPU."""
    return cpu_table.table(document["engines"])


# ---- pace -----------------------------------------------------------------------------------------------------

PACE_HEAD = [
    "texts",
    "layout",
    "s each",
    "characters a second",
    "words a minute",
    "by thirds",
    "drift",
    "drift without pauses",
    "pace against the first",
]


def pace_table(document: Json) -> Rows:
    """The pace by layout in results of `vivavoce bench pace`, with drift, differences and their intervals of 95 %."""
    rows: Rows = [PACE_HEAD]
    for result in (part for part in document.values() if isinstance(part, dict) and "paces" in part):
        asked = result["arguments"]
        texts = f"{asked['texts']} of {asked['chars']} characters"
        for layout, paces in result["paces"].items():
            chars, words = ([pace[of] / pace["speech_s"] for pace in paces] for of in ("chars", "words"))
            thirds = [fmean(third) for third in zip(*(pace["thirds"] for pace in paces), strict=True)]
            told = [
                f"{fmean(pace['speech_s'] for pace in paces):.1f}",
                f"{fmean(chars):.2f}",
                f"{60 * fmean(words):.0f}",
            ]
            told.append(", ".join(f"{third:.2f}" for third in thirds))
            ratios = [result[name].get(layout) for name in ("drift", "articulation_drift", "against_first")]
            rows.append([texts, layout, *told, *(NONE if ratio is None else change(ratio) for ratio in ratios)])
            texts = NONE
    return rows


def change(ratio: Json) -> str:
    """A ratio and its interval as changes in percent: +1.5 % (-0.2 to +3.1)."""
    value, low, high = (f"{100 * (ratio[name] - 1):+.1f}" for name in ("value", "low", "high"))
    return f"{value} % ({low} to {high})"
