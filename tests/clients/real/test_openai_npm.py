"""The npm package `openai`: every format, the class of an error, every call of the server, every field of its types."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.audio import Voice, VoiceConsent, VoiceConsentDeleted, VoiceDeleted
from openai.types.audio.speech_create_params import SpeechCreateParams
from openai.types.audio.voice_consent_create_params import VoiceConsentCreateParams
from openai.types.audio.voice_consent_update_params import VoiceConsentUpdateParams
from openai.types.audio.voice_create_params import CreateVoiceRequestAudioSample, CreateVoiceRequestPrompt
from vivavoce_engine.fake_runner import FAKE_CHAT_INFO, FakeRunner
from vivavoce_server import ServerConfig

from tests.clients.real.harness import HERE, Session
from tests.support.chatting import ANSWER, chat_server
from tests.support.live_server import live_server
from tests.support.openai_table import PCM_BYTES, TEXT, TOLD, openai_server
from tests.support.programs import needs
from tests.support.recordings import voice_like, wav
from tests.support.server_process import serving
from tests.support.waiting import wait_until

TYPES = HERE / "openai_npm/node_modules/openai/resources/audio"
FIELDS: dict[tuple[str, str], type] = {
    ("speech", "SpeechCreateParams"): SpeechCreateParams,
    ("voices", "Consent"): CreateVoiceRequestAudioSample,
    ("voices", "Prompt"): CreateVoiceRequestPrompt,
    ("voice-consents", "VoiceConsentCreateParams"): VoiceConsentCreateParams,
    ("voice-consents", "VoiceConsentUpdateParams"): VoiceConsentUpdateParams,
    ("voices", "Voice"): Voice,
    ("voices", "VoiceDeleted"): VoiceDeleted,
    ("voice-consents", "VoiceConsent"): VoiceConsent,
    ("voice-consents", "VoiceConsentDeleted"): VoiceConsentDeleted,
}
"""File and interface of the npm package → the same type of the Python package, whose fields are all served
(tests/clients/test_openai_contract.py)."""

pytestmark = needs("node", "npm")


@pytest.fixture
def fake_url() -> Iterator[str]:
    """A server whose speech has a known length."""
    with live_server(config=ServerConfig(model_name="vivavoce")) as running:
        yield running.url


@pytest.fixture
def shipped_url(tmp_path: Path) -> Iterator[str]:
    """A server process with the voice that ships."""
    with serving(tmp_path) as (_, url):
        yield url


def answer(url: str, folder: Path, script: str = "speak", argument: str = TEXT) -> dict[str, Any]:
    command = [*Session(f"openai_npm/{script}", live=False).command, f"{url}/v1", argument]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    heard: dict[str, Any] = json.loads(ended.stdout)
    return heard


def test_formats_and_errors(fake_url: str, tmp_path: Path) -> None:
    heard = answer(fake_url, tmp_path)
    assert heard["bytes"]["pcm"] == PCM_BYTES
    assert heard["bytes"]["wav"] == PCM_BYTES + 44
    assert all(count > 5000 for count in heard["bytes"].values())
    assert heard["error"] == {"name": "BadRequestError", "status": 400, "code": "voice_not_found", "param": "voice"}
    assert heard["models"] == ["vivavoce"]


def test_the_shipped_voice(shipped_url: str, tmp_path: Path) -> None:
    assert all(count > 2000 for count in answer(shipped_url, tmp_path)["bytes"].values())


def test_every_call(tmp_path: Path) -> None:
    recording = tmp_path / "a.wav"
    recording.write_bytes(wav(voice_like(0, 1.5)))
    with openai_server(tmp_path / "voices") as server:
        told = answer(server.url, tmp_path, "calls", str(recording))
    assert told.pop("deletedModel")["status"] == 405
    assert told.pop("fast") == pytest.approx(PCM_BYTES / 2, abs=4800)
    assert told == TOLD


def test_conversations(tmp_path: Path) -> None:
    with chat_server(
        config=ServerConfig(leading_silence="keep"), runner=FakeRunner(FAKE_CHAT_INFO, step_s=0.01)
    ) as server:
        told = answer(server.url, tmp_path, "chat", "Hello.")
        wait_until(lambda: server.engine.stats().running == 0)
    sound = len(ANSWER) * 1920 * 2
    usage = told["whole"].pop("usage")
    assert told["whole"] == {"transcript": ANSWER, "bytes": sound}
    assert told["streamed"] == {"transcript": ANSWER, "bytes": sound, "finish": "stop", "usage": usage}
    assert usage["completion_tokens_details"]["audio_tokens"] == len(ANSWER)
    assert (told["later"], told["pieces"]) == ("You said: Really?", 2)
    refused = {"name": "BadRequestError", "status": 400, "code": "unsupported_parameter", "param": "n"}
    assert told["refused"] == refused


@pytest.mark.parametrize(("file", "interface"), FIELDS)
def test_its_types_have_the_fields_of_the_python_package(file: str, interface: str) -> None:
    declared = (TYPES / f"{file}.d.ts").read_text(encoding="utf-8")
    body = re.search(rf"^( *)(?:export )?interface {interface} {{$(.*?)^\1}}$", declared, re.MULTILINE | re.DOTALL)
    assert body is not None
    fields = set(re.findall(rf"^{body[1]}    (\w+)\??: ", body[2], re.MULTILINE))
    assert fields == FIELDS[file, interface].__annotations__.keys()
