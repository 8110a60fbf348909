"""`vivavoce eval text` from the command line to a server on a real socket, with a listener that needs no model."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from vivavoce_client.protocol import VivavoceError
from vivavoce_eval import cli, text
from vivavoce_eval.waves import FRAME_SAMPLES, Samples

from tests.support.live_server import LiveServer, live_server

PAIRS = (
    "language\tkind\twritten\tspoken\tnote\n"
    "en\tmarkdown\tIt is **bold**.\tIt is bold.\t\n"
    "en\tpunctuation\t...\tthree dots\t\n"
    "en\tunchanged\tIt stays.\tIt stays.\t\n"
)


HEARD = {
    len("It is **bold**."): "It is starred bold.",
    len("It is bold."): "It is bold.",
    len("three dots"): "three dots",
}


class Counter:
    """Hears as many letters as there are frames, because the fake engine speaks a frame for a character."""

    def __init__(self, *_: object) -> None:
        pass

    def transcribe(self, samples: Samples) -> str:
        return HEARD.get(round(len(samples) / FRAME_SAMPLES), "")

    def normalise(self, text: str) -> str:
        return text.lower().replace(".", "")


@pytest.fixture(autouse=True)
def _judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "Transcriber", Counter)
    monkeypatch.setattr(text, "for_judges", lambda samples: np.asarray(samples))


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.tsv"
    file.write_text(PAIRS, encoding="utf-8")
    return file


def evaluate(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(["text", *arguments]))


def test_each_variant_has_its_figures(server: LiveServer, pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--url", server.url, "--pairs", str(pairs), "--show") == 0
    printed = capsys.readouterr().out
    last = json.loads(printed.splitlines()[-1])
    assert (last["pairs"], last["speakers"]) == (2, ["heart", "michael"])
    variants = last["variants"]
    # As written, the stars are heard. As read, they are not. "..." is refused: both of its words are missing.
    assert variants["raw"] == {"errors": 60.0, "wrong": 3, "words": 5, "right": 0, "nearly": 1, "texts": 2}
    assert variants["read"] == {"errors": 40.0, "wrong": 2, "words": 5, "right": 1, "nearly": 1, "texts": 2}
    assert variants["words"] == {"errors": 0.0, "wrong": 0, "words": 5, "right": 2, "nearly": 2, "texts": 2}
    assert "raw  'It is **bold**.'  1 of 3" in printed
    assert "heard    'It is starred bold.'" in printed


def test_other_refusals_end_the_command(server: LiveServer, pairs: Path) -> None:
    with pytest.raises(VivavoceError, match="nobody"):
        evaluate("--url", server.url, "--pairs", str(pairs), "--voices", "nobody")
    with pytest.raises(VivavoceError, match="cannot be read"):
        evaluate("--url", server.url, "--pairs", str(pairs.with_name("missing.tsv")))
