"""Several fronts are one server to its clients: limits, metrics, signals, and the death of a front."""

import json
import os
import select
import shutil
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from vivavoce_engine import CheckpointError, EngineConfig
from vivavoce_engine.fake_runner import FAKE_CHAT_INFO, FAKE_INFO
from vivavoce_server import ServerConfig
from vivavoce_server.fronts import count
from vivavoce_server.fronts.count import count_fronts
from vivavoce_server.metrics import FOLDER_VARIABLE
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from tests.server.test_cli import SPEECH_BODY, raw_request
from tests.support.certificates import make_pair
from tests.support.fronts import Fronts, children_of, request_of
from tests.support.programs import needs
from tests.support.server_process import launched, read_until, serving, url_of
from tests.support.waiting import HUNG_S, wait_until

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")]

SPEECH = {"input": "Hi!", "voice": "heart", "response_format": "pcm"}
SPEAK = request_of("POST", "/v1/audio/speech", json.dumps(SPEECH).encode())
MANY_KEYS = 12_000
"""More than a socket has room for."""
LAST_CHUNK = b"0\r\n\r\n"
FLAGS = ("--model", "fake", "--fronts", "2")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Fronts]]:
    """Starts a server of two fronts."""
    with ExitStack() as stack:

        def started(*flags: str) -> Fronts:
            return Fronts(*stack.enter_context(serving(tmp_path, *FLAGS, *flags)))

        yield started


def slow_speech(connection: socket.socket, key: str = "") -> None:
    """Begins speech that its client does not read, so that it goes on over all that follows."""
    head, _, rest = raw_request(SPEECH_BODY).partition(b"\r\n")
    header = f"\r\nAuthorization: Bearer {key}\r\n" if key else "\r\n"
    connection.sendall(head + header.encode() + rest)
    assert connection.recv(12) == b"HTTP/1.1 200"


def rest_of(connection: socket.socket) -> bytes:
    """All bytes until the connection ends, in whatever way."""
    read = bytearray()
    with suppress(ConnectionResetError):
        while more := connection.recv(2**16):
            read += more
    return bytes(read)


def metrics(fronts: Fronts, pid: int, key: str = "") -> dict[tuple[str, ...], float]:
    """Name and labels, sorted by their names → value, as one front tells them."""
    _, body = fronts.ask(pid, request_of("GET", "/metrics", key=key))
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_two_processes_are_one_server(start: Callable[..., Fronts], tmp_path: Path) -> None:
    fronts = start("--voices-dir", str(tmp_path / "voices"))
    one, two = fronts.pids
    spoken = {pid: fronts.ask(pid, SPEAK) for pid in (one, two)}
    assert [status for status, _ in spoken.values()] == [200, 200]
    models = [json.loads(fronts.ask(pid, request_of("GET", "/v1/models"))[1]) for pid in (one, two)]
    assert models[0] == models[1], "with the time of one start"

    embedding = json.dumps({"name": "mine", "consent": "Mine.", "speaker_embedding": [0.5] * 8}).encode()
    status, body = fronts.ask(one, request_of("POST", "/v1/audio/voices", embedding))
    assert status in (200, 201), body
    named = json.dumps({**SPEECH, "voice": "mine"}).encode()
    assert fronts.ask(two, request_of("POST", "/v1/audio/speech", named))[0] == 200
    batch = json.dumps({"items": [{"input": "One."}, {"input": "Two."}], "voice": "mine"}).encode()
    status, body = fronts.ask(two, request_of("POST", "/v1/audio/speech/batch", batch))
    assert (status, json.loads(body)["succeeded"]) == (200, 2)

    for pid in (one, two):
        for path in ("/health", "/ready"):
            assert fronts.ask(pid, request_of("GET", path))[0] == 200
        found = metrics(fronts, pid)
        assert found["vivavoce_requests_total", "fake", "completed"] == 5
        assert found["vivavoce_ttfa_seconds_count", "fake"] == 5
        assert found["vivavoce_ttfa_seconds_bucket", "+Inf", "fake"] == 5
        assert found["vivavoce_engine_processes", "fake"] == 1
        assert found["vivavoce_frames_total", "fake"] > 0
        assert found["vivavoce_live_sessions",] == 0


