"""The JavaScript client as an npm package: packed, installed, its types and its sessions, and speech from a server."""
# ruff: noqa: RUF001 - the signs of other scripts are meant

import base64
import json
import math
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vivavoce_client import SpokenWord, srt, vtt
from vivavoce_client.words import parse_turns, parse_words
from vivavoce_server import ServerConfig

from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import pcm_of
from tests.support.programs import needs, path_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients/web"
SCRIPTS = Path(__file__).parent / "javascript"
TYPESCRIPT = ROOT / "tests/web/node_modules/typescript/bin/tsc"
STAND_IN_FOR_WS = "export const WebSocket = globalThis.nativeWebSocket;\n"

pytestmark = needs("node", "npm")
needs_typescript = needs("tests/web/node_modules")


def run(folder: Path, *command: str | Path) -> str:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment, cwd=folder
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def run_script(folder: Path, *words: str) -> dict[str, Any]:
    """Runs speak.mjs, with a WebSocket in Node's versions that hide it behind an option too."""
    node = path_of("node")
    has_socket = run(folder, node, "-p", "typeof WebSocket").strip() == "function"
    options = () if has_socket else ("--experimental-websocket",)
    answer: dict[str, Any] = json.loads(run(folder, node, *options, "speak.mjs", *words))
    return answer


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The tarball that `npm pack` builds, and npm's report of it."""
    folder = tmp_path_factory.mktemp("packed")
    [report] = json.loads(run(folder, path_of("npm"), "pack", PACKAGE, "--json"))
    return folder / report["filename"], report


