"""The Wyoming protocol: Home Assistant's own way to a voice."""

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import ServerConfig
from vivavoce_server.wyoming_announcement import SERVICE, check_announcement
from zeroconf import IPVersion, ServiceBrowser, ServiceStateChange, Zeroconf

from tests.support.live_server import Gate, fake_engine
from tests.support.live_socket import pcm_of
from tests.support.readers import ANYTHING
from tests.support.server_process import serving
from tests.support.waiting import wait_until
from tests.support.wyoming_client import dial_wyoming
from tests.support.wyoming_server import Wyoming, wyoming_server

TEXT = "Hello there. How are you?"
FORMAT = {"rate": 24000, "width": 2, "channels": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[Wyoming]:
    with wyoming_server() as running:
        yield running


def is_tone(audio: bytes, frames: int) -> bool:
    """True if this is the whole speech of a fake text, whose seed is not known."""
    return any(audio == pcm_of(seed, frames) for seed in range(400))


async def test_info_lists_voices_as_home_assistant_reads_them(server: Wyoming) -> None:
    async with dial_wyoming(server.port) as client:
        await client.send("select-program", name="vivavoce")
        await client.send("describe")
        (program,) = (await client.expect("info")).data["tts"]
        assert (program["name"], program["installed"], program["supports_synthesize_streaming"]) == (
            "vivavoce",
            True,
            True,
        )
        assert [(voice["name"], voice["languages"], voice["description"]) for voice in program["voices"]] == [
            ("heart", ["en"], "Heart (American, female)"),
            ("michael", ["en"], "Michael (British, male)"),
        ]
        for artifact in (program, *program["voices"]):
            assert artifact["installed"] is True
            assert set(artifact["attribution"]) == {"name", "url"}
            assert isinstance(artifact["version"], str)
        await client.send("ping", text="here?")
        assert (await client.expect("pong")).data == {"text": "here?"}


@pytest.mark.parametrize("voice", [None, {"name": "michael"}, {"language": "en-US"}, {"name": ""}])
async def test_a_text_is_spoken(server: Wyoming, voice: dict[str, str] | None) -> None:
    async with dial_wyoming(server.port) as client:
        await client.send("synthesize", text=TEXT, **({"voice": voice} if voice else {}))
        spoken = await client.until("audio-stop")
    assert spoken.kinds == ["audio-start", "audio-chunk", "audio-stop"]
    assert all(one == FORMAT for one in spoken.formats)
    assert is_tone(spoken.audio, len(TEXT))


async def test_several_texts_follow_each_other(server: Wyoming) -> None:
    async with dial_wyoming(server.port) as client:
        for text in ("One.", "Two, three."):
            await client.send("synthesize", text=text)
            assert is_tone((await client.until("audio-stop")).audio, len(text))


async def test_a_text_in_pieces_is_spoken_while_it_comes(server: Wyoming) -> None:
    async with dial_wyoming(server.port) as client:
        await client.send("synthesize-start", voice={"name": "heart"})
        await client.send("synthesize-chunk", text="Hello the")
        await client.send("synthesize-chunk", text="re. How ")
        first = await client.until("audio-chunk")  # its end is not known yet
        await client.send("synthesize-chunk", text="are you?")
        await client.send("synthesize", text=TEXT)  # for servers that do not stream
        await client.send("synthesize-stop")
        rest = await client.until("synthesize-stopped")
        assert rest.kinds[-2:] == ["audio-stop", "synthesize-stopped"]
        assert is_tone(first.audio + rest.audio, len(TEXT))
        await client.send("synthesize", text="Again.")
        again = await client.until("audio-stop")
        assert is_tone(again.audio, len("Again."))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({"text": TEXT, "voice": {"name": "nobody"}}, "voice_not_found"),
        ({"text": TEXT, "voice": {"language": "xx"}}, "voice_not_found"),
        ({"text": "<speak/>", "text_format": "ssml"}, "nothing_to_speak"),
        ({"text": TEXT, "text_format": "html"}, "invalid_value"),
        ({}, "missing_required_parameter"),
        ({"text": " "}, "nothing_to_speak"),
    ],
)
async def test_an_error_is_told(server: Wyoming, data: dict[str, object], code: str) -> None:
    async with dial_wyoming(server.port) as client:
        await client.send("synthesize", **data)
        event = await client.receive()
        while event.type != "error":
            event = await client.receive()
        assert event.data["code"] == code
        assert event.data["text"]


