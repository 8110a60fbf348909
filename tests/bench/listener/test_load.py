"""Runs against servers with known delays and gaps, in virtual time, which makes the figures exact."""

import itertools
import json
from typing import Any

import pytest
from vivavoce_bench.listener.load import Closed, LoadPlan, Poisson, arrivals
from vivavoce_bench.listener.metrics import Distribution
from vivavoce_bench.listener.player import Gap
from vivavoce_bench.listener.servers import Target

from tests.support.speech_servers import (
    DONE,
    SAMPLE_RATE,
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

TEXTS = texts("One two three.", "Four five.", "Six.")
LATE = silence(0.01) + tone(0.99)
"""Audible from its first window on, and not in the last one before it."""


def closed(listeners: int = 1, duration_s: float = 10.0, warmup_s: float = 0.0, **settings: Any) -> LoadPlan:
    return LoadPlan(Closed(listeners), TEXTS, duration_s, warmup_s, **settings)


def speech(_: int, body: dict[str, Any]) -> Answer:
    """First byte after 200 ms: 80 ms of silence; 50 ms late 1 s of tone (LATE); 0.92 s in time."""
    return Answer([(0.2, silence(0.08)), (0.13, LATE), (0.5, tone(0.92))])


def exactly(value: float) -> Distribution:
    return Distribution(*[near(value)] * 6)


def test_known_delays_are_reported_exactly() -> None:
    run = run_http(closed(), ScriptedHttp(speech, connect_s=0.04))
    summary = run.summary
    assert summary.valid
    assert summary.figures == {
        "ttfb_ms": exactly(200),
        "first_playable_ms": exactly(200),
        "ttfa_ms": exactly(200 + 80 + 50),  # the silence is heard first, then the player waits
        "leading_silence_ms": exactly(80),
        "end_to_end_ms": exactly(830),
        "rtf": exactly(0.83 / 2.0),
        "lag_ms": exactly(40),
    }
    assert summary.requests == 12  # 0.87 s each: the last begins at 9.57 s
    assert (summary.underrun_requests, summary.underruns) == (12, 12)
    assert summary.longest_stall_ms == near(50)
    assert summary.stalled_ms == near(600)
    first = run.measurements[0]
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
    assert run.summary.figures["ttfb_ms"] == exactly(100)
    assert run.summary.figures["first_playable_ms"] == exactly(200)
    assert run.summary.figures["ttfa_ms"] == exactly(200 + 80 + 70)
    assert run.summary.figures["end_to_end_ms"] == exactly(850)


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
    (config, *texts, end) = sockets[0].sent
    assert config[1] == {"type": "session.config", "voice": "alloy", "response_format": "pcm", "seed": 0}
    assert [(at_s, message["text"]) for at_s, message in texts] == [
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
    assert only.arrivals == (
        (near(0.1), 0),
        (near(0.2), 2400),
        (near(0.21), SAMPLE_RATE - 2400),
    )
    assert (only.ttfb_ms, only.first_playable_ms) == (near(100), near(200))
    assert only.gaps == ()
