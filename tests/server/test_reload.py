"""SIGHUP: loads other keys without a restart and without ending running speech. A broken file changes nothing."""

import json
import os
import pty
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from vivavoce_server import ServerConfig
from vivavoce_server.access import KeyEntry, Keyring, read_keys
from vivavoce_server.cli import INTERRUPTED
from vivavoce_server.errors import ApiError
from vivavoce_server.sighup import STATUS
from websockets.sync.client import connect

from tests.server.test_cli import SPEECH_BODY, address_of, raw_request, read_all
from tests.support.server_process import SERVE, START_DEADLINE_S, launched, read_until, serving, url_of
from tests.support.waiting import HUNG_S, wait_until

pytestmark = pytest.mark.long

SPEECH = {"input": "Hi!", "voice": "heart", "response_format": "pcm"}


def entry(key: str, per_minute: int | None = None, at_once: int | None = None) -> KeyEntry:
    return KeyEntry(key=SecretStr(key), requests_per_minute=per_minute, max_concurrent=at_once)


def status(url: str, key: str) -> int:
    return httpx.post(f"{url}/v1/audio/speech", json=SPEECH, headers={"Authorization": f"Bearer {key}"}).status_code


def write_keys(path: Path, **keys: str) -> None:
    path.write_text("".join(f"[{name}]\nkey = {json.dumps(key)}\n" for name, key in keys.items()), encoding="utf-8")


def test_a_running_server_takes_other_keys_and_loses_no_request(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    write_keys(file, alice="key-of-alice", bob="key-of-bob")
    with (
        serving(tmp_path, "--model", "fake", "--api-keys-file", str(file)) as (process, url),
        socket.create_connection(address_of(url)) as reader,
        connect(f"{url.replace('http', 'ws')}/v1/audio/speech/stream?api_key=key-of-bob", proxy=None) as live,
    ):
        live.send(json.dumps({"type": "session.config", "voice": "heart"}))
        assert json.loads(live.recv(HUNG_S))["type"] == "session.created"
        # A client that does not read yet holds its speech open over all that follows.
        head, _, rest = raw_request(SPEECH_BODY).partition(b"\r\n")
        reader.sendall(head + b"\r\nAuthorization: Bearer key-of-bob\r\n" + rest)
        assert reader.recv(12) == b"HTTP/1.1 200"
        assert [status(url, key) for key in ("key-of-alice", "key-of-bob", "key-of-carol")] == [200, 200, 401]

        write_keys(file, alice="key-of-alice", carol="key-of-carol")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: status(url, "key-of-carol") == 200)
        assert [status(url, key) for key in ("key-of-alice", "key-of-bob")] == [200, 401]
        live.send(json.dumps({"type": "input.text", "text": "An open connection is no way round."}))
        assert json.loads(live.recv(HUNG_S))["error"]["code"] == "invalid_api_key"

        file.write_text('[dora]\nkey = "key-of-dora"\nclef = "key-of-erin"\n', encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        lines = read_until(process, "not reloaded")
        assert [status(url, key) for key in ("key-of-alice", "key-of-carol", "key-of-dora")] == [200, 200, 401]

        assert read_all(reader).endswith(b"0\r\n\r\n"), "speech that ran goes on to its end"
        process.send_signal(signal.SIGTERM)
        lines.append(process.communicate(timeout=HUNG_S)[1])
    assert process.returncode == 0
    assert "ERROR" in next(line for line in lines if "not reloaded" in line)
    assert "clef" in "".join(lines)
    assert "key-of-" not in "".join(lines)


@pytest.mark.parametrize(
    ("text", "word", "alice", "bob"),
    [('[bob]\nkey = "key-of-bob"', "reloaded: there are 1 API keys", 401, 200), ("[bob", "not reloaded", 200, 401)],
    ids=["other keys", "a broken file"],
)
def test_a_signal_while_the_model_loads_is_not_lost(tmp_path: Path, text: str, word: str, alice: int, bob: int) -> None:
    file = tmp_path / "keys.toml"
    write_keys(file, alice="key-of-alice")
    with launched(tmp_path, "--model", "fake", "--api-keys-file", str(file)) as (process, address_file):
        read_until(process, "warming up")
        file.write_text(text, encoding="utf-8")
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
        read_until(process, word)
        url = url_of(process, address_file)
        assert [status(url, key) for key in ("key-of-alice", "key-of-bob")] == [alice, bob]


def test_a_signal_to_the_group_reloads_and_ends_no_process(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    write_keys(file, alice="key-of-alice")
    with launched(tmp_path, "--model", "fake", "--api-keys-file", str(file), start_new_session=True) as (
        process,
        where,
    ):
        read_until(process, "warming up")
        os.killpg(process.pid, signal.SIGHUP)  # the engine's process may be starting
        read_until(process, "reloaded")
        url = url_of(process, where)
        write_keys(file, bob="key-of-bob")
        os.killpg(process.pid, signal.SIGHUP)
        read_until(process, "reloaded")
        assert [status(url, key) for key in ("key-of-alice", "key-of-bob")] == [401, 200]
        os.killpg(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=HUNG_S)
    assert process.returncode == 0
    assert "killed by signal" not in said
    assert "Traceback" not in said


def test_an_interrupt_of_the_group_while_the_model_loads_is_one_line(tmp_path: Path) -> None:
    # A shell lets a job in its background ignore SIGINT, and the tests may be one.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with launched(tmp_path, "--model", "fake", start_new_session=True) as (process, _):
        signal.signal(signal.SIGINT, before)
        read_until(process, "warming up")
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=HUNG_S)
    assert process.returncode in (INTERRUPTED, 0), "0 if it served already"
    assert "Traceback" not in said


def start_in_terminal(folder: Path, nohup: bool = False) -> tuple[int, int]:
    """A server whose terminal is the other end of the second number, a file descriptor; the first is its process."""
    child, terminal = pty.fork()
    if child == 0:  # a new session
        # Set either way: these tests may themselves run under nohup.
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
        if nohup:
            with (folder / "nohup.out").open("wb") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
        os.execv(SERVE[0], [*SERVE, "--model", "fake", "--port", "0", "--address-file", str(folder / "address")])
    return child, terminal


@pytest.mark.parametrize(("last", "statuses"), [(b"-o hello.wav\r\n", {0}), (b"warming up", {STATUS, 0})])
def test_a_closed_terminal_is_no_reload(tmp_path: Path, last: bytes, statuses: set[int]) -> None:
    """The server ends as after SIGTERM, or before it has begun to serve."""
    child, terminal = start_in_terminal(tmp_path)
    said = b""
    while last not in said:
        said += os.read(terminal, 4096)
    os.close(terminal)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) in statuses


