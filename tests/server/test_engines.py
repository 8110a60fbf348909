"""Several checkpoints in one server, the folder of voices, and the warm-up of each kind of model."""

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from vivavoce_engine import CheckpointError, EngineConfig, Thinker, ThinkerProcess
from vivavoce_engine.thinker.fake import FakeThinker
from vivavoce_server import ServerConfig
from vivavoce_server.chat.external import ExternalThinker
from vivavoce_server.config import load_settings
from vivavoce_server.engines import open_engines, open_store, open_thinkers, split_entry

from tests.support.chatting import ANSWER, HELLO, PATH
from tests.support.live_server import Gate, fake_engine, live_server
from tests.support.omni_checkpoints import omni_checkpoint
from tests.support.server_process import SERVE, serving
from tests.support.waiting import HUNG_S, wait_until


def test_the_command_serves_several_models(tmp_path: Path) -> None:
    models = ("--model", "one=fake", "--model", "org/two=fake", "--voices-dir", str(tmp_path / "voices"))
    with serving(tmp_path, *models) as (_, url):
        listed = [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]]
        assert listed == ["one", "org/two"]
        body = {"input": "Hello.", "voice": "heart", "response_format": "pcm", "model": "org/two"}
        assert httpx.post(f"{url}/v1/audio/speech", json=body).status_code == 200
        form = {"name": "ada", "consent": "I agree.", "voice": "heart(1)+michael(1)"}
        assert httpx.post(f"{url}/v1/audio/voices", data=form).status_code == 200
    assert (tmp_path / "voices" / "ada.safetensors").exists()


def test_the_command_serves_a_model_that_chats(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "one=fake", "--model", "two=fake-chat") as (_, url):
        assert httpx.get(f"{url}/ready").status_code == 200
        answer = httpx.post(url + PATH, json=HELLO).json()
        assert (answer["model"], answer["choices"][0]["message"]["content"]) == ("two", ANSWER)


def test_the_thinker_is_a_process_or_a_server(tmp_path: Path) -> None:
    checkpoint = omni_checkpoint(tmp_path / "omni")

    def opened(model: str, **settings: object) -> Thinker:
        config = ServerConfig(model=(model, "fake"), max_voices=0, **settings)  # type: ignore[arg-type]
        engine = EngineConfig(device="cpu", max_step_s=7.0)
        ((name, thinker),) = open_thinkers(config, engine, open_engines(config, engine)).items()
        assert name == "chat"
        return thinker

    model = f"chat={checkpoint}"
    assert isinstance(opened("chat=fake-chat", thinker="http://127.0.0.1:9/v1"), FakeThinker)
    process = opened(model, thinker_conversations=3, thinker_max_context=99)
    assert isinstance(process, ThinkerProcess)
    assert (process.takes_media, process.ready) == (True, False)
    config = process.config
    assert (config.device, config.conversations, config.max_context, config.max_step_s) == ("cpu", 3, 99, 120.0)
    server = opened(model, thinker="http://127.0.0.1:9/v1", thinker_key=SecretStr("k"), thinker_model="mine")
    assert isinstance(server, ExternalThinker)
    assert (server.takes_media, server.ready) == (False, True)
    with pytest.raises(CheckpointError, match="is `process`, or the URL of a server"):
        opened(model, thinker="vllm")


def test_a_missing_voice_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vivavoce_voice", None)  # as if it were not installed
    with pytest.raises(CheckpointError, match=r"pip install vivavoce-voice, or name a checkpoint by --model$"):
        open_engines(ServerConfig(max_voices=0), EngineConfig(device="cpu"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model", "fake", "--model", "fake"), "two models are named 'fake'"),
        (("--model", "a=fake", "--model", "b=fake", "--model-name", "c"), "names a single model"),
        (("--model", "a=no/such/folder/here"), "no/such/folder/here"),
        (("--model", "fake", "--voices-dir", "/dev/null/x"), "voices cannot be stored"),
        (("--model", "fake", "--ref-audio-hosts", "https://x"), "is no host"),
    ],
)
def test_what_cannot_be_served_is_told(flags: tuple[str, ...], words: str) -> None:
    ended = subprocess.run([*SERVE, "--port", "0", *flags], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (1, 2)
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_models_come_from_a_variable_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_MODEL", "a=fake, b=fake")
    config, engine_config = load_settings({})
    assert list(open_engines(config, engine_config)) == ["a", "b"]


def test_a_folder_whose_name_holds_a_sign_of_equality(tmp_path: Path) -> None:
    folder = tmp_path / "a=b"
    assert split_entry(f"x={folder}") == ("x", str(folder))
    folder.mkdir()
    assert split_entry(str(folder)) == (None, str(folder))
    assert split_entry("org/name") == (None, "org/name")


def test_the_default_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert open_store(ServerConfig(max_voices=0)) is None
    assert not (tmp_path / "vivavoce").exists()
    assert open_store(ServerConfig()) is not None
    assert (tmp_path / "vivavoce" / "voices").is_dir()


def test_a_home_that_cannot_be_written_to_is_no_reason_not_to_speak(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/dev/null")
    assert open_store(ServerConfig()) is None
    assert "no voices will be stored" in capsys.readouterr().err
    with pytest.raises(CheckpointError):
        open_store(ServerConfig(voices_dir=Path("/dev/null/voices")))


async def test_models_share_the_length_of_the_queue() -> None:
    gate = Gate()
    config = EngineConfig(max_streams=1, max_queue=2)
    engines = {"one": fake_engine(config, before_step=gate), "two": fake_engine(config, before_step=gate)}
    with live_server(engines) as server:
        url = f"{server.url}/v1/audio/speech"
        async with httpx.AsyncClient(timeout=HUNG_S) as client:

            async def speak(model: str) -> int:
                body = {"input": "Hello.", "voice": "heart", "model": model}
                return (await client.post(url, json=body)).status_code

            asked = []
            for model in ("one", "two", "one", "two"):
                asked.append(asyncio.create_task(speak(model)))
                await asyncio.to_thread(wait_until, lambda: accepted(server.service.engines.values()) == len(asked))
            assert await speak("one") == 429
            gate.open()
            assert await asyncio.gather(*asked) == [200] * 4


def accepted(engines: object) -> int:
    return sum(engine.stats().running + engine.stats().queued for engine in engines)  # type: ignore[attr-defined]
