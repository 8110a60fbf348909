"""The playground in a real browser: its display, the audio at the loudspeakers, and no requests to other hosts.

npm ci --prefix tests/web && apt-get install chromium
"""

import json
import math
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import soundfile
import vivavoce_web
from pydantic import SecretStr
from vivavoce_engine.fake_runner import FAKE_CHAT_INFO, FakeRunner
from vivavoce_server import ServerConfig

from tests.support.chatting import chat_server
from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import pcm_of
from tests.support.programs import needs, path_of
from tests.support.waiting import wait_until

FOLDER = Path(__file__).parent
LOUDNESS = 0.3 / math.sqrt(2)
LOUDNESS_OFF = 0.15
"""Part by which a browser's sound may be off: a busy machine leaves holes in what its audio thread hands on."""
"""Of the fake engine's tone: its effective value."""
LOUDNESS_OFF = 0.15
"""Part by which a browser's sound may be off: a busy machine leaves holes in what its audio thread hands on."""
FRAME_S = FakeRunner().info.frame_s
EAR_S = FRAME_S / 2
"""Less than any sound that the page could lose or repeat. The capturing ScriptProcessor itself drops a block of 128
samples when the page's thread and the audio thread meet at its buffer.
"""

needs_browser = needs("chromium", "node", "tests/web/node_modules")


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


def run_steps(url: str, folder: Path, *steps: str, driver: str = "playground.mjs") -> dict[str, Any]:
    """Runs the steps in a new browser. Returns their results and the errors in the browser's console."""
    command = [path_of("node"), str(FOLDER / driver), f"{url}/", path_of("chromium"), str(folder), *steps]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def drive(url: str, folder: Path, *steps: str, driver: str = "playground.mjs") -> dict[str, Any]:
    """Runs the steps in a new browser; nothing may have been written to its console as an error."""
    answer = run_steps(url, folder, *steps, driver=driver)
    assert answer["complaints"] == []
    results: dict[str, Any] = answer["results"]
    return results


def assert_speech(heard: dict[str, float], text: str) -> None:
    assert heard["seconds"] == pytest.approx(len(text) * FRAME_S, abs=EAR_S)
    assert heard["rms"] == pytest.approx(LOUDNESS, rel=LOUDNESS_OFF)


@needs_browser
def test_a_conversation_is_heard_read_and_interrupted(tmp_path: Path) -> None:
    with chat_server(runner=FakeRunner(FAKE_CHAT_INFO, step_s=0.02)) as server:
        seen = drive(server.url, tmp_path, "chat")["chat"]
        wait_until(lambda: server.engine.stats().running == 0)
    assert seen["panels"] == {"stage": False, "code": False}
    answer = "You said: Hello there."
    assert seen["first"]["turns"] == ["Hello there.", answer]
    assert_speech(seen["first"], answer)
    assert seen["stopped"]
    assert seen["last"] == ["Again?", "You said: Again?"]
    assert seen["cleared"] == []


@needs_browser
def test_it_speaks_is_interrupted_and_speaks_as_one_types(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "load", "speak", "again", "interrupt", "typing", "blank")
    assert seen["load"] == {
        "voices": ["Heart", "Michael"],
        "languages": ["Auto", "English"],
        "server": "fake",
        "clone": True,
        "instructions": True,
    }
    assert_speech(seen["speak"], "Hello there, browser.")
    figures = seen["speak"]["figures"]
    assert figures["spoken"] == "1.7 s"
    assert figures["ttfa"].endswith(" ms")
    assert float(figures["rtf"]) >= 0
    assert_speech(seen["again"], "Once more!")
    assert seen["interrupt"] == {"after": {"seconds": 0, "rms": 0}, "stopDisabled": True, "error": False}
    assert_speech(seen["typing"], "One two three four five six")
    assert seen["blank"] == "There is no text to speak."
    assert server.engine.stats().running == 0


