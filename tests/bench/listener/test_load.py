"""Runs against servers with known delays and gaps, in virtual time, which makes the figures exact."""

import asyncio
import itertools
import json
import tracemalloc
from typing import Any

import pytest
from vivavoce_bench.listener.exchange import Answer as Receiver
from vivavoce_bench.listener.load import Burst, Closed, Generator, LoadPlan, Poisson, Share, arrivals
from vivavoce_bench.listener.metrics import Distribution, Measurement
from vivavoce_bench.listener.player import Gap
from vivavoce_bench.listener.prompts import TextClass
from vivavoce_bench.listener.servers import Target
from vivavoce_bench.listener.summary import BurstHeard, Underruns
from vivavoce_bench.listener.transports import HttpSpeaker

from tests.support.speech_servers import (
    DONE,
    Answer,
    ScriptedHttp,
    ScriptedSocket,
    delta,
    near,
    run_http,
    run_live,
    silence,
    sse,
    texts,
    tone,
)
from tests.support.virtual_time import run_in_virtual_time

TEXTS = texts("One two three.", "Four five.", "Six.")
LATE = silence(0.01) + tone(0.99)
"""Audible from its first window on, and not in the last one before it."""


def closed(listeners: int = 1, duration_s: float = 10.0, warmup_s: float = 0.0, **settings: Any) -> LoadPlan:
    return LoadPlan(Closed(listeners), TEXTS, duration_s, warmup_s, **settings)


def speech(_: int, body: dict[str, Any]) -> Answer:
    """First byte after 200 ms: 80 ms of silence; 50 ms late 1 s of tone (LATE); 0.92 s in time."""
    return Answer([(0.2, silence(0.08)), (0.13, LATE), (0.5, tone(0.92))])


def exactly(value: float, count: int = 1) -> Distribution:
    return Distribution(count, *[near(value)] * 6)


def test_known_delays_are_reported_exactly() -> None:
    run = run_http(closed(), ScriptedHttp(speech, connect_s=0.04))
    summary = run.summary
    assert summary.valid
    assert summary.figures == {
        "ttfb_ms": exactly(200, 12),
        "first_playable_ms": exactly(200, 12),
        "ttfa_ms": exactly(200 + 80 + 50, 12),  # the silence is heard first, then the player waits
        "leading_silence_ms": exactly(80, 12),
        "safe_start_ms": exactly(250, 12),
        "safe_delay_ms": exactly(50, 12),
        "end_to_end_ms": exactly(830, 12),
        "rtf": exactly(0.83 / 2.0, 12),
        "late_ms": exactly(0, 12),
        "lag_ms": exactly(40, 12),
    }
    # A player that holds 100 ms starts with the second piece, and none comes late to it.
    assert summary.buffered == {size: Underruns(0, 0, 0.0, 0.0) for size in ("100", "250", "500", "1000")}
    assert (summary.continuity, summary.continuity_requests) == ({"c50": 12, "c100": 12, "c200": 12}, 12)
    assert summary.requests == 12  # 0.87 s each: the last begins at 9.57 s
    assert (summary.underrun_requests, summary.underruns) == (12, 12)
    assert summary.longest_stall_ms == near(50)
    assert summary.stalled_ms == near(600)
    first = next(iter(run.measurements))
    assert first.gaps == (Gap(near(0.32), near(0.05)),)
    assert (first.heard_from_s, first.heard_until_s) == (near(0.24), near(2.29))


def test_what_is_received_counts_in_the_measured_time_alone() -> None:
    server = ScriptedHttp(lambda *_: Answer([(1.0, tone(3.0)), (1.0, tone(1.0))]))
    run = run_http(closed(duration_s=4.0, warmup_s=4.0), server)
    assert [each.warmup for each in run.measurements] == [True, True, False, False]
    assert run.summary.requests == 2
    # The second half of the last request of the warm-up comes at 4 s, the last one's at 8 s, after the end.
    assert run.summary.received_audio_s_per_s == near((1 + 3 + 1 + 3) / 4)
    assert run.summary.audio_s == near(8)


def test_open_loop_sends_when_it_is_time_and_waits_for_nobody() -> None:
    server = ScriptedHttp(lambda *_: Answer([(5.0, tone(1.0))]))
    plan = LoadPlan(Poisson(4.0), TEXTS, duration_s=10.0, warmup_s=5.0, seed=3)
    run = run_http(plan, server)
    due_s = [*arrivals(4.0, 0, 5, "3/True"), *arrivals(4.0, 5, 15, "3/False")]
    assert server.times == pytest.approx(due_s)
    assert [each.due_s for each in run.measurements] == due_s
    assert run.summary.figures["lag_ms"].max == near(0)
    in_flight = max(sum(0 <= at_s - other_s < 5.0 for other_s in due_s) for at_s in due_s)
    assert run.summary.peak_in_flight == in_flight
    assert run.summary.rate == len([at_s for at_s in due_s if at_s >= 5]) / 10


