"""--ssl-certfile: TLS without a proxy, certificates that are renewed while connections stay open, and wrong files."""

import asyncio
import json
import logging
import shutil
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from vivavoce_server import ServerConfig, certificates
from vivavoce_server.accepting import Acceptor
from vivavoce_server.certificates import Certificate
from vivavoce_server.listeners import bind
from vivavoce_server.setting_sources import SettingError
from websockets.sync.client import connect

from tests.server.test_cli import SPEECH_BODY, address_of, raw_request, read_all
from tests.support.certificates import Pair, make_pair
from tests.support.programs import needs
from tests.support.server_process import read_until, serving
from tests.support.waiting import HUNG_S, wait_until

pytestmark = needs("openssl")
SESAME = "open sesame"
SPEECH = {"input": "Hi!", "voice": "heart", "response_format": "pcm"}


def settings(pair: Pair, key: Path | None = None) -> ServerConfig:
    return ServerConfig(ssl_certfile=pair.certificate, ssl_keyfile=key or pair.key)


def trusting(*pairs: Pair) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for pair in pairs:
        context.load_verify_locations(pair.certificate)
    return context


def replace(old: Pair, new: Pair) -> None:
    """Renews the files as certbot does, one after the other."""
    shutil.copy(new.key, old.key)
    shutil.copy(new.certificate, old.certificate)