@pytest.fixture
def installed(packed: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A folder with the package installed from its tarball, and the scripts of this test."""
    options = ("--offline", "--no-audit", "--no-fund", "--ignore-scripts")
    run(tmp_path, path_of("npm"), "install", *options, packed[0])
    for script in SCRIPTS.iterdir():
        shutil.copy(script, tmp_path)
    return tmp_path


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live_server(config=ServerConfig(model_name="vivavoce")) as running:
        yield running


def test_the_package_has_what_it_needs_and_no_page(packed: tuple[Path, dict[str, Any]]) -> None:
    typed = ("audio", "client", "events", "outputs", "player", "session", "subtitles", "tape")
    scripts = {f"vivavoce_web/{name}.js" for name in (*typed, "worklet")}
    types = {f"types/{name}.d.ts" for name in typed}
    assert {file["path"] for file in packed[1]["files"]} == {"package.json", "README.md", *scripts, *types}


def test_the_version_is_the_projects(packed: tuple[Path, dict[str, Any]]) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [version] = re.findall(r'^version = "(.+)"$', project, re.MULTILINE)
    assert packed[1]["version"] == version


@needs_typescript
def test_the_types_are_those_of_the_jsdoc(tmp_path: Path) -> None:
    run(tmp_path, path_of("node"), TYPESCRIPT, "-p", PACKAGE, "--outDir", tmp_path)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.d.ts")}
    kept = {path.name: path.read_text(encoding="utf-8") for path in (PACKAGE / "types").iterdir()}
    assert made == kept, "the types are old: make client-types"


@needs_typescript
def test_a_program_in_typescript_has_types(installed: Path) -> None:
    options = ("--noEmit", "--strict", "--target", "es2022", "--lib", "es2023,dom", "--module", "nodenext")
    run(installed, path_of("node"), TYPESCRIPT, *options, "typed.ts")


@pytest.mark.parametrize("script", ["session.test.mjs", "player.test.mjs", "events.test.mjs"])
def test_sessions_and_the_player(installed: Path, script: str) -> None:
    output = run(installed, path_of("node"), "--test", "--test-reporter", "tap", script)
    written = len(re.findall(r"^test\(", (SCRIPTS / script).read_text(encoding="utf-8"), re.MULTILINE))
    assert len(re.findall(r"^ok ", output, re.MULTILINE)) == written > 0


PARTS = (
    "Yes!",
    "no.",
    "Straße,",
    "don't",
    "--",
    "-->",
    "<b>",
    "&amp;",
    "“quoted”",
    "שלום",
    "😀",
    "{\\an8}",
    "\u200f…",
    "Dr.",
    "Bros.",
    "etc.",
    "J.",
    "(U.S.",
    "3.",
    "1984.",
    "Wait...",
    "“Éa.",
)
CHINESE = "那是四月里一个晴朗寒冷的日子，时钟敲了十三下。"


def spoken_text(rng: random.Random) -> dict[str, Any]:
    """A text, its words and their times, some unknown, and perhaps turns."""
    picked = [rng.choice([*PARTS, CHINESE * rng.randint(1, 3), "word" * rng.randint(1, 15)]) for _ in range(40)]
    text = rng.choice(["", '"', " ("]) + "".join(
        part + rng.choice([" ", " ", "\n", "—", " [pause:1s] "]) for part in picked
    )
    words, clock_s = [], 0.0
    for found in re.finditer(rng.choice([r"\S+", r"[\w']+"]), text):
        start_s = clock_s + rng.choice([0, 0, 0.05, 0.3, 0.8])
        clock_s = start_s + rng.uniform(0, 0.9)
        word = SpokenWord(found.group(), round(start_s, 3), round(clock_s, 3), *found.span()).fields()
        words.append(word if rng.random() < 0.8 else word | {"start": None, "end": None})
    at_s = (0.0, *sorted(round(rng.uniform(0, clock_s), 3) for _ in range(3)))
    turns = [
        {"index": at, "voice": rng.choice([None, "a<b", "heart"]), "start": s, "end": s} for at, s in enumerate(at_s)
    ]
    return {
        "text": rng.choice([text, text, "another"]),
        "words": words,
        "turns": rng.choice([[], turns]),
        "audio_s": rng.choice([None, clock_s, clock_s + 0.4]),
    }


def test_its_subtitles_are_those_of_the_python_client(installed: Path) -> None:
    rng = random.Random(5)
    cases = [spoken_text(rng) for _ in range(200)]
    assert any(case["audio_s"] for case in cases)
    (installed / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    answers = json.loads(run(installed, path_of("node"), "subtitles.mjs", "cases.json"))
    for case, answer in zip(cases, answers, strict=True):
        given = (parse_words(case["words"]), case["text"], parse_turns(case["turns"]), case["audio_s"] or math.inf)
        assert answer == [srt(*given), vtt(*given)]


def test_it_speaks(installed: Path, server: LiveServer) -> None:
    answer = run_script(installed, server.url)
    assert_speaks(answer)
    assert answer["refused"] == {"name": "VivavoceError", "code": "voice_not_found", "param": "voice"}
    assert answer["voices"] == ["heart", "michael"]
    assert (answer["code"], answer["late"], answer["open"]) == (1000, "session_closed", False)
    assert answer["player"] == "function"


def assert_speaks(answer: dict[str, Any]) -> None:
    assert base64.b64decode(answer["first"]["pcm"]) == pcm_of(5, len("Hello there"))
    assert base64.b64decode(answer["second"]["pcm"]) == pcm_of(6, len("Hi!"))
    assert (answer["first"]["duration_ms"], answer["first"]["cancelled"]) == (880, False)


def test_where_node_has_no_websocket_the_package_ws_is_used(installed: Path, server: LiveServer) -> None:
    assert run_script(installed, server.url, "ws") == {"code": "no_websocket"}
    stand_in = installed / "node_modules/ws"
    stand_in.mkdir()
    (stand_in / "package.json").write_text('{"name": "ws", "type": "module", "exports": "./index.js"}')
    (stand_in / "index.js").write_text(STAND_IN_FOR_WS)
    assert_speaks(run_script(installed, server.url, "ws"))