def test_arrivals_are_poisson() -> None:
    times = list(arrivals(50.0, 0.0, 200.0, "x"))
    pauses = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(pauses) / len(pauses)
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert sum((pause - mean) ** 2 for pause in pauses) / len(pauses) == pytest.approx(mean**2, rel=0.1)
    assert times == list(arrivals(50.0, 0.0, 200.0, "x"))
    assert times != list(arrivals(50.0, 0.0, 200.0, "y"))


def test_texts_and_seeds_are_those_of_the_seed() -> None:
    plan = closed(duration_s=3.5, warmup_s=1.0, seed=70)
    servers = [ScriptedHttp(speech) for _ in range(2)]
    for server in servers:
        run_http(plan, server)
    bodies = servers[0].bodies
    assert bodies == servers[1].bodies
    assert [body["seed"] for body in bodies] == [70, 71, 70, 71, 72, 73]
    assert {body["input"] for body in bodies[2:5]} == set(TEXTS[0].texts)
    assert bodies[5]["input"] == bodies[2]["input"], "each text comes once before any comes again"


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (Answer([(0.1, tone(1.0))], broken=True), "the connection failed"),
        (Answer([(0.1, silence(1.0))]), "nothing in it can be heard"),
        (Answer([(0.1, tone(1.0) + b"\x00")]), "ends within a sample"),
        (Answer([(0.1, b"")]), "no audio came"),
        (Answer([(0.1, tone(1.0)), (9.0, tone(1.0))]), "not complete after 5 s"),
        (Answer([(0.1, b'{"error": {"message": "full", "param": null, "code": null}}')], status=429), "HTTP 429: full"),
        (Answer([(0.1, b"<html>")], content_type="text/html"), "text/html, not application/octet-stream or audio/l16"),
    ],
)
def test_a_run_with_one_bad_answer_is_invalid(bad: Answer, fault: str) -> None:
    server = ScriptedHttp(lambda number, body: bad if number == 3 else speech(number, body))
    plan = LoadPlan(Poisson(1.0), TEXTS, duration_s=10.0, warmup_s=2.0, timeout_s=5.0)
    summary = run_http(plan, server).summary
    assert not summary.valid
    (told,) = summary.faults
    assert told.startswith("1 times: ")
    assert fault in told


def test_a_bad_answer_in_the_warmup_counts_too() -> None:
    server = ScriptedHttp(lambda number, body: Answer([], status=500) if number == 0 else speech(number, body))
    summary = run_http(LoadPlan(Poisson(2.0), TEXTS, duration_s=5.0, warmup_s=3.0), server).summary
    assert not summary.valid


def test_a_run_without_requests_is_invalid() -> None:
    summary = run_http(LoadPlan(Poisson(0.001), TEXTS, duration_s=1.0, warmup_s=0.0), ScriptedHttp(speech)).summary
    assert summary.faults == ("1 times: no request fell into the measured time",)


def test_a_closed_loop_does_not_hammer_a_server_that_refuses() -> None:
    server = ScriptedHttp(lambda *_: Answer([], status=503))
    assert not run_http(closed(3), server).summary.valid
    assert len(server.bodies) == 3


EVENTS = [(0.1, b": keep-alive\r\n\r\n"), (0.1, sse(delta(silence(0.08)))), (0.13, sse(delta(LATE))[:100])]


def test_server_sent_events_count_when_they_are_complete() -> None:
    rest = sse(delta(LATE))[100:]
    script = Answer([*EVENTS, (0.02, rest), (0.5, sse(DONE))], content_type="text/event-stream; charset=utf-8")
    run = run_http(closed(), ScriptedHttp(lambda *_: script), Target("vivavoce", "http://server", "sse"))
    assert run.summary.valid
    assert run.summary.figures["ttfb_ms"] == exactly(100, 12)
    assert run.summary.figures["first_playable_ms"] == exactly(200, 12)
    assert run.summary.figures["ttfa_ms"] == exactly(200 + 80 + 70, 12)
    assert run.summary.figures["end_to_end_ms"] == exactly(850, 12)


@pytest.mark.parametrize(
    ("last", "fault"),
    [
        (b"", "without speech.audio.done"),
        (sse({"type": "speech.audio.error", "error": {"message": "lost it"}}), "broke off: lost it"),
        (b"data: {\n\n", "cannot be read"),
        (sse({"type": "speech.audio.delta"}), "cannot be read"),
    ],
)
def test_events_that_do_not_end_well(last: bytes, fault: str) -> None:
    script = Answer([(0.1, sse(delta(tone(1.0)))), (0.1, last)], content_type="text/event-stream")
    run = run_http(closed(), ScriptedHttp(lambda *_: script), Target("vivavoce", "http://server", "sse"))
    assert fault in run.summary.faults[0]