@contextmanager
def secure(url: str, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(address_of(url), HUNG_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        yield connection


async def until(holds: Callable[[], bool]) -> None:
    """Lets the event loop go round until something holds."""
    async with asyncio.timeout(HUNG_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


def subject(url: str, context: ssl.SSLContext) -> str:
    """Name of the certificate that a new connection is shown."""
    with secure(url, context) as connection:
        shown = connection.getpeercert()
    assert shown is not None
    return str(shown["subject"][0][0][1])


def test_speech_sockets_and_renewal_without_a_dropped_connection(tmp_path: Path) -> None:
    first, second = make_pair(tmp_path, "first"), make_pair(tmp_path, "second")
    used = Pair(tmp_path / "used.crt", tmp_path / "used.key")
    replace(used, first)
    context = trusting(first, second)
    flags = ("--ssl-certfile", str(used.certificate), "--ssl-keyfile", str(used.key))
    with (
        serving(tmp_path, "--model", "fake", *flags) as (process, url),
        httpx.Client(base_url=url, verify=context) as client,
        secure(url, context) as reader,
    ):
        assert url.startswith("https://127.0.0.1:")
        assert len(client.post("/v1/audio/speech", json=SPEECH).content) == 3 * 1920 * 2
        assert client.get("/openapi.json").status_code == 200
        with connect(f"{url.replace('https', 'wss')}/v1/audio/speech/stream", ssl=context, proxy=None) as live:
            live.send(json.dumps({"type": "session.config", "voice": "heart"}))
            assert json.loads(live.recv(HUNG_S))["type"] == "session.created"
            # A client that does not read yet keeps its speech open over all that follows.
            reader.sendall(raw_request(SPEECH_BODY))
            assert reader.recv(12) == b"HTTP/1.1 200"
            assert subject(url, context) == "first"

            replace(used, second)
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: subject(url, context) == "second")

            shutil.copy(first.certificate, used.certificate)  # and no key for it
            process.send_signal(signal.SIGHUP)
            lines = read_until(process, "was not reloaded")
            assert "the key in" in lines[-1]
            assert subject(url, context) == "second"

            assert client.get("/ready").status_code == 200, "on the connection of the first certificate"
            live.send(json.dumps({"type": "input.text", "text": "Still here."}))
            live.send(json.dumps({"type": "input.done"}))
            assert live.recv(HUNG_S)
            assert read_all(reader).endswith(b"0\r\n\r\n")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HUNG_S)
    assert process.returncode == 0


def test_those_who_speak_no_tls_or_bad_http_leave_the_server_alone(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, "mine")
    context = trusting(pair)
    flags = ("--ssl-certfile", str(pair.certificate), "--ssl-keyfile", str(pair.key))
    with (
        serving(tmp_path, "--model", "fake", *flags) as (_, url),
        socket.create_connection(address_of(url)),  # shakes no hands, and holds nobody up
        socket.create_connection(address_of(url), HUNG_S) as plain,
    ):
        plain.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        read_all(plain)
        assert httpx.get(f"{url}/ready", verify=context).status_code == 200
        with secure(url, context) as connection:
            connection.sendall(b"this is no HTTP\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 400"


async def test_a_change_of_the_files_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "WATCH_S", 0.0)
    first, second = make_pair(tmp_path, "first"), make_pair(tmp_path, "second")
    certificate = Certificate(settings(first))
    before = certificate.context
    watching = asyncio.create_task(certificate.watch())
    for _ in range(20):
        await asyncio.sleep(0)
    assert certificate.context is before, "nothing has changed"
    replace(first, second)
    await until(lambda: certificate.context is not before)
    watching.cancel()


def test_a_broken_pair_keeps_the_old_and_a_whole_one_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = make_pair(tmp_path, "first"), make_pair(tmp_path, "second")
    certificate = Certificate(settings(first))
    before = certificate.context
    for broken in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        first.certificate.write_bytes(broken)
        certificate.reload()
        assert certificate.context is before
    first.certificate.unlink()
    certificate.reload()
    assert certificate.context is before
    with caplog.at_level(logging.INFO):
        replace(first, second)
        certificate.reload()
    assert certificate.context is not before
    assert "reloaded the certificate of" in caplog.text


def test_wrong_files_are_told_in_a_line(tmp_path: Path) -> None:
    mine, other = make_pair(tmp_path, "mine"), make_pair(tmp_path, "other")
    locked = make_pair(tmp_path, "locked", password=SESAME)
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    cases = [
        (settings(mine, tmp_path / "none"), "--ssl-keyfile: .*none cannot be read: No such file or directory"),
        (settings(mine, tmp_path), "--ssl-keyfile: .* is no regular file"),
        (settings(mine, other.key), "--ssl-certfile: the key in .*other.key is not that of .*mine.crt"),
        (settings(mine, text), "--ssl-certfile: .* hold no certificate and key in PEM form$"),
        (ServerConfig(ssl_certfile=mine.certificate), "; give the key's own file by --ssl-keyfile"),
        (settings(locked), "--ssl-keyfile: the key is encrypted; give its password by --ssl-keyfile-password"),
        (
            ServerConfig.model_validate({**dict(settings(locked)), "ssl_keyfile_password": "sesame"}),
            "--ssl-keyfile-password: it is not that of .*locked.key",
        ),
        (
            ServerConfig.model_validate({**dict(settings(mine)), "ssl_ca_certs": text}),
            "--ssl-ca-certs: .*text.pem holds no certificate",
        ),
        (ServerConfig(ssl_keyfile=mine.key), "--ssl-keyfile: there is no certificate for it; set --ssl-certfile too"),
    ]  # fmt: skip
    for config, said in cases:
        with pytest.raises(SettingError, match=said) as refused:
            Certificate.of(config)
        assert len(str(refused.value).splitlines()) == 1
        assert "sesame" not in str(refused.value)
    assert Certificate.of(ServerConfig()) is None
    right = ServerConfig.model_validate({**dict(settings(locked)), "ssl_keyfile_password": SESAME})
    assert Certificate.of(right) is not None


def test_a_client_without_a_certificate_of_the_authority_is_not_served(tmp_path: Path) -> None:
    pair, client_pair = make_pair(tmp_path, "server"), make_pair(tmp_path, "client")
    flags = ("--ssl-certfile", str(pair.certificate), "--ssl-keyfile", str(pair.key))
    with serving(tmp_path, "--model", "fake", *flags, "--ssl-ca-certs", str(client_pair.certificate)) as (_, url):
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/ready", verify=trusting(pair))
        known = trusting(pair)
        known.load_cert_chain(client_pair.certificate, client_pair.key)
        assert httpx.get(f"{url}/ready", verify=known).status_code == 200


async def test_handshakes_count_as_connections(tmp_path: Path) -> None:
    certificate = Certificate(settings(make_pair(tmp_path, "mine")))
    listener = bind("127.0.0.1", 0)
    listener.listen()
    acceptor = Acceptor(listener, asyncio.Protocol, lambda: 0, 1, lambda: certificate.context)
    running = asyncio.create_task(acceptor.run())
    silent = [socket.create_connection(listener.getsockname()) for _ in range(2)]
    await until(lambda: len(acceptor._handshakes) == 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(acceptor._handshakes) == 1, "the second one waits for a place"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await until(lambda: not acceptor._handshakes)
    for each in silent:
        each.close()
    listener.close()
