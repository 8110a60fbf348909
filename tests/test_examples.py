"""Every example runs, by the command of examples/README.md, against a real server on a real socket."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import wave
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_engine import EngineConfig, VoiceStore, load_engine
from vivavoce_voice import CHECKPOINT

from tests.support.cloning import base_engine
from tests.support.http_servers import http_server
from tests.support.live_server import LiveServer, live_server
from tests.support.recordings import voice_like, wav
from tests.support.speaking import assert_other_samples, assert_same_samples
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.waiting import HUNG_S, wait_until

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SAMPLE_RATE = 24_000
FRAME_SAMPLES = 1920
QUIETEST_RMS = 0.01
"""Least RMS of speech; the shipped voice has about 0.05."""


def commands() -> list[list[str]]:
    """The words of each command in examples/README.md, after `python`."""
    lines = re.findall(r"^    python (.+)$", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line) for line in lines]


def commands_of(script: str) -> list[list[str]]:
    return [words for words in commands() if words[0] == f"examples/{script}"]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(load_engine(str(CHECKPOINT), EngineConfig(device="cpu"))) as running:
        yield running


def run(words: list[str], folder: Path, **environment: str) -> str:
    """Runs a command of the README in a folder; returns its output."""
    done = subprocess.run(
        [sys.executable, ROOT / words[0], *words[1:]],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(path: Path) -> NDArray[np.int16]:
    """A WAV file's samples. Its header tells the true format and length."""
    with wave.open(str(path), "rb") as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, SAMPLE_RATE)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        assert len(samples) == file.getnframes()
    assert path.stat().st_size == 44 + samples.nbytes
    return samples


def duration_of(samples: NDArray[np.int16]) -> float:
    """Seconds, of audible speech. A server's are not whole frames, because it drops the silence before them."""
    rms = np.sqrt(np.mean((samples / 32768) ** 2))
    assert QUIETEST_RMS < rms < 0.5
    return len(samples) / SAMPLE_RATE


def reported(name: str, samples: NDArray[np.int16]) -> str:
    return f"{name}: {len(samples) / SAMPLE_RATE:.2f} s\n"


def test_the_readme_has_a_command_of_every_example() -> None:
    scripts = {f"examples/{path.name}" for path in EXAMPLES.glob("*.py")}
    assert {words[0] for words in commands()} == scripts
    assert len(scripts) == 5


def test_openai_client(server: LiveServer, tmp_path: Path) -> None:
    [command] = commands_of("openai_client.py")
    output = run(command, tmp_path, VIVAVOCE_URL=server.url)
    samples = read(tmp_path / "hello.wav")
    assert 1 < duration_of(samples) < 5
    assert output == reported("hello.wav", samples)


def test_embedded_engine(tmp_path: Path) -> None:
    [command] = commands_of("embedded_engine.py")
    output = run(command, tmp_path)
    first, second = (read(tmp_path / f"both-{number}.wav") for number in (1, 2))
    assert 0.5 < duration_of(first) < duration_of(second) < 6
    assert len(first) % FRAME_SAMPLES == len(second) % FRAME_SAMPLES == 0
    assert sorted(output.splitlines(True)) == [reported("both-1.wav", first), reported("both-2.wav", second)]


def test_live_text(server: LiveServer, tmp_path: Path) -> None:
    [command] = commands_of("live_text.py")
    output = run(command, tmp_path, VIVAVOCE_URL=server.url)
    samples = read(tmp_path / "answer.wav")
    assert 4 < duration_of(samples) < 14
    assert output == reported("answer.wav", samples)


def event_of(choices: Sequence[Mapping[str, object]]) -> bytes:
    """A server-sent event of a chat completion."""
    event = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": choices}
    return f"data: {json.dumps(event)}\n\n".encode()


class _ChatModel(BaseHTTPRequestHandler):
    """Streams one answer, as OpenAI's chat completions do; the last event has no choice."""

    asked: ClassVar[list[tuple[str, bytes]]] = []
    answer = ("Sound is", None, " a wave", " of pressure.")

    def do_POST(self) -> None:
        self.asked.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        choices = [[{"index": 0, "delta": {"content": content}, "finish_reason": None}] for content in self.answer]
        for choice in (*choices, []):
            self.wfile.write(event_of(choice))
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def chat_model(handler: type[_ChatModel] = _ChatModel) -> Iterator[str]:
    """The base URL of a server that answers every question alike."""
    with http_server(handler) as url:
        yield f"{url}/v1"


def test_live_text_of_a_chat_model(server: LiveServer, tmp_path: Path) -> None:
    [command] = commands_of("live_text.py")
    with chat_model() as url:
        environment = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "VIVAVOCE_URL": server.url}
        run([*command, "--llm", "some-model"], tmp_path, **environment)
    assert 1 < duration_of(read(tmp_path / "answer.wav")) < 5
    [(path, body)] = _ChatModel.asked
    request = json.loads(body)
    assert path == "/v1/chat/completions"
    assert (request["model"], request["stream"]) == ("some-model", True)
    assert request["messages"] == [{"role": "user", "content": "What is sound?"}]


class _Conversation(_ChatModel):
    """Holds the first answer after its first words, until the listener leaves."""

    asked: ClassVar[list[tuple[str, bytes]]] = []
    left = threading.Event()

    def do_POST(self) -> None:
        if self.asked:
            super().do_POST()
            return
        self.asked.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(event_of([{"index": 0, "delta": {"content": "This is an answer with no end, "}}]))
        self.wfile.flush()
        self.connection.recv(1)
        self.left.set()


