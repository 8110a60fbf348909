"""`vivavoce eval quality` from the command line to a server on a real socket, with judges that need no model."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from vivavoce_client.protocol import VivavoceError
from vivavoce_engine.fake_runner import tone
from vivavoce_eval import cli, errors, extras, figures, hearing, quality
from vivavoce_eval.judges import Embedding, Opinion, Pitch
from vivavoce_eval.sentences import pick, read_sentences
from vivavoce_eval.waves import Samples, read_wav

from tests.support.live_server import LiveServer, live_server

SENTENCES = 6


class Echo:
    """Hears nothing, and is never wrong."""

    def __init__(self, *_: object) -> None:
        pass

    def transcribe(self, samples: Samples) -> str:
        return ""

    def normalise(self, text: str) -> str:
        return text

    def embed(self, samples: Samples) -> Embedding | None:
        return np.full(256, 1 / 16, np.float32)


@pytest.fixture(autouse=True)
def _judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "Transcriber", Echo)
    monkeypatch.setattr(quality, "SpeakerEncoder", Echo)
    monkeypatch.setattr(quality, "JUDGES", ())
    monkeypatch.setattr(hearing, "word_errors", lambda truth, heard: (0, 3))
    monkeypatch.setattr(hearing, "dnsmos", lambda samples: Opinion(3.3, 3.5, 4.0, 3.8))
    monkeypatch.setattr(hearing, "pitch", lambda samples: Pitch(150.0, 0.5))
    monkeypatch.setattr(hearing, "for_judges", lambda samples: samples)


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


def evaluate(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(["quality", "--limit", str(SENTENCES), *arguments]))


def test_sentences_are_spoken_by_number_and_kept(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "run.json"
    status = evaluate("--url", server.url, "--keep", str(tmp_path / "wavs"), "--save", str(saved), "--note", "tones")
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == (0 if last["passed"] else 1)
    run = figures.load(saved)
    speakers = run.about["speakers"]
    assert [run.about[name] for name in ("note", "source", "text_mode")] == ["tones", server.url, "whole"]
    sentences = pick(read_sentences(), SENTENCES)
    assert [row.number for row in run.rows] == [sentence.number for sentence in sentences]
    for sentence, row in zip(sentences, run.rows, strict=True):
        assert row.speaker == speakers[sentence.number % len(speakers)]
        expected = tone(sentence.number, 0, len(sentence.text))  # a frame a character; the seed is the pitch
        kept = read_wav(tmp_path / "wavs" / f"{sentence.number:03d}.wav")
        np.testing.assert_allclose(kept, expected, atol=2e-4)
        assert row.duration_s == pytest.approx(len(expected) / 24_000)


def test_kept_speech_is_judged_the_same(server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wavs, saved = str(tmp_path / "wavs"), [tmp_path / f"{number}.json" for number in range(2)]
    evaluate("--url", server.url, "--keep", wavs, "--save", str(saved[0]))
    speakers = figures.load(saved[0]).about["speakers"]
    evaluate("--wavs", wavs, "--voices", *speakers, "--save", str(saved[1]))
    first, second = (figures.load(file).rows for file in saved)
    assert [row.duration_s for row in first] == [row.duration_s for row in second]
    assert capsys.readouterr().out.count('"gates"') == 2


def test_a_baseline_is_an_earlier_run(server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "run.json"
    evaluate("--url", server.url, "--save", str(saved), "--baseline", "none", "--teacher", "none")
    assert "DNSMOS P808:" not in capsys.readouterr().out
    evaluate("--url", server.url, "--baseline", str(saved), "--teacher", "none")
    assert "DNSMOS P808: 3.8 >= 3.65" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--wavs", "{folder}"], "has no sound file"),
        (["--url", "{url}", "--baseline", "{folder}/missing.json"], "missing.json"),
        (["--url", "{url}", "--voices", "nobody"], "nobody"),
        (["--url", "http://127.0.0.1:9"], "no server answers"),
    ],
)
def test_what_goes_wrong_is_named(server: LiveServer, tmp_path: Path, arguments: list[str], message: str) -> None:
    given = [argument.format(folder=tmp_path, url=server.url) for argument in arguments]
    with pytest.raises(VivavoceError, match=message):
        evaluate(*given)


def test_an_unknown_kind_of_report_is_refused_before_anything_is_spoken(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--report", "report.pdf") == 2
    assert ".html or .md" in capsys.readouterr().err


def test_a_missing_judge_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(errors.MissingJudge, match=r"faster_whisper .*vivavoce-speech\[eval\].*--no-deps Resemblyzer"):
        extras.need("faster_whisper")