def audio_done(**facts: object) -> str:
    return json.dumps({"type": "audio.done", **facts})


def test_live_text_goes_out_word_by_word_while_speech_comes() -> None:
    sockets: list[ScriptedSocket] = []

    def connect() -> ScriptedSocket:
        answer: list[tuple[float, str | bytes]] = [
            (0.3, silence(0.08)),
            (0.08, LATE),
            (0.4, audio_done(cancelled=False)),
        ]
        sockets.append(ScriptedSocket(["session.created"], answer, after="input.text"))
        return sockets[-1]

    target = Target("vivavoce", "http://server", "websocket", word_s=0.25)
    plan = LoadPlan(Closed(1), texts("One two  three."), duration_s=0.4, warmup_s=0.0)
    run = run_live(plan, target, connect)
    assert run.summary.valid
    (config, *words, end) = sockets[0].sent
    assert config[1] == {"type": "session.config", "voice": "alloy", "response_format": "pcm", "seed": 0}
    assert [(at_s, message["text"]) for at_s, message in words] == [
        (0.0, "One "),
        (0.25, "two  "),
        (near(0.5), "three."),
    ]
    assert end[1] == {"type": "input.done"}
    assert sockets[0].closed
    figures = run.summary.figures
    assert figures["first_playable_ms"] == exactly(300)
    assert figures["ttfa_ms"] == exactly(380)
    assert figures["after_text_ms"] == exactly(380 - 500)
    assert figures["end_to_end_ms"] == exactly(780)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ([(0.1, tone(0.5)), (0.1, audio_done(cancelled=True))], "did not end by itself"),
        ([(0.1, tone(0.5))], "connection was closed: going away"),
        ([(0.1, tone(0.5)), (0.1, b"a"), (0.1, audio_done())], "ends within a sample"),
        ([(0.1, '{"type": "error", "message": "no such voice"}')], "refused: no such voice"),
    ],
)
def test_live_speech_that_does_not_end_well(answer: list[tuple[float, str | bytes]], fault: str) -> None:
    target = Target("vivavoce", "http://server", "websocket")
    run = run_live(closed(), target, lambda: ScriptedSocket(["session.created"], answer, after="input.done"))
    assert fault in run.summary.faults[0]


def test_live_speech_that_ends_before_its_text_is_not_complete() -> None:
    target = Target("vivavoce", "http://server", "websocket", word_s=5.0)
    answer: list[tuple[float, str | bytes]] = [(0.1, tone(0.5)), (0.1, audio_done())]
    plan = LoadPlan(Closed(1), texts("One two."), duration_s=1.0, warmup_s=0.0)
    run = run_live(plan, target, lambda: ScriptedSocket(["session.created"], answer, after="input.text"))
    assert "ended before its text" in run.summary.faults[0]


def test_samples_that_are_cut_between_pieces_count_once() -> None:
    pcm = tone(1.0)
    script = Answer([(0.1, pcm[:1]), (0.1, pcm[1:4801]), (0.01, pcm[4801:])])
    run = run_http(closed(duration_s=0.1), ScriptedHttp(lambda *_: script))
    (only,) = run.measurements
    assert (only.pieces, only.audio_s) == (2, near(1.0))
    assert (only.ttfb_ms, only.first_playable_ms) == (near(100), near(200))
    assert only.gaps == ()


def test_generators_share_the_requests_of_a_run() -> None:
    """Two generators together send what one sends, at the same times, with the same texts and seeds."""
    plan = LoadPlan(Poisson(4.0), TEXTS, duration_s=10.0, warmup_s=5.0, seed=3)
    servers = [ScriptedHttp(speech) for _ in range(3)]
    runs = [run_http(plan, servers[0])]
    runs += [run_http(plan, server, share=Share(number, 2)) for number, server in enumerate(servers[1:])]

    def asked(server: ScriptedHttp) -> list[tuple[float, Any, Any]]:
        return [(at_s, body["input"], body["seed"]) for at_s, body in zip(server.times, server.bodies, strict=True)]

    assert sorted(asked(servers[1]) + asked(servers[2])) == asked(servers[0])
    assert runs[1].summary.requests + runs[2].summary.requests == runs[0].summary.requests
    assert runs[1].summary.requests in range(2, runs[0].summary.requests - 1)


def test_generators_share_the_listeners() -> None:
    assert [Share(number, 3).listeners(8) for number in range(3)] == [3, 3, 2]
    server = ScriptedHttp(speech)
    run = run_http(closed(5, duration_s=2.0), server, share=Share(1, 2))
    assert run.summary.peak_in_flight == 2
    assert [body["seed"] for body in server.bodies] == [1, 3, 5, 7, 9, 11], "the other generator has the even ones"


