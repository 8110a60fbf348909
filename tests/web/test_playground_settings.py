"""The playground's settings in a real browser: voices, mixes, clones, reading, and the request as code.

npm ci --prefix tests/web && apt-get install chromium
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import vivavoce_web
from pydantic import SecretStr
from vivavoce_engine import Engine, EngineConfig, ModelInfo, SpeakerInfo, VoiceStore
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_presets, fake_voices
from vivavoce_server import ServerConfig
from vivavoce_server.playground import FILES
from vivavoce_text import STAGES

from tests.support.live_server import LiveServer, live_server
from tests.support.programs import needs, path_of
from tests.web import test_playground

FOLDER = Path(__file__).parent
OPENAI_OF_NODE = "tests/clients/real/openai_npm/node_modules"
TEXT = 'It\'s "so" \u2013 `$HOME` \\n\nµ 😀 !'
SPEED = 1.5

pytestmark = needs("chromium", "node", "tests/web/node_modules")


def drive(url: str, folder: Path, *steps: str) -> dict[str, Any]:
    return test_playground.drive(url, folder, "load", *steps, driver="settings.mjs")


def engine_of(info: ModelInfo, store: VoiceStore | None = None) -> Engine:
    return Engine(FakeRunner(info), EngineConfig(), fake_voices(store, info=info))


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    return VoiceStore(tmp_path / "voices")


@pytest.fixture
def server(store: VoiceStore) -> Iterator[LiveServer]:
    config = ServerConfig(allowed_hosts=("another-machine.test",))
    with live_server(engine_of(FAKE_INFO, store), config) as running:
        yield running


def test_voices_are_cards_with_a_sample(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "cards", "sample")
    cards = seen["cards"]
    assert cards["texts"] == ["Heart American · female A steady tone", "Michael British · male The same tone"]
    assert (cards["below"], cards["above"]) == ("voice-1", "voice-0")
    assert '"voice": "michael"' in cards["code"]
    assert not cards["filter"]
    sample = seen["sample"]
    (asked,) = [body for body in sample["asked"] if "return" not in body]
    assert asked["voice"] == "michael"
    assert asked["language"] == "english"
    assert isinstance(asked["seed"], int)
    assert (sample["pressed"], sample["pressedAfter"], sample["stopped"]) == ("true", None, None)
    assert sample["addresses"] == 1, "a sample is kept"
    assert sample["chosen"] == "voice-0", "a sample chooses nothing"


def test_many_voices_can_be_filtered(tmp_path: Path) -> None:
    infos = {f"voice_{at}": SpeakerInfo("male" if at % 2 else "female", "Scottish") for at in range(12)}
    infos["ada"] = SpeakerInfo("female", "British")
    info = replace(FAKE_INFO, speakers=tuple(infos), speaker_infos=infos)
    with live_server(engine_of(info)) as server:
        seen = drive(server.url, tmp_path, "filter")["filter"]
    assert seen["british"] == ["Ada"]
    assert seen["none"] == {"cards": [], "said": "No voice has these words.", "seen": True}
    assert seen["all"] == 13


def test_a_mix_is_made_stored_spoken_and_deleted(tmp_path: Path, store: VoiceStore) -> None:
    info = replace(FAKE_INFO, speakers=("heart", "michael", "ono_anna", "x+y", "bella"))
    with live_server(engine_of(info, store)) as server:
        seen = drive(server.url, tmp_path, "mix", "storeMix", "speakMix")
        stored = store.get("warm")
        drive(server.url, tmp_path, "deleteMix")
    mix = seen["mix"]
    assert mix["names"] == ["heart", "michael"]
    assert mix["shares"] == ["25 %", "75 %"]
    assert '"voice": "heart(25)+michael(75)"' in mix["two"]
    assert mix["four"] == ["heart", "michael", "ono_anna", "bella"], "x+y cannot be written in a mix"
    assert (mix["most"], mix["removable"]) == (False, 0)
    assert seen["storeMix"]["nameless"].startswith("Give the voice a name")
    assert seen["storeMix"]["said"] == "Stored as warm."
    assert '"voice": "warm"' in seen["storeMix"]["code"]
    assert not seen["storeMix"]["error"]
    assert seen["speakMix"] is False
    assert stored is not None
    presets = fake_presets(info)
    expected = 0.25 * presets["heart"] + 0.75 * presets["michael"]
    np.testing.assert_allclose(stored.reference.embedding, expected, rtol=1e-6)
    assert "heart(25)+michael(75)" in stored.consent
    assert store.names() == []


def test_a_deletion_is_asked_for_first(server: LiveServer, store: VoiceStore, tmp_path: Path) -> None:
    server.engine.voices.add("warm", "Mixed.", "heart(1)+michael(1)")
    seen = drive(server.url, tmp_path, "deleteMix")["deleteMix"]
    assert all("stored voice warm" in question for question in seen["asked"])
    assert (len(seen["asked"]), seen["kept"]) == (2, 1)
    assert (seen["chosen"], seen["focused"]) == ("voice-0", "voice-0")
    assert store.names() == []


def test_a_recording_is_cloned_and_stored(server: LiveServer, store: VoiceStore, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "record", "storeClone", "longRecording")
    record = seen["record"]
    refused = "Record a voice or choose a file, or choose another voice."
    assert record["before"] == {"state": "No recording yet", "store": True, "refused": refused}
    assert record["time"].endswith(" s of 30 s")
    assert record["state"].endswith(" s in use")
    assert float(record["state"].split()[0]) >= 3
    assert not record["meter"]
    assert "only if its speaker agrees" in seen["storeClone"]["refused"]
    assert seen["storeClone"]["said"] == "Stored as ada."
    assert '"voice": "ada"' in seen["storeClone"]["code"]
    stored = store.get("ada")
    assert stored is not None
    assert stored.reference.text == "Beep."
    assert "the speaker of this recording agrees" in stored.consent
    assert seen["longRecording"] == {"before": "Stop recording", "after": "Record"}


def test_over_plain_http_from_another_machine_it_says_why_recording_is_off(server: LiveServer, tmp_path: Path) -> None:
    url = server.url.replace("127.0.0.1", "another-machine.test")
    seen = drive(url, tmp_path, "insecure")["insecure"]
    assert (seen["secure"], seen["record"]) == (False, False)
    assert seen["why"].startswith("Recording is off")
    assert "https" in seen["why"]
    assert "ssh -L" in seen["why"]


def test_a_browser_that_keeps_no_data_shows_the_page_too(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "withoutStorage")
    assert seen["withoutStorage"] == {"server": "fake", "cards": 2}


def test_a_sample_that_the_browser_holds_back_asks_for_another_press(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "sampleRefused")["sampleRefused"]
    assert seen["error"] == "The sample is ready: press its button again to hear it."
    assert seen["pressed"] is None


def test_two_quick_presses_record_once(server: LiveServer, tmp_path: Path) -> None:
    assert drive(server.url, tmp_path, "recordTwice")["recordTwice"] == 1


def test_a_long_text_and_a_mix_fit_a_phone(server: LiveServer, tmp_path: Path) -> None:
    # The browser itself notes that the server does not tell the reading of so long a text.
    answer = test_playground.run_steps(server.url, tmp_path, "load", "onAPhone", driver="settings.mjs")
    seen = answer["results"]["onAPhone"]
    assert seen["code"] < 740, "the code is scrolled within the page"
    assert len(seen["lists"]) == 2
    assert all(width > 0.6 * seen["mix"] for width in seen["lists"]), "names of voices can be read"


def test_signs_are_seen_in_colours_of_the_visitors_own(server: LiveServer, tmp_path: Path) -> None:
    assert drive(server.url, tmp_path, "forcedColors")["forcedColors"] == [True, True, True]


def test_a_model_without_cloning_and_voices_shows_neither(tmp_path: Path) -> None:
    design = replace(FAKE_INFO, task="voice_design", speakers=(), speaker_infos={}, clones=False, embedding_size=0)
    with live_server(engine_of(design)) as server:
        seen = drive(server.url, tmp_path, "design")["design"]
    assert not seen["voices"]
    assert 'voice="alloy"' in seen["code"]


def test_the_reading_of_the_text_is_chosen(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "normalize")["normalize"]
    assert "normalize" not in seen["codes"][""]
    assert '"normalize": true' in seen["codes"]["all"]
    assert '"normalize": false' in seen["codes"]["none"]
    assert [stage for stage, _ in seen["stages"]] == list(STAGES)
    ticked = {stage for stage, checked in seen["stages"] if checked}
    assert "markup" in ticked
    assert ticked < set(STAGES)
    body = seen["some"].split("-d '")[1].split("' \\")[0]
    assert set(json.loads(body)["normalize"]) == {"markup", "units"}
    assert seen["hidden"]


@needs("curl", OPENAI_OF_NODE)
def test_each_code_is_the_same_request(tmp_path: Path) -> None:
    with live_server(config=ServerConfig(api_keys=(SecretStr("sk-secret"),))) as server:
        codes = test_playground.run_steps(server.url, tmp_path, "load", "code", driver="settings.mjs")["results"][
            "code"
        ]
        (tmp_path / "node_modules").symlink_to(FOLDER.parents[1] / OPENAI_OF_NODE)
        (tmp_path / "snippet.py").write_text(codes["python"])
        (tmp_path / "snippet.mjs").write_text(codes["javascript"])
        commands = {
            "curl": ["bash", "-c", codes["curl"]],
            "python": [sys.executable, "snippet.py"],
            "javascript": [path_of("node"), "snippet.mjs"],
        }
        spoken = {language: speech_of(command, tmp_path) for language, command in commands.items()}
    assert spoken["curl"] == spoken["python"] == spoken["javascript"]
    assert not any("sk-secret" in code for code in codes.values())
    (tmp_path / "speech.wav").write_bytes(spoken["curl"])
    samples, rate = soundfile.read(tmp_path / "speech.wav")
    assert len(samples) / rate == pytest.approx(len(TEXT) * FAKE_INFO.frame_s / SPEED, rel=0.05)


def speech_of(command: list[str], folder: Path) -> bytes:
    environment = {**os.environ, "VIVAVOCE_API_KEY": "sk-secret"}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    file = folder / "speech.wav"
    speech = file.read_bytes()
    file.unlink()
    return speech


def test_axe_finds_nothing(tmp_path: Path, store: VoiceStore) -> None:
    info = replace(FAKE_INFO, speakers=("heart", "michael", *(f"voice_{at}" for at in range(11))))
    with live_server(engine_of(info, store)) as server:
        server.engine.voices.add("mine", "Mixed.", "heart(1)+michael(1)")
        found = drive(server.url, tmp_path, "axe")["axe"]
    assert found == {"idle": [], "spoken": [], "error": [], "mix": [], "recording": [], "clone": []}


def test_every_script_and_style_is_served() -> None:
    assert {path.name for path in vivavoce_web.FOLDER.iterdir() if path.suffix in (".js", ".css", ".html")} == FILES