SSML = '<speak>One. <break time="2s"/> <prosody rate="slow">Two &amp; three.</prosody></speak>'
SILENCE_2_S = bytes(2 * 2 * FORMAT["rate"])


@pytest.fixture(scope="module")
def literal_server() -> Iterator[Wyoming]:
    """A server whose model reads text as it is written, tags included."""
    with wyoming_server(Engine(FakeRunner(ANYTHING), EngineConfig(), fake_voices(info=ANYTHING))) as running:
        yield running


def is_read_as_ssml(audio: bytes) -> bool:
    """True if this is "One. ", two seconds of silence, "Two & three."."""
    return any(audio == pcm_of(seed, 5) + SILENCE_2_S + pcm_of(seed, 12) for seed in range(400))


async def test_ssml_leaves_its_words_and_pauses(literal_server: Wyoming) -> None:
    async with dial_wyoming(literal_server.port) as client:
        await client.send("synthesize", text=SSML, text_format="ssml")
        assert is_read_as_ssml((await client.until("audio-stop")).audio)
        await client.send("synthesize-start", text_format="ssml")
        for piece in (SSML[:20], SSML[20:50], SSML[50:]):
            await client.send("synthesize-chunk", text=piece)
        await client.send("synthesize-stop")
        assert is_read_as_ssml((await client.until("synthesize-stopped")).audio)


async def test_tags_of_a_text_are_left_to_the_model(literal_server: Wyoming) -> None:
    async with dial_wyoming(literal_server.port) as client:
        await client.send("synthesize", text="<b>One</b>")
        assert is_tone((await client.until("audio-stop")).audio, len("<b>One</b>"))


async def test_a_text_without_pieces_is_told_and_stopped(server: Wyoming) -> None:
    async with dial_wyoming(server.port) as client:
        await client.send("synthesize-start")
        await client.send("synthesize-stop")
        spoken = await client.until("synthesize-stopped")
        assert "error" in spoken.kinds
        assert spoken.audio == b""


@pytest.mark.parametrize(
    "line",
    [b"no json\n", b"[]\n", b'{"type": "x", "data": 5}\n', b'{"type": "x", "data_length": -1}\n', b"x" * 200_000],
    ids=["text", "list", "data", "length", "long"],
)
async def test_bytes_that_are_no_event_end_the_connection(server: Wyoming, line: bytes) -> None:
    async with dial_wyoming(server.port) as client:
        client.writer.write(line)
        await client.writer.drain()
        assert (await client.expect("error")).data["code"] == "bad_message"
        assert await client.hung_up()


async def test_unknown_events_are_passed_over_with_their_payload(server: Wyoming) -> None:
    async with dial_wyoming(server.port) as client:
        head = {"type": "audio-chunk", "data": {"rate": 16000}, "payload_length": 3}
        client.writer.write(json.dumps(head).encode() + b"\nabc")
        await client.send("ping")
        await client.expect("pong")


async def test_a_client_that_hangs_up_frees_its_row() -> None:
    with wyoming_server(fake_engine(step_s=0.01)) as server:
        async with dial_wyoming(server.port) as client:
            await client.send("synthesize", text=TEXT * 20)
            await client.until("audio-chunk")
        await asyncio.to_thread(wait_until, lambda: server.engine.stats().running == 0)
        await asyncio.to_thread(wait_until, lambda: server.service.live_sessions == 0)


async def test_a_text_without_an_end_gives_its_row_back() -> None:
    with wyoming_server(config=ServerConfig(grace_s=0, live_idle_s=0.2)) as server:
        async with dial_wyoming(server.port) as client:
            await client.send("synthesize-start")
            await client.send("synthesize-chunk", text="Hello there, ")
            kinds = (await client.until("synthesize-stopped")).kinds
            assert kinds[-3:] == ["error", "audio-stop", "synthesize-stopped"]
        await asyncio.to_thread(wait_until, lambda: server.engine.stats().running == 0)


async def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce_server.wyoming.IDLE_S", 0.1)
    with wyoming_server(config=ServerConfig(grace_s=0, live_idle_s=0.1)) as server:
        async with dial_wyoming(server.port) as client:
            assert await client.hung_up()