@needs_browser
@needs("curl")
def test_files_code_and_cloning(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "load", "download", "clone", "code", "keyboard")
    with wave.open(str(tmp_path / "vivavoce.wav")) as file:
        pcm = file.readframes(file.getnframes())
        assert file.getnframes() == 17 * 1920
    assert any(pcm == pcm_of(pitch, 17) for pitch in range(400)), "the file is not the utterance"
    for name in ("vivavoce.mp3", "vivavoce.opus"):
        assert seconds_of(tmp_path / name) == pytest.approx(17 * FRAME_S, abs=0.06)
    assert "s in use" in seen["clone"]["recorded"]
    assert seen["clone"]["uploaded"].startswith("1.4 s in use, which is short")
    assert_speech(seen["clone"]["spoken"], "In your voice.")
    # Every control can be reached, in the order of the page.
    assert seen["keyboard"][:5] == ["text", "speak", "typing", "play", "seek"]
    assert seen["keyboard"][5:10] == ["volume", "save", "save-srt", "save-vtt", "along-text"]
    assert seen["keyboard"][10:13] == ["voice-0", "BUTTON", "language"]
    assert {"seed", "instructions", "format", "download", "copy"} <= set(seen["keyboard"])
    assert {"show-curl", "show-python", "show-javascript"} <= set(seen["keyboard"])
    run_code(seen["code"], tmp_path)


def seconds_of(path: Path) -> float:
    samples, rate = soundfile.read(path)
    return len(samples) / float(rate)


def run_code(code: dict[str, str], folder: Path) -> None:
    """The code that the page shows works as it is."""
    (folder / "snippet.py").write_text(code["python"])
    for command in (["bash", "-c", code["curl"]], [sys.executable, "snippet.py"]):
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr
        assert seconds_of(folder / "speech.mp3") == pytest.approx(len("""It's "quoted".""") * FRAME_S, abs=0.06)
        (folder / "speech.mp3").unlink()


@needs_browser
def test_it_shows_what_will_be_said(server: LiveServer, tmp_path: Path) -> None:
    answer = run_steps(server.url, tmp_path, "load", "reading")
    seen = answer["results"]["reading"]
    assert seen["bold"] == {"said": "This is bold and [pause:0.5s] plain.", "changed": ["bold"]}
    assert seen["two"] == {"said": "One is two is three.", "changed": ["One", "two", "three."]}
    assert seen["focused"] == "reading-text", "a long reading can be scrolled by keyboard"
    assert '"normalize": false' in seen["code"]
    assert "nothing in it can be spoken" in seen["refused"]
    assert "reading-warning" in seen["described"].split()
    assert seen["silent"]["rms"] == 0
    assert server.engine.stats().running == 0
    # The browser itself notes the refused text.
    assert all("400" in complaint for complaint in answer["complaints"])


@needs_browser
def test_no_width_and_no_colour_scheme_breaks_the_layout(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "load", "shoot")
    assert seen["shoot"] == {"light-390": 0, "light-1280": 0, "dark-390": 0, "dark-1280": 0}


@needs_browser
def test_it_asks_for_the_key(tmp_path: Path) -> None:
    with live_server(config=ServerConfig(api_keys=(SecretStr("sk-right"),))) as server:
        seen = run_steps(server.url, tmp_path, "wrongKey")
        assert "API key" in seen["results"]["wrongKey"]["error"]
        assert seen["results"]["wrongKey"]["foreign"] == "The API key has a character that no header can carry"
        assert_speech(seen["results"]["wrongKey"], "Hello!")
        # The browser itself notes each refused request.
        assert all("401" in complaint for complaint in seen["complaints"])


@needs("node", "tests/web/node_modules")
def test_types_of_the_javascript() -> None:
    command = [
        path_of("node"),
        str(FOLDER / "node_modules/typescript/bin/tsc"),
        "--noEmit",
        "--allowJs",
        "--checkJs",
        "--strict",
    ]
    command += ["--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"]
    command += ["--lib", "es2023,dom,dom.iterable", *map(str, vivavoce_web.FOLDER.glob("*.js"))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout


def test_the_page_comes_from_here_and_loads_nothing_from_elsewhere(server: LiveServer) -> None:
    page = httpx.get(server.url)
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    scripts = {file.name for file in vivavoce_web.FOLDER.glob("*.js")}
    assert "preview.js" in scripts
    for name in ("style.css", *sorted(scripts)):
        asset = httpx.get(f"{server.url}/playground/{name}")
        assert asset.status_code == 200
        assert asset.headers["content-type"].split(";")[0] in ("text/css", "text/javascript")
    for name in ("__init__.py", "..%2F__init__.py", "nothing.js"):
        assert httpx.get(f"{server.url}/playground/{name}").status_code == 404
