"""Shells complete commands, options, choices and files by the script of `vivavoce completions`."""

import subprocess
import sys
from pathlib import Path

import pytest
from vivavoce_client.__main__ import main

from tests.support.programs import needs, path_of

COMPLETE = """
source {script}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
$(complete -p vivavoce | sed -E 's/.* -F ([^ ]+) .*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
"""The steps of bash when a user presses the key, with the script's own function."""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bash") / "vivavoce"
    with path.open("w", encoding="utf-8") as file:
        subprocess.run([sys.executable, "-m", "vivavoce_client", "completions", "bash"], stdout=file, check=True)
    return path


def completed(script: Path, words: str) -> set[str]:
    text = COMPLETE.format(script=script, words=words)
    done = subprocess.run(
        [path_of("bash"), "--norc", "-c", text], capture_output=True, text=True, check=True, cwd=script.parent
    )
    return set(done.stdout.split())


@needs("bash")
@pytest.mark.parametrize(
    ("words", "among", "not_among"),
    [
        ("vivavoce s", {"say", "serve"}, {"voices"}),
        ("vivavoce serve --ma", {"--max-streams", "--max-queue"}, {"--port"}),
        ("vivavoce serve --no", {"--no-eager", "--no-deterministic"}, set()),
        ("vivavoce serve --runner t", {"triton", "torch"}, {"auto"}),
        ("vivavoce voices d", {"delete"}, {"list"}),
        ("vivavoce voices add --c", {"--consent"}, set()),
        ("vivavoce bench l", {"load"}, {"compare"}),
        ("vivavoce serve --config viv", {"vivavoce"}, set()),
        ("vivavoce completions z", {"zsh"}, {"bash"}),
    ],
)
def test_bash_completes(script: Path, words: str, among: set[str], not_among: set[str]) -> None:
    found = completed(script, words)
    assert among <= found
    assert not not_among & found


@pytest.mark.parametrize(("shell", "mark"), [("zsh", "#compdef vivavoce"), ("fish", "complete -c vivavoce")])
def test_the_other_shells_have_a_script_of_the_same_options(
    shell: str, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completions", shell]) == 0
    script = capsys.readouterr().out
    assert mark in script
    assert "max-streams" in script


def test_without_shtab_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)  # as if it were not installed
    assert main(["completions", "bash"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "pip install 'vivavoce-speech[completions]'" in told
