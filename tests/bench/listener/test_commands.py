"""`vivavoce bench load` and `compare` as a user types them, over real sockets to the real server."""

import io
import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from vivavoce_bench.listener.load import Closed, Counts, LoadPlan
from vivavoce_bench.listener.progress import Progress, progress_line
from vivavoce_client import __main__ as command_line
from vivavoce_client.__main__ import main

from tests.support.live_server import LiveServer, live_server
from tests.support.speech_servers import texts as one_class
from tests.support.speech_servers import tone

QUICK = ["--duration", "0.3", "--warmup", "0"]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@pytest.fixture
def texts(tmp_path: Path) -> str:
    path = tmp_path / "texts"
    path.write_text("Hi there.\nOne two.\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("transport", ["http", "sse", "websocket"])
def test_load_on_the_real_server(
    server: LiveServer, texts: str, transport: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "result.json"
    line = ["bench", "load", "--url", server.url, "--prompts", texts, "--transport", transport, *QUICK]
    assert main([*line, "--concurrency", "1", "2", "-o", str(output), "--plots", str(tmp_path / "plots")]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out.splitlines()[-1])
    assert document["valid"]
    assert [run["load"] for run in document["runs"]] == [{"listeners": 1}, {"listeners": 2}]
    assert [run["peak_in_flight"] for run in document["runs"]] == [1, 2]
    assert "2 at once" in printed.out
    saved = json.loads(output.read_text())
    assert {**saved, "requests": None} == {**document, "requests": None}
    for run, requests in zip(saved["runs"], saved["requests"], strict=True):
        assert run["requests"] == sum(not each["warmup"] for each in requests) > 0
        # The fake engine speaks a frame of 80 ms for each character, loud from the start.
        assert {each["audio_s"] for each in requests} <= {0.72, 0.64}
        assert {each["leading_silence_ms"] for each in requests} == {0}
    plots = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert plots == sorted(
        f"{name}.{suffix}" for name in ("latency_by_load", "ttfa_cdf", "gap_timeline") for suffix in ("png", "svg")
    )
    assert (tmp_path / "plots/ttfa_cdf.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "plots/ttfa_cdf.svg").read_bytes()


def test_open_loop_and_fields(server: LiveServer, texts: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["bench", "load", "--url", server.url, "--prompts", texts, *QUICK, "--rate", "30", "--voice", "michael"]
    assert main([*line, "--field", "temperature=0", "--field", "language=English"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["fields"]["temperature"] == 0
    assert document["fields"]["language"] == "English"
    assert document["fields"]["voice"] == "michael"
    assert document["runs"][0]["load"] == {"poisson_rate": 30}


def test_length_of_speech_by_that_of_the_text(
    server: LiveServer, texts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "result.json"
    line = ["bench", "load", "--url", server.url, "--prompts", texts, *QUICK, "--concurrency", "1"]
    assert main([*line, "--frames-per-char", "0.5", "-o", str(output)]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["frames_per_char"] == 0.5
    assert "max_new_tokens" not in document["fields"]
    (requests,) = json.loads(output.read_text())["requests"]
    # Texts of 9 and 8 characters, for which the fake engine would make as many frames of 80 ms.
    assert {each["audio_s"] for each in requests} <= {0.32}


def test_an_invalid_run_says_so_and_fails(server: LiveServer, texts: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["bench", "load", "--url", server.url, "--prompts", texts, *QUICK, "--concurrency", "1"]
    assert main([*line, "--voice", "nobody"]) == 1
    printed = capsys.readouterr().out
    assert "INVALID at 1 at once" in printed
    assert "nobody" in printed
    assert json.loads(printed.splitlines()[-1])["valid"] is False


def test_no_server_is_an_invalid_run(texts: str, capsys: pytest.CaptureFixture[str]) -> None:
    for transport in ("http", "websocket"):
        line = ["bench", "load", "--url", "http://127.0.0.1:9", "--prompts", texts, *QUICK, "--concurrency", "1"]
        assert main([*line, "--transport", transport]) == 1
        assert "INVALID" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "1", "--prompts", "nowhere"], "neither en, zh nor a readable file"),
        (["--rate", "1", "--server", "openai", "--transport", "websocket"], "openai has no websocket"),
        (["--rate", "1", "--field", "x"], "is not NAME=VALUE"),
        (["--rate", "1", "--burst-every", "3"], "--burst-every is for --burst"),
        (["--rate", "1", "--prompts", "en", "en@3"], "have the same name"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "load", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_plots_without_matplotlib_are_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("vivavoce_bench.listener.cli.find_spec", lambda name: None)
    assert main(["bench", "load", "--rate", "1", "--plots", str(tmp_path)]) == 2
    assert "pip install 'vivavoce-speech[bench]'" in capsys.readouterr().err


def test_rates_are_above_zero(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "load", "--rate", "0"])
    assert "must be above 0" in capsys.readouterr().err


def test_compare_two_servers(server: LiveServer, texts: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["bench", "compare", server.url, f"vivavoce={server.url}", "--prompts", texts, "--concurrency", "1"]
    assert main([*line, "--pairs", "3", "--duration", "0.2", "--warmup", "0"]) == 0
    printed = capsys.readouterr().out
    assert "TTFA p95" in printed
    document = json.loads(printed.splitlines()[-1])
    assert document["valid"]
    assert [(pair["a"]["seed"], pair["b"]["seed"]) for pair in document["pairs"]] == [(0, 0), (1, 1), (2, 2)]
    assert document["ratios"]["TTFA p50"]["low"] <= document["ratios"]["TTFA p50"]["high"]


def test_compare_needs_three_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compare", "http://a", "http://b", "--rate", "1", "--pairs", "2"]) == 2
    assert "at least 3" in capsys.readouterr().err


def test_other_packages_add_kinds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    entry = EntryPoint("engine", "not_installed_here", command_line.BENCH_GROUP)
    monkeypatch.setattr(command_line, "entry_points", lambda group: EntryPoints([entry]).select(group=group))
    assert main(["bench", "engine"]) == 2
    assert "pip install 'vivavoce-speech[server]'" in capsys.readouterr().err


class _Slow(BaseHTTPRequestHandler):
    """Answers after a while, and notes when it had the body, and when it began to answer."""

    protocol_version = "HTTP/1.1"
    times: list[tuple[float, float]] = []  # noqa: RUF012 (one server, one list)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        received_s = time.monotonic()
        time.sleep(0.05)
        self.send_response(200)
        self.send_header("Content-Type", "audio/pcm")
        self.send_header("Content-Length", str(len(tone(0.2))))
        self.end_headers()
        self.times.append((received_s, time.monotonic()))
        self.wfile.write(tone(0.2))

    def log_message(self, *_: object) -> None:
        pass


def test_time_zero_is_before_the_server_has_the_body_and_the_first_byte_after_it_was_sent(
    texts: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Over a real socket: what was measured encloses what the server did, and lies within what the request took."""
    output = tmp_path / "result.json"
    with ThreadingHTTPServer(("127.0.0.1", 0), _Slow) as slow:
        thread = threading.Thread(target=slow.serve_forever)
        thread.start()
        try:
            line = ["bench", "load", "--url", f"http://127.0.0.1:{slow.server_port}", "--prompts", texts]
            assert main([*line, "--concurrency", "1", "--duration", "0.3", "--warmup", "0", "-o", str(output)]) == 0
        finally:
            slow.shutdown()
            thread.join()
    (requests,) = json.loads(output.read_text())["requests"]
    assert len(requests) == len(_Slow.times) > 0
    for request, (received_s, answered_s) in zip(requests, _Slow.times, strict=True):
        assert request["ttfb_ms"] >= 1000 * (answered_s - received_s) - 0.001  # it is rounded
        assert request["end_to_end_ms"] >= request["ttfb_ms"]


def test_progress_tells_how_it_goes() -> None:
    plan = LoadPlan(Closed(2), one_class("Hi."), duration_s=20, warmup_s=10)
    counts = [
        Counts(sent=4, done=3, failed=1, ttfa_ms=deque([50.0, 60.0])),
        Counts(sent=3, done=2, ttfa_ms=deque([70.0])),
    ]
    line = progress_line(plan, 12.0, counts)
    assert line == "2 at once: measuring 12/30 s, 7 sent, 2 in flight, 5 done, 1 FAILED, first audio 60 ms"
    assert "warm-up" in progress_line(plan, 3.0, counts)
    assert "waiting for the last" in progress_line(plan, 31.0, counts)


def test_progress_is_renewed_on_a_terminal_and_sparse_in_a_file() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def show(stream: io.StringIO) -> str:
        progress = Progress(stream)
        for half_seconds in range(-1, 50):
            progress.show(LoadPlan(Closed(1), one_class("Hi.")), half_seconds / 2, [Counts()])
        return stream.getvalue()

    assert show(io.StringIO()).count("\n") == 2
    on_terminal = show(Terminal())
    assert "\n" not in on_terminal
    assert on_terminal.count("\r") == 51