def start_agent(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, str(EXAMPLES / "agent.py"), *words]
    return subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}, stdin=pipe, stderr=pipe, text=True)


def test_enter_interrupts_the_agent(tmp_path: Path) -> None:
    [command] = commands_of("agent.py")
    with live_server() as server, chat_model(_Conversation) as llm:
        agent = start_agent(tmp_path, *command[1:], "--llm", llm, "--model", "some-model", VIVAVOCE_URL=server.url)
        try:
            assert agent.stdin is not None
            agent.stdin.write("What has no end?\n")
            agent.stdin.flush()
            wait_until(lambda: server.engine.stats().running == 1)
            _, errors = agent.communicate("And what is sound?\n", timeout=HUNG_S)
        finally:
            agent.kill()
        assert agent.returncode == 0, errors
        assert _Conversation.left.wait(HUNG_S)
        assert server.engine.stats().running == 0
    first, second = (json.loads(body) for _, body in _Conversation.asked)
    assert (second["model"], second["stream"]) == ("some-model", True)
    assert first["messages"] == [{"role": "user", "content": "What has no end?"}]
    assert second["messages"] == [
        *first["messages"],
        {"role": "assistant", "content": "This is an answer with no end, "},
        {"role": "user", "content": "And what is sound?"},
    ]
    answer = "".join(token or "" for token in _ChatModel.answer)
    begun = len("This is an answer with no end, ")
    frames = len(read(tmp_path / "agent.wav")) / FRAME_SAMPLES
    assert len(answer) <= frames <= len(answer) + begun


SOUNDDEVICE = """
import threading, time

class RawOutputStream:
    def __init__(self, samplerate, channels, dtype, callback):
        assert (samplerate, channels, dtype) == (24000, 1, "int16")
        self.callback, self.played, self.open = callback, bytearray(), True
        self.thread = threading.Thread(target=self.play)

    def play(self):
        while self.open:
            block = bytearray(960)
            self.callback(memoryview(block), 480, None, None)
            self.played += block
            time.sleep(0.0001)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.open = False
        self.thread.join()
        open("played.pcm", "wb").write(self.played)
"""


def test_the_agent_plays_all_of_the_canned_answer(tmp_path: Path) -> None:
    (tmp_path / "sounddevice.py").write_text(SOUNDDEVICE)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with live_server() as server:
        agent = start_agent(tmp_path, PYTHONPATH=path, VIVAVOCE_URL=server.url)
        _, errors = agent.communicate("\nHello?\n", timeout=HUNG_S)
    assert agent.returncode == 0, errors
    assert not (tmp_path / "agent.wav").exists()
    played = np.frombuffer((tmp_path / "played.pcm").read_bytes(), "<i2")
    heard = np.count_nonzero(played)
    assert heard == pytest.approx(len(canned_answer()) * FRAME_SAMPLES, rel=0.01)


def canned_answer() -> str:
    for node in ast.parse((EXAMPLES / "agent.py").read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="CANNED")], value=ast.Constant(value=str(text))):
                return text
    raise AssertionError("examples/agent.py has no CANNED")


def test_the_agent_has_the_lines_that_the_readme_says() -> None:
    source = (EXAMPLES / "agent.py").read_text(encoding="utf-8")
    lines = 0
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "main":
            lines += len(ast.unparse(node).splitlines()) - (ast.get_docstring(node) is not None)
    assert 50 < lines <= 60


@pytest.fixture(scope="module")
def cloning_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server on a small random checkpoint that clones, and stores voices."""
    folder = tmp_path_factory.mktemp("cloning")
    checkpoint = write_checkpoint(folder / "base", "tiny", "base")
    with live_server(base_engine(checkpoint, VoiceStore(folder / "voices", 10))) as running:
        yield running


def test_clone(cloning_server: LiveServer, tmp_path: Path) -> None:
    sent_along, kept = commands_of("clone.py")
    assert "--keep" in kept
    (tmp_path / "me.wav").write_bytes(wav(voice_like(1, 1.2)))
    output = run(sent_along, tmp_path, VIVAVOCE_URL=cloning_server.url)
    cloned = read(tmp_path / "cloned.wav")
    assert 0 < duration_of(cloned) < 21
    assert output == reported("cloned.wav", cloned)

    sent_along[2] = kept[2]  # one text, so that both ways can be compared
    transcript = ["--transcript", "The lazy dog"]
    output = run([*kept, *transcript], tmp_path, VIVAVOCE_URL=cloning_server.url)
    by_name = read(tmp_path / "kept.wav")
    assert 0 < duration_of(by_name) < 21
    assert output == reported("kept.wav", by_name)
    assert "mine" in cloning_server.engine.voices.names()
    run([*sent_along, *transcript], tmp_path, VIVAVOCE_URL=cloning_server.url)
    assert_same_samples(read(tmp_path / "cloned.wav"), by_name)
    (tmp_path / "me.wav").write_bytes(wav(voice_like(2, 1.2)))
    run([*sent_along, *transcript], tmp_path, VIVAVOCE_URL=cloning_server.url)
    assert_other_samples(read(tmp_path / "cloned.wav"), by_name)


def test_clone_keeps_no_voice_without_consent(cloning_server: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "me.wav").write_bytes(wav(voice_like(1, 1.2)))
    script = str(EXAMPLES / "clone.py")
    command = [sys.executable, script, "me.wav", "Hello.", "--keep", "other", "--url", cloning_server.url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HUNG_S, check=False)
    assert done.returncode == 2
    assert "--keep needs --consent" in done.stderr
    assert "other" not in cloning_server.engine.voices.names()
    assert not (tmp_path / "cloned.wav").exists()