def test_nohup_outlives_the_terminal(tmp_path: Path) -> None:
    child, terminal = start_in_terminal(tmp_path, nohup=True)
    try:
        wait_until((tmp_path / "address").exists, START_DEADLINE_S)
        os.close(terminal)
        wait_until(lambda: "reloaded" in (tmp_path / "nohup.out").read_text())
        assert status((tmp_path / "address").read_text(), "any") == 200
    finally:
        os.kill(child, signal.SIGTERM)
        _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == 0


def test_a_key_that_stays_keeps_what_it_has_used() -> None:
    keyring = Keyring([("alice", entry("a", per_minute=1)), ("bob", entry("b"))])
    alice, bob = keyring.find("a"), keyring.find("b")
    with alice.speaking():
        keyring.replace([("alice in wonderland", entry("a", per_minute=1)), ("carol", entry("c"))])
        assert keyring.find("a") is alice
        assert (alice.name, keyring.find("c").name, len(keyring)) == ("alice in wonderland", "carol", 2)
        with pytest.raises(ApiError, match="1 requests a minute"), alice.speaking():
            pass
    with pytest.raises(ApiError, match="not known") as refused, bob.speaking():
        pass
    assert refused.value.status == 401
    with pytest.raises(ApiError, match="not known"):
        keyring.find("b")


def test_a_limit_that_changes_holds_at_once() -> None:
    keyring = Keyring([("alice", entry("a", per_minute=1, at_once=2))])
    alice = keyring.find("a")
    with alice.speaking():
        keyring.replace([("alice", entry("a", per_minute=5, at_once=1))])
        with pytest.raises(ApiError, match="may have 1 running"), alice.speaking():
            pass
    for _ in range(5):
        with alice.speaking():
            pass
    with pytest.raises(ApiError, match="5 requests a minute"), alice.speaking():
        pass


@pytest.mark.parametrize(
    "text",
    [
        '[a]\nkey = ["sk-secret"]',
        '[a]\nkey = "sk-secret"\nmax_concurrent = 0',
        '[a]\nKey = "sk-secret"',
        'a = "sk-secret"',
        "[a]\nkey = sk-secret",
        '[a]\nkey = "sk-secret',
        '[a]\nkey = "sk-secret"\n[b]\nkey = "sk-secret"',
    ],
)
def test_what_is_wrong_with_a_file_of_keys_is_told_without_a_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"keys\.toml|given twice") as refused:
        read_keys(ServerConfig(api_keys_file=path))
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_file_of_keys_is_a_regular_file(tmp_path: Path, make: Callable[[Path], object]) -> None:
    path = tmp_path / "keys.toml"
    make(path)
    with pytest.raises(ValueError, match=r"keys\.toml: it is no regular file"):
        read_keys(ServerConfig(api_keys_file=path))


def test_a_file_of_keys_that_nests_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("a = " + "[" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match=r"keys\.toml: "):
        read_keys(ServerConfig(api_keys_file=path))