async def test_connections_are_limited() -> None:
    with wyoming_server(config=ServerConfig(grace_s=0, live_max_sessions=1)) as server:
        async with dial_wyoming(server.port) as first, dial_wyoming(server.port) as second:
            await first.send("ping")
            await first.expect("pong")
            await second.send("ping")
            assert (await second.expect("error")).data["code"] == "queue_full"
            assert await second.hung_up()


async def test_a_second_request_waits_for_the_end_of_the_first() -> None:
    gate = Gate()
    with wyoming_server(fake_engine(before_step=gate)) as server:
        async with dial_wyoming(server.port) as client:
            await client.send("synthesize", text="One.")
            await client.expect("audio-start")
            await client.send("synthesize", text="Two.")
            assert (await client.expect("error")).data["code"] == "invalid_state"
            gate.open()
            assert is_tone((await client.until("audio-stop")).audio, len("One."))


async def test_a_server_that_stops_tells_its_listeners() -> None:
    engine = fake_engine(step_s=0.01)
    with wyoming_server(engine) as server:
        async with dial_wyoming(server.port) as client:
            await client.send("synthesize", text=TEXT * 40)
            await client.until("audio-chunk")
            await asyncio.to_thread(engine.stop)
            event = await client.receive()
            while event.type != "error":
                event = await client.receive()
            assert event.data["code"] == "not_serving"


async def test_the_command_line_opens_the_port(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with serving(tmp_path, "--model", "fake", "--wyoming-port", str(port)):
        async with dial_wyoming(port) as client:
            await client.send("synthesize", text=TEXT)
            assert is_tone((await client.until("audio-stop")).audio, len(TEXT))


async def test_a_silent_connection_leaves_a_server_that_stops() -> None:
    with wyoming_server() as server:
        async with dial_wyoming(server.port) as client:
            await client.send("ping")
            await client.expect("pong")
            server.stop()
            assert (await client.expect("error")).data["code"] == "not_serving"
            assert await client.hung_up()


# ---- announcement


class Browser:
    """Finds Wyoming servers on the loopback interface, as Home Assistant does on its own."""

    def __init__(self) -> None:
        self.found: dict[str, ServiceStateChange] = {}
        self.zeroconf = Zeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)
        self._browser = ServiceBrowser(self.zeroconf, SERVICE, handlers=[self._see])

    def _see(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        self.found[name] = state_change

    def address_of(self, name: str) -> tuple[list[str], int | None]:
        info = self.zeroconf.get_service_info(SERVICE, name)
        assert info is not None
        return info.parsed_addresses(), info.port

    def states(self) -> set[ServiceStateChange]:
        return set(self.found.values())


@pytest.fixture
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.zeroconf.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_port_is_announced_while_it_is_open(monkeypatch: pytest.MonkeyPatch, browser: Browser, host: str) -> None:
    monkeypatch.setattr("vivavoce_server.wyoming_announcement._outgoing_address", lambda: "127.0.0.1")
    with wyoming_server(host=host, announced=True) as server:
        wait_until(lambda: browser.states() == {ServiceStateChange.Added})
        (name,) = browser.found
        assert name.endswith(f".{SERVICE}")
        assert name.startswith("Vivavoce on ")
        assert browser.address_of(name) == (["127.0.0.1"], server.port)
    wait_until(lambda: browser.states() == {ServiceStateChange.Removed})


def test_two_servers_of_a_machine_have_names_of_their_own(browser: Browser) -> None:
    with wyoming_server(announced=True) as first, wyoming_server(announced=True) as second:
        wait_until(lambda: len(browser.found) == 2)
        ports = [browser.address_of(name)[1] for name in browser.found]
        assert sorted(port or 0 for port in ports) == sorted([first.port, second.port])


async def test_a_port_that_cannot_be_announced_is_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable() -> str:
        raise OSError("Network is unreachable")

    monkeypatch.setattr("vivavoce_server.wyoming_announcement._outgoing_address", unreachable)
    with wyoming_server(host="0.0.0.0", announced=True) as server:
        assert "the Wyoming port is not announced: Network is unreachable" in caplog.text
        async with dial_wyoming(server.port) as client:
            await client.send("ping")
            await client.expect("pong")


def test_a_missing_package_is_told_before_the_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    check_announcement(ServerConfig(wyoming_port=10200))
    with pytest.raises(ValueError, match=r"--wyoming-zeroconf: the package zeroconf is missing; pip install"):
        check_announcement(ServerConfig(wyoming_port=10200, wyoming_zeroconf=True))