CLASSES = (TextClass("short", ("Hi.", "So."), weight=3), TextClass("long", ("One two three four five.",)))


def test_classes_of_texts_have_figures_of_their_own() -> None:
    def by_length(_: int, body: dict[str, Any]) -> Answer:
        return Answer([(0.1, tone(0.4)), (0.3, tone(0.4))] if len(body["input"]) < 5 else [(0.2, tone(2.0))])

    plan = LoadPlan(Closed(1), CLASSES, duration_s=25.0, warmup_s=5.0)
    summary = run_http(plan, ScriptedHttp(by_length)).summary
    short, long = summary.classes["short"], summary.classes["long"]
    assert short.requests + long.requests == summary.requests
    assert short.requests == pytest.approx(3 * long.requests, rel=0.2)
    assert short.figures["ttfa_ms"] == exactly(100, short.requests)
    assert long.figures["ttfa_ms"] == exactly(200, long.requests)
    assert (short.audio_s, long.audio_s) == (near(0.8 * short.requests), near(2 * long.requests))
    assert summary.figures["ttfa_ms"].count == summary.requests
    assert (long.continuity_requests, short.continuity_requests) == (0, short.requests), "one piece has no seam"


def test_players_that_hold_audio_run_dry_less() -> None:
    """Pieces of 100 ms: the second 40 ms late, the third 150 ms late for a player that starts at once."""
    script = Answer([(0.1, tone(0.1)), (0.14, tone(0.1)), (0.25, tone(0.1)), (0.0, tone(1.0))])
    summary = run_http(closed(duration_s=0.1), ScriptedHttp(lambda *_: script)).summary
    assert (summary.underruns, summary.stalled_ms, summary.longest_stall_ms) == (2, near(190), near(150))
    assert summary.figures["safe_start_ms"] == exactly(290)
    assert summary.figures["safe_delay_ms"] == exactly(190)
    assert summary.buffered["100"] == Underruns(1, 2, near(190), near(150)), "its first piece fills it"
    assert summary.buffered["250"] == Underruns(0, 0, 0.0, 0.0), "it starts with the third piece"
    assert summary.continuity == {"c50": 0, "c100": 0, "c200": 1}


def test_bursts_come_in_one_moment_and_end_before_the_next() -> None:
    def slower_and_slower(number: int, _: dict[str, Any]) -> Answer:
        return Answer([(0.1 + 0.01 * (number % 4), tone(0.5)), (0.6, tone(0.5))])

    server = ScriptedHttp(slower_and_slower, connect_s=0.002)
    summary = run_http(LoadPlan(Burst(4, 2.0), TEXTS, duration_s=4.0, warmup_s=2.0), server).summary
    assert server.times == [near(at_s) for at_s in (0.002, 2.002, 4.002) for _ in range(4)]
    assert summary.valid
    assert summary.bursts == (BurstHeard(2.0, 4, 4, near(132), 4), BurstHeard(4.0, 4, 4, near(132), 4))
    assert summary.peak_in_flight == 4
    busy = run_http(
        LoadPlan(Burst(4, 0.5), TEXTS, duration_s=2.0, warmup_s=0.0), ScriptedHttp(slower_and_slower)
    ).summary
    assert busy.faults == ("3 times: a burst began before the answers to the one before it had ended",)


def test_a_long_run_takes_no_memory_for_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes of two listeners: a generator that kept its 1200 requests would hold more and more."""
    monkeypatch.setattr("vivavoce_bench.listener.load.TICK_S", 10.0)  # eight bytes each
    held: list[int] = []
    sizes: list[int] = []

    async def run() -> None:
        async with HttpSpeaker(Target("vivavoce", "http://server"), Counted()) as speaker:
            plan = LoadPlan(Closed(2), TEXTS, duration_s=600.0, warmup_s=0.0)

            def done(measurement: Measurement) -> None:
                held.append(measurement.index)
                if measurement.index in (200, 1100):
                    sizes.append(tracemalloc.get_traced_memory()[0])

            await Generator(plan, Share(), speaker, done).run()

    tracemalloc.start()
    try:
        run_in_virtual_time(run())
    finally:
        tracemalloc.stop()
    assert len(held) == 1200
    assert sizes[1] - sizes[0] < 900 * 150, "less than a request's record each"


class Counted:
    """A server with a second of audio a second for each request, which keeps nothing."""

    pcm = tone(0.5)

    async def send(self, body: bytes, answer: Receiver) -> None:
        answer.sent()
        answer.head(200, "audio/pcm")
        for _ in range(2):
            await asyncio.sleep(0.5)
            answer.data(self.pcm)
        answer.end()
