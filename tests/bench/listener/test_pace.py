"""`vivavoce bench pace`: figures of words whose times are known, and the command against a server."""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from vivavoce_bench.listener import pace
from vivavoce_bench.listener.pace import Pace, TooFewWords, drift, long_texts, pace_of, percent
from vivavoce_client import Client
from vivavoce_client.protocol import ApiError
from vivavoce_client.words import SpokenWord
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices

from tests.support.live_server import LiveServer, live_server


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


def run(*line: str) -> int:
    """Runs the command with these arguments."""
    parser = argparse.ArgumentParser()
    pace.add_arguments(parser)
    return pace.run(parser.parse_args(line))


def command(*line: str) -> int:
    """Runs the command over three short texts."""
    return run("--texts", "3", "--chars", "60", *line)


def words(*seconds: tuple[float | None, float | None]) -> list[SpokenWord]:
    """Words of four characters, with a blank between them, at these times."""
    return [SpokenWord("word", *times, 5 * at, 5 * at + 4) for at, times in enumerate(seconds)]


def test_a_steady_voice_has_the_same_pace_everywhere() -> None:
    """Six words of 0.4 s with pauses of 0.1 s, after 1 s of silence: 29 characters in 2.9 s."""
    found = pace_of(words(*((1 + at / 2, 1.4 + at / 2) for at in range(6))), 4.0)
    assert (found.chars, found.words, found.words_timed, found.speech_s, found.file_s) == (29, 6, 1.0, 2.9, 4.0)
    assert found.chars_per_s == pytest.approx(10)
    assert found.words_per_min == pytest.approx(360 / 2.9)
    assert found.thirds == pytest.approx((10, 10, 10), abs=1e-3)
    # A third has 0.9667 s: two pauses of 0.1 s in the middle one, one and two thirds in each of the others.
    assert found.articulation == pytest.approx((9.667 / 0.8, 9.667 / 0.7667, 9.667 / 0.8), rel=0.05)


def test_a_hurrying_voice_drifts() -> None:
    """Words of a third of a second, then of a sixth: the last third of the time has twice the words of the first."""
    times = [(at / 3, (at + 1) / 3) for at in range(6)] + [(2 + at / 6, 2 + (at + 1) / 6) for at in range(12)]
    found = pace_of(words(*times), 4.0)
    assert found.thirds[2] / found.thirds[0] == pytest.approx(2, rel=0.03)
    assert drift([found] * 3).value == pytest.approx(2, rel=0.03)
    assert drift([found] * 3, articulation=True).value == pytest.approx(2, rel=0.03)


def test_words_without_times_are_passed_over_and_too_few_are_a_fault() -> None:
    found = pace_of(words((None, None), (1.0, 1.4), (None, None), (2.0, 2.4)), 3.0)
    assert (found.chars, found.words, found.words_timed) == (14, 4, 0.5)
    assert found.speech_s == 1.4
    with pytest.raises(TooFewWords, match="1 words of 2"):
        pace_of(words((None, None), (1.0, 1.4)), 3.0)


def test_the_interval_is_that_of_the_texts() -> None:
    """Drifts of 1, 1.21 and 1.1 ** 4: logarithms 0, 2 and 4 times that of 1.1, whose mean has 4.303 * 2 / 3 ** 0.5."""
    one = Pace(10, 2, 1.0, 1.0, 1.0, (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
    found = drift([replace(one, thirds=(1.0, 1.0, 1.1**power)) for power in (0, 2, 4)])
    half = 4.303 * 2 / math.sqrt(3) * math.log(1.1)
    assert found.value == pytest.approx(1.21)
    assert found.low == pytest.approx(1.21 * math.exp(-half))
    assert found.high == pytest.approx(1.21 * math.exp(half))
    assert percent(found) == f"+21.0 % ({121 * math.exp(-half) - 100:+.1f} to {121 * math.exp(half) - 100:+.1f})"


def test_long_texts_are_whole_sentences_that_come_once_before_any_comes_again() -> None:
    prompts = [f"Sentence {number}." for number in range(10)]
    texts = long_texts(prompts, 3, 30, seed=1)
    assert all(len(text) >= 30 for text in texts)
    assert sorted(". ".join(texts).replace("..", ".").split(". ")[:9]) != prompts[:9], "the order is random"
    assert sorted(f"{part.strip('.')}." for text in texts for part in text.split(". "))[:1] == ["Sentence 0."]
    assert len({part for text in texts for part in text.rstrip(".").split(". ")}) == 9
    assert long_texts(prompts, 3, 30, seed=1) == texts != long_texts(prompts, 3, 30, seed=2)
    assert " " not in long_texts(["一。", "二。"], 1, 6, seed=0)[0]


def test_each_layout_against_a_server(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """The fake engine speaks a character in 80 ms, always."""
    assert command("--url", server.url, "--layout", "whole", "streaming", "live", "--seed", "3") == 0
    *shown, last = capsys.readouterr().out.splitlines()
    document = json.loads(last)
    assert document["bench"] == "pace"
    assert document["arguments"]["chars"] == 60
    assert list(document["paces"]) == ["whole", "streaming", "live"]
    for paces in document["paces"].values():
        assert [each["words_timed"] for each in paces] == [1.0] * 3
        assert all(each["chars"] / each["speech_s"] == pytest.approx(12.5, rel=0.02) for each in paces)
    assert document["drift"]["live"]["value"] == pytest.approx(1, abs=0.05)
    assert document["against_first"].keys() == {"streaming", "live"}
    assert [line.split()[0] for line in shown[:4]] == ["layout", "whole", "streaming", "live"]


def test_what_the_layouts_ask_for(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, object]]] = []
    stream, live = Client.stream, Client.live

    def note(kind: str, method: Callable[..., object]) -> Callable[..., object]:
        def noted(*args: object, **options: object) -> object:
            asked.append((kind, options))
            return method(*args, **options)

        return noted

    monkeypatch.setattr(Client, "stream", note("stream", stream))
    monkeypatch.setattr(Client, "live", note("live", live))
    assert command("--url", server.url, "--layout", "live", "streaming", "whole", "--language", "english") == 0
    kinds = [(kind, options.get("non_streaming_mode"), options["seed"]) for kind, options in asked]
    assert kinds == [
        each for seed in range(3) for each in (("live", None, seed), ("stream", False, seed), ("stream", True, seed))
    ]
    assert all(options["language"] == "english" for _, options in asked)


def test_too_few_texts_are_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--texts", "2") == 2
    assert "--texts must be at least 3" in capsys.readouterr().err
    for word_ms in ("nan", "-1", "inf"):
        assert run(f"--word-ms={word_ms}") == 2
        assert "--word-ms must be from 0 to 60000" in capsys.readouterr().err
    assert run("--prompts", "nowhere") == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_model_without_word_times_names_what_would_find_them() -> None:
    info = replace(FAKE_INFO, word_times=False)
    engine = Engine(FakeRunner(info), EngineConfig(), fake_voices(info=info))
    with live_server(engine) as server, pytest.raises(ApiError, match="vivavoce eval align"):
        command("--url", server.url)


def test_speech_that_does_not_end_leaves_its_text_out(capsys: pytest.CaptureFixture[str]) -> None:
    runner = FakeRunner(frames_per_character=1000)
    with live_server(Engine(runner, EngineConfig(), fake_voices())) as server:
        assert command("--url", server.url) == 1
    printed = capsys.readouterr()
    assert "INVALID" in printed.out
    assert "text 2: " in printed.err
