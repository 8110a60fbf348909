"""Every command and snippet of the docs site runs against a server, or says why it does not."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from vivavoce_engine import Engine, EngineConfig, VoiceStore
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import cli, doctor
from vivavoce_server.config import load_settings

from tests.support.live_server import LiveServer, live_server
from tests.support.programs import needs, path_of
from tests.support.recordings import voice_like, wav
from tests.support.snippets import ROOT, Snippet, site_pages, snippets_of

ELSEWHERE = {
    "README.md": "tests/test_readme.py runs it with the shipped voice",
    "docs/clients.md": "tests/clients/real runs each with the client it is for",
    "examples/README.md": "tests/test_examples.py runs it with the shipped voice",
    "deploy/README.md": "it needs Docker or a cluster; tests/deploy checks its commands",
    "deploy/OPERATIONS.md": "it needs Docker or graphics cards; tests/deploy checks its commands",
    "deploy/ray/README.md": "it needs Ray; tests/ray runs it",
}
"""Page → the reason why its code is not run here."""
ADDRESSES = re.compile(r"http://(?:127\.0\.0\.1|localhost):8000|\bURL\b(?=$|[/\s])", re.MULTILINE)
PARSED = {"serve": cli, "doctor": doctor}
"""Commands that serve, or judge the machine, are parsed alone."""
NODE_MODULES = ROOT / "tests/clients/real/openai_npm/node_modules"
RUN_S = 240.0

PAGES = [page for page in site_pages() if page not in ELSEWHERE]
SNIPPETS = [snippet for page in site_pages() for snippet in snippets_of(page)]
CODE = [snippet for snippet in SNIPPETS if snippet.kind != "text" and snippet.page not in ELSEWHERE]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    engine = Engine(FakeRunner(), EngineConfig(), fake_voices(VoiceStore(tmp_path / "voices")))
    # The fake model reads anything; the shipped voice, of which the pages speak, gets words.
    with live_server(engine, load_settings({"normalize": "true"})[0]) as running:
        yield running


def environment(server: LiveServer) -> dict[str, str]:
    folder = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "VIVAVOCE_URL": server.url,
        "VIVAVOCE_API_KEY": "none",
    }


def run(command: list[str], folder: Path, server: LiveServer) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(server), capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def commands_of(code: str) -> list[str]:
    """The commands of a block, one a line, without those that are parsed alone."""
    lines = code.replace("\\\n", " ").splitlines()
    commands = []
    for line in filter(str.strip, lines):
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"VIVAVOCE_[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words[:1] == ["vivavoce"] and words[1] in PARSED:
            parser = argparse.ArgumentParser(exit_on_error=False)
            PARSED[words[1]].add_arguments(parser)
            parser.parse_args(words[2:])
        else:
            commands.append(line)
    return commands


def run_shell(code: str, folder: Path, server: LiveServer) -> None:
    """Runs a block of commands. A line after `$ command` is what the command prints."""
    if not code.startswith("$ "):
        run(["bash", "-euo", "pipefail", "-c", "\n".join(commands_of(code))], folder, server)
        return
    for dialogue in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, printed = dialogue.partition("\n")
        assert run(["bash", "-euo", "pipefail", "-c", command], folder, server) == printed


def run_snippet(snippet: Snippet, folder: Path, server: LiveServer) -> None:
    code = ADDRESSES.sub(server.url, snippet.code)
    if snippet.title is not None:
        (folder / snippet.title).write_text(code, encoding="utf-8")  # a command of the page runs it
    elif snippet.kind == "sh":
        run_shell(code, folder, server)
    elif snippet.kind == "python":
        run([sys.executable, "-c", code], folder, server)
    elif snippet.kind == "js":
        (folder / "snippet.mjs").write_text(code, encoding="utf-8")
        run([path_of("node"), "snippet.mjs"], folder, server)
    else:
        json.loads(code)


@needs("curl", "node", "tests/clients/real/openai_npm/node_modules")
@pytest.mark.parametrize("page", [page for page in PAGES if any(snippet.page == page for snippet in CODE)])
def test_the_code_of_a_page_runs(page: str, server: LiveServer, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    (folder / "me.wav").write_bytes(wav(voice_like(1, 3.0)))
    (folder / "node_modules").symlink_to(NODE_MODULES)
    for snippet in CODE:
        if snippet.page == page and snippet.reason is None:
            run_snippet(snippet, folder, server)


def test_a_file_that_a_page_writes_is_run_by_it() -> None:
    for titled in (snippet for snippet in CODE if snippet.title):
        commands = [snippet.code for snippet in CODE if snippet.page == titled.page and snippet.kind == "sh"]
        assert any(str(titled.title) in command for command in commands), titled.name


def test_what_is_not_run_says_why() -> None:
    not_run = {snippet.name: snippet.reason for snippet in CODE if snippet.reason is not None}
    print("\n".join(f"{name}: {reason}" for name, reason in not_run.items()))
    assert all(len(reason.split()) >= 3 for reason in not_run.values() if reason)
    assert len(not_run) < len(CODE) / 2
    assert set(ELSEWHERE) <= set(site_pages())


def test_the_pages_have_code() -> None:
    kinds = {snippet.kind for snippet in CODE if snippet.reason is None}
    assert kinds >= {"sh", "python", "js"}
    assert len(CODE) > 15


def test_blocks_are_found() -> None:
    names = {(snippet.kind, snippet.title) for snippet in snippets_of("docs/moving_from_openai.md")}
    assert {("python", "speak.py"), ("js", "speak.mjs"), ("sh", None)} <= names
    assert [snippet.kind for snippet in snippets_of("ARCHITECTURE.md")] == ["text"] * 4