def test_a_keys_places_are_those_of_all_fronts_and_a_dead_front_gives_them_back(
    start: Callable[..., Fronts], tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[alice]\nkey = "sk-a"\nmax_concurrent = 1\n[bob]\nkey = "sk-b"\n', encoding="utf-8")
    fronts = start("--api-keys-file", str(keys))
    one, two = fronts.pids
    speak = request_of("POST", "/v1/audio/speech", json.dumps(SPEECH).encode(), key="sk-a")
    with fronts.connected(one) as lost, fronts.connected(two) as kept:
        slow_speech(lost, "sk-a")
        slow_speech(kept, "sk-b")
        status, body = fronts.ask(two, speak)
        assert (status, json.loads(body)["error"]["code"]) == (429, "rate_limit_exceeded")

        before = metrics(fronts, two, "sk-b")
        os.kill(one, signal.SIGKILL)
        assert not rest_of(lost).endswith(LAST_CHUNK)
        wait_until(lambda: len(fronts.pids) == 2 and one not in fronts.pids)
        assert fronts.ask(two, speak)[0] == 200, "the place is free"
        (other,) = set(fronts.pids) - {two}
        assert fronts.ask(other, speak)[0] == 200
        after = metrics(fronts, other, "sk-b")
        assert after["vivavoce_audio_seconds_total", "fake"] > before["vivavoce_audio_seconds_total", "fake"]
        assert after["vivavoce_engine_restarts_total", "fake", "killed"] == 0
        assert rest_of(kept).endswith(LAST_CHUNK), "the other front's speech goes on to its end"


BURST = 12


def test_bursts_at_all_fronts_fill_one_queue_and_no_more(start: Callable[..., Fronts]) -> None:
    fronts = start("--max-streams", "1", "--max-queue", "3")
    one, two = fronts.pids
    kinds: list[dict[str, object]] = [{}, {"stream": False}, {"stream_format": "sse"}]
    for kind in kinds:
        request = request_of("POST", "/v1/audio/speech", json.dumps({**SPEECH, **kind}).encode())
        with ExitStack() as stack:
            slow = stack.enter_context(fronts.connected(one))
            slow_speech(slow)
            clients = [stack.enter_context(fronts.connected(pid)) for pid in (one, two) * (BURST // 2)]
            for client in clients:
                client.sendall(request)
            refused = answered(clients, BURST - 3)
            for client in refused:
                answer = rest_of(client)
                assert answer.startswith(b"HTTP/1.1 429")
                assert b"retry-after: " in answer.lower()
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "queue_full"
            for pid in (one, two):
                check_refusals_of_other_routes(fronts, pid)
            slow.close()
            assert [rest_of(client)[:12] for client in clients if client not in refused] == [b"HTTP/1.1 200"] * 3
    found = metrics(fronts, two)
    assert found["vivavoce_requests_total", "fake", "refused"] == len(kinds) * (BURST - 3 + 2 * 2)
    assert found["vivavoce_requests_total", "fake", "completed"] == len(kinds) * 3


def check_refusals_of_other_routes(fronts: Fronts, pid: int) -> None:
    """A batch and a live socket of a front, while the engine's queue is full."""
    batch = json.dumps({"items": [{"input": "One."}], "voice": "heart"}).encode()
    status, body = fronts.ask(pid, request_of("POST", "/v1/audio/speech/batch", batch))
    (result,) = json.loads(body)["results"]
    assert (status, result["status_code"], result["error"]["code"]) == (200, 429, "queue_full")
    url = f"{fronts.url.replace('http', 'ws')}/v1/audio/speech/stream"
    with fronts.connected(pid) as connection, connect(url, sock=connection, proxy=None) as live:
        for message in (
            {"type": "session.config", "voice": "heart"},
            {"type": "input.text", "text": "Hello."},
            {"type": "input.done"},
        ):
            live.send(json.dumps(message))
        heard: dict[str, Any] = {}
        while heard.get("type") != "error":
            heard = json.loads(live.recv(HUNG_S))
    assert heard["error"]["code"] == "queue_full"


def answered(clients: list[socket.socket], number: int) -> list[socket.socket]:
    """The first clients of which there is an answer, this many."""
    poll = select.poll()
    by_number = {client.fileno(): client for client in clients}
    for client in clients:
        poll.register(client, select.POLLIN)
    found: list[socket.socket] = []
    while len(found) < number:
        ready = [by_number[descriptor] for descriptor, _ in poll.poll(HUNG_S * 1000)]
        assert ready, f"{len(found)} of {number} answers"
        for client in ready:
            poll.unregister(client)
        found += ready
    assert len(found) == number
    return found


def test_live_connections_are_limited_over_all_fronts(start: Callable[..., Fronts]) -> None:
    fronts = start("--live-max-sessions", "3")
    url = f"{fronts.url.replace('http', 'ws')}/v1/audio/speech/stream"
    with ExitStack() as stack:
        for _ in range(3):
            live = stack.enter_context(connect(url, proxy=None))
            live.send(json.dumps({"type": "session.config", "voice": "heart"}))
            assert json.loads(live.recv(HUNG_S))["type"] == "session.created"
        for pid in fronts.pids:
            assert metrics(fronts, pid)["vivavoce_live_sessions",] == 3
        with connect(url, proxy=None) as refused:
            with suppress(ConnectionClosedError):
                list(refused)
            assert refused.close_code == 1013


def test_all_fronts_take_other_keys_at_a_signal(start: Callable[..., Fronts], tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[alice]\nkey = "sk-a"\n', encoding="utf-8")
    fronts = start("--api-keys-file", str(keys))
    keys.write_text('[bob]\nkey = "sk-b"\n', encoding="utf-8")
    fronts.process.send_signal(signal.SIGHUP)
    read_until(fronts.process, "reloaded: there are 1 API keys")
    asked = {key: request_of("GET", "/v1/models", key=key) for key in ("sk-a", "sk-b")}
    first = fronts.pids
    for pid in first:
        wait_until(lambda pid=pid: fronts.ask(pid, asked["sk-b"])[0] == 200)  # type: ignore[misc]
        assert fronts.ask(pid, asked["sk-a"])[0] == 401
    os.kill(first[0], signal.SIGKILL)
    wait_until(lambda: len(fronts.pids) == 2 and first[0] not in fronts.pids)
    (later,) = set(fronts.pids) - set(first)
    assert [fronts.ask(later, asked[key])[0] for key in ("sk-b", "sk-a")] == [200, 401]


@needs("openssl")
def test_all_fronts_take_a_renewed_certificate(start: Callable[..., Fronts], tmp_path: Path) -> None:
    old, new = make_pair(tmp_path, "old"), make_pair(tmp_path, "new")
    fronts = start("--ssl-certfile", str(old.certificate), "--ssl-keyfile", str(old.key))
    shutil.copy(new.key, old.key)
    shutil.copy(new.certificate, old.certificate)
    fronts.process.send_signal(signal.SIGHUP)
    trusting = ssl.create_default_context(cafile=new.certificate)
    for _ in fronts.pids:
        read_until(fronts.process, "reloaded the certificate")
    for pid in fronts.pids:
        with fronts.connected(pid) as plain, trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            secure.sendall(SPEAK)
            assert secure.recv(12) == b"HTTP/1.1 200"


def test_all_fronts_see_an_engine_die_and_come_back(start: Callable[..., Fronts]) -> None:
    fronts = start()
    one, two = fronts.pids
    (engine,) = children_of(fronts.process.pid, "vivavoce_engine.process.worker")
    with fronts.connected(one) as first, fronts.connected(two) as second:
        for connection in (first, second):
            slow_speech(connection)
        os.kill(engine, signal.SIGKILL)
        for connection in (first, second):
            assert not rest_of(connection).endswith(LAST_CHUNK)
    for pid in (one, two):
        wait_until(lambda pid=pid: fronts.ask(pid, request_of("GET", "/ready"))[0] == 200)  # type: ignore[misc]
        assert fronts.ask(pid, SPEAK)[0] == 200
        assert fronts.ask(pid, request_of("GET", "/health"))[0] == 200
    for pid in (one, two):
        found = metrics(fronts, pid)
        assert found["vivavoce_engine_restarts_total", "fake", "killed"] == 1
        assert found["vivavoce_requests_total", "fake", "cut_off"] == 2
        assert found["vivavoce_engine_processes", "fake"] == 1
    assert sorted(fronts.pids) == sorted([one, two])


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_all_fronts_drain(start: Callable[..., Fronts], signum: signal.Signals) -> None:
    fronts = start()
    one, two = pids = fronts.pids
    with fronts.connected(one) as first, fronts.connected(two) as second, fronts.connected(one) as late:
        for connection in (first, second):
            slow_speech(connection)
        fronts.process.send_signal(signum)
        read_until(fronts.process, "draining")
        read_until(fronts.process, "draining")
        late.sendall(SPEAK)
        assert late.recv(12) == b"HTTP/1.1 503"
        for connection in (first, second):
            assert rest_of(connection).endswith(LAST_CHUNK)
        _, said = fronts.process.communicate(timeout=HUNG_S)
    assert fronts.process.returncode == 0
    assert "Traceback" not in said
    assert "killed" not in said
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_second_signal_ends_all_fronts_at_once(start: Callable[..., Fronts]) -> None:
    fronts = start()
    one, two = fronts.pids
    with fronts.connected(one) as first, fronts.connected(two) as second:
        for connection in (first, second):
            slow_speech(connection)
        fronts.process.send_signal(signal.SIGTERM)
        read_until(fronts.process, "draining")
        fronts.process.send_signal(signal.SIGTERM)
        fronts.process.communicate(timeout=HUNG_S)
    assert fronts.process.returncode == 0


def test_a_front_that_does_not_go_on_is_replaced_and_nobody_waits_for_it(
    start: Callable[..., Fronts], tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[alice]\nkey = "sk-a"\n', encoding="utf-8")
    fronts = start("--api-keys-file", str(keys))
    one, two = fronts.pids
    many = "".join(f'[key{number}]\nkey = "sk-{number}"\n' for number in range(MANY_KEYS))
    with fronts.connected(two) as kept:
        os.kill(one, signal.SIGSTOP)
        slow_speech(kept, "sk-a")
        keys.write_text(many, encoding="utf-8")
        fronts.process.send_signal(signal.SIGHUP)
        asked = request_of("GET", "/v1/models", key="sk-7")
        wait_until(lambda: fronts.ask(two, asked)[0] == 200)
        read_until(fronts.process, "does not go on")
        wait_until(lambda: len(fronts.pids) == 2 and one not in fronts.pids)
        assert rest_of(kept).endswith(LAST_CHUNK)
    (other,) = set(fronts.pids) - {two}
    assert fronts.ask(other, request_of("POST", "/v1/audio/speech", json.dumps(SPEECH).encode(), key="sk-8"))[0] == 200


def test_fronts_whose_supervisor_is_killed_end(start: Callable[..., Fronts]) -> None:
    fronts = start()
    pids = [*fronts.pids, *children_of(fronts.process.pid, "vivavoce_engine.process.worker")]
    assert len(pids) == 3
    environment = Path(f"/proc/{pids[0]}/environ").read_text().split("\0")
    (folder,) = (Path(each.partition("=")[2]) for each in environment if each.startswith(f"{FOLDER_VARIABLE}="))
    assert folder.stat().st_mode & 0o777 == 0o700
    fronts.process.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}/fd").exists() and alive(pid) for pid in pids))
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{fronts.url}/health")
    assert not folder.exists()


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_socket_file_and_its_address_serve_several_fronts(tmp_path: Path) -> None:
    where = tmp_path / "speech.sock"
    with launched(tmp_path, *FLAGS, "--uds", str(where), "--log-format", "json") as (process, address_file):
        assert url_of(process, address_file) == f"unix:{where}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(where))) as client:
            for _ in range(8):
                answer = client.post("http://localhost/v1/audio/speech", json=SPEECH, headers={"Connection": "close"})
                assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=HUNG_S)
    assert process.returncode == 0
    lines = [json.loads(line) for line in said.splitlines()]
    assert sum(line["message"].startswith("POST") or line.get("path") == "/v1/audio/speech" for line in lines) == 8
    assert not where.exists()


# ---- how many --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "card", "settings", "fronts"),
    [
        (16, True, {}, 8),
        (8, True, {}, 6),
        (4, True, {}, 2),
        (3, True, {}, 1),
        (1, True, {}, 1),
        (16, False, {}, 1),
        (16, True, {"device": "cpu"}, 1),
        (16, True, {"runner": "native"}, 1),
        (16, True, {"dtype": "int8"}, 1),
        (16, False, {"device": "cuda:1"}, 8),
    ],
)
def test_fronts_follow_from_cores_and_card(
    monkeypatch: pytest.MonkeyPatch, cores: int, card: bool, settings: dict[str, str], fronts: int
) -> None:
    monkeypatch.setattr(count, "usable_cores", lambda: cores)
    monkeypatch.setattr(count, "card_present", lambda: card)
    engine = replace(EngineConfig(), **settings)  # type: ignore[arg-type]
    assert count_fronts(ServerConfig(), engine, [FAKE_INFO]) == fronts
    assert count_fronts(ServerConfig(fronts=5), engine, [FAKE_INFO]) == 5


def test_every_engine_process_has_cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count, "usable_cores", lambda: 16)
    monkeypatch.setattr(count, "card_present", lambda: True)
    assert count_fronts(ServerConfig(workers=3), EngineConfig(), [FAKE_INFO, FAKE_INFO]) == 4


def test_a_model_that_chats_has_one_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count, "usable_cores", lambda: 16)
    monkeypatch.setattr(count, "card_present", lambda: True)
    infos = [FAKE_INFO, FAKE_CHAT_INFO]
    assert count_fronts(ServerConfig(), EngineConfig(), infos) == 1
    with pytest.raises(CheckpointError, match="--fronts 1"):
        count_fronts(ServerConfig(fronts=2), EngineConfig(), infos)
