"""The requests to each kind of server, and the bundled texts."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from vivavoce_bench.listener.live_text import words
from vivavoce_bench.listener.load import Closed, LoadPlan
from vivavoce_bench.listener.prompts import (
    BUNDLED,
    CHARACTERS_PER_S,
    ClassOrder,
    PromptOrder,
    TextClass,
    load_classes,
    load_prompts,
)
from vivavoce_bench.listener.servers import SERVERS, Target

from tests.support.speech_servers import ScriptedSocket, run_live, texts, tone

PCM = {"input": "Hi.", "response_format": "pcm"}


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (
            Target("vivavoce", ""),
            {"voice": "alloy", "seed": 7, "stream_format": "audio", "non_streaming_mode": False},
        ),
        (
            Target("vivavoce", "", "sse", voice="heart", model="m", fields={"non_streaming_mode": True}),
            {"voice": "heart", "model": "m", "seed": 7, "stream_format": "sse", "non_streaming_mode": True},
        ),
        (
            Target("vllm-omni", ""),
            {"voice": "vivian", "stream": True, "stream_format": "audio", "non_streaming_mode": False},
        ),
        (
            Target("vllm-omni", "", "sse"),
            {"voice": "vivian", "stream": True, "stream_format": "sse", "non_streaming_mode": False},
        ),
        (
            Target("sglang-omni", ""),
            {"voice": "default", "seed": 7, "stream": True, "non_streaming_mode": False},
        ),
        (
            Target("nari-qwen3-tts", ""),
            {"voice": "ryan", "seed": 7, "stream": True, "non_streaming_mode": False},
        ),
        (
            Target("vivavoce", "", frames_per_char=0.83),
            {"voice": "alloy", "seed": 7, "stream_format": "audio", "non_streaming_mode": False, "max_new_tokens": 2},
        ),
        (Target("kokoro-fastapi", ""), {"voice": "af_heart", "model": "kokoro", "stream": True}),
        (
            Target("openai", "", model="tts-1"),
            {"voice": "alloy", "model": "tts-1", "stream_format": "audio"},
        ),
        (
            Target("openai", "", "sse"),
            {"voice": "alloy", "model": "gpt-4o-mini-tts", "stream_format": "sse"},
        ),
    ],
)
def test_bodies(target: Target, body: dict[str, object]) -> None:
    assert target.body("Hi.", 7) == {**PCM, **body}


def test_what_a_server_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="kokoro-fastapi has no websocket; it has http"):
        Target("kokoro-fastapi", "", "websocket")
    with pytest.raises(ValueError, match="there is no server 'x'"):
        Target("x", "")
    with pytest.raises(ValueError, match="a live text's length is not known"):
        Target("vivavoce", "", "websocket", frames_per_char=1.0)


@pytest.mark.parametrize(
    ("kind", "greetings", "done", "sent"),
    [
        (
            "vllm-omni",
            [],
            "session.done",
            [
                {"type": "session.config", "voice": "vivian", "response_format": "pcm", "stream_audio": True},
                {"type": "input.text", "text": "Hi "},
                {"type": "input.text", "text": "you."},
                {"type": "input.done"},
            ],
        ),
        (
            "nari-qwen3-tts",
            ["session.created", "request.configured"],
            "response.done",
            [
                {"type": "request.start", "voice": "ryan", "response_format": "pcm", "seed": 0},
                {"type": "input_text.append", "sequence": 0, "text": "Hi "},
                {"type": "input_text.append", "sequence": 1, "text": "you."},
                {"type": "input_text.end", "sequence": 2},
            ],
        ),
    ],
)
def test_live_protocols_of_others(kind: str, greetings: list[str], done: str, sent: list[dict[str, object]]) -> None:
    live = SERVERS[kind].live
    assert live is not None
    answer: list[tuple[float, str | bytes]] = [(0.1, json.dumps({"type": "response.started"})), (0.1, tone(0.3))]
    socket = ScriptedSocket(greetings, [*answer, (0.1, json.dumps({"type": done}))], after=live.end)
    plan = LoadPlan(Closed(1), texts("Hi you."), duration_s=0.1, warmup_s=0.0)
    assert run_live(plan, Target(kind, "http://server", "websocket"), lambda: socket).summary.valid
    assert [message for _, message in socket.sent] == sent


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One two, three.", ["One ", "two, ", "three."]),
        (" padded  ", [" padded  "]),
        ("你好，world 吗？", ["你", "好", "，", "world ", "吗", "？"]),  # noqa: RUF001
        ("", []),
    ],
)
def test_words_join_to_their_text(text: str, pieces: list[str]) -> None:
    assert words(text) == pieces
    assert "".join(words(text)) == text


@pytest.mark.parametrize("language", BUNDLED)
def test_bundled_texts_are_many_and_short(language: str) -> None:
    texts = load_prompts(language)
    assert len(texts) == len(set(texts)) >= 500
    lengths = sorted(len(text.split()) if language == "en" else len(text) for text in texts)
    assert {"en": 8, "zh": 13}[language] <= lengths[len(lengths) // 2] <= {"en": 12, "zh": 20}[language]
    assert lengths[0] >= 3
    assert lengths[-1] <= 40
    assert all(text[-1] in ".?!。？！" for text in texts)  # noqa: RUF001
    assert all(text.isascii() for text in texts) == (language == "en")


def test_texts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "texts"
    path.write_text("One.\n\n  Two.  \n", encoding="utf-8")
    assert load_prompts(str(path)) == ["One.", "Two."]
    path.write_text("\n")
    with pytest.raises(ValueError, match="no text"):
        load_prompts(str(path))
    with pytest.raises(ValueError, match="neither en, zh nor a readable file"):
        load_prompts(str(tmp_path / "nothing"))


def test_each_text_comes_once_before_any_comes_again() -> None:
    texts = [str(number) for number in range(50)]
    order = PromptOrder(texts, "a")
    assert sorted(order[index] for index in range(50, 100)) == sorted(texts)
    assert [PromptOrder(texts, "a")[index] for index in range(50)] == [order[index] for index in range(50)]
    assert [PromptOrder(texts, "b")[index] for index in range(50)] != [order[index] for index in range(50)]


def test_classes_come_as_often_as_their_weights_say() -> None:
    texts = tuple(str(number) for number in range(50))
    classes = [TextClass("a", texts, weight=2), TextClass("b", ("x", "y"))]

    def order(seed: str) -> list[tuple[str, str]]:
        prompts = ClassOrder(classes, seed)
        return [prompts[index] for index in range(600)]

    of_a = [text for name, text in order("s") if name == "a"]
    assert len(of_a) == pytest.approx(400, abs=16)
    assert sorted(of_a[:50]) == sorted(of_a[50:100]) == sorted(of_a[300:350]) == sorted(texts)
    of_b = [text for name, text in order("s") if name == "b"]
    assert all(sorted(of_b[at : at + 2]) == ["x", "y"] for at in range(0, 180, 2))
    assert order("s") == order("s")
    assert order("t") != order("s")


@pytest.mark.parametrize(("language", "seconds"), [("en", 5.7), ("en", 20.0), ("zh", 12.0), ("en", 120.0)])
def test_texts_of_a_length_are_sentences_in_a_row(language: str, seconds: float) -> None:
    texts = load_prompts(f"{language}:{seconds:g}s")
    wanted = seconds * CHARACTERS_PER_S[language]
    assert len(texts) >= 100
    assert all(abs(len(text) - wanted) <= 0.05 * wanted for text in texts)
    sentences = set(load_prompts(language))
    if language == "en":
        assert set(re.split(r"(?<=[.?!]) ", texts[0])) <= sentences


def test_classes_have_a_name_and_a_weight() -> None:
    short, long, plain = load_classes(["short=en@9", "long=en:20s", "zh"])
    assert (short.name, short.weight, short.texts[0]) == ("short", 9, load_prompts("en")[0])
    assert (long.name, long.weight) == ("long", 1)
    assert (plain.name, plain.weight) == ("zh", 1)
    with pytest.raises(ValueError, match="two classes of texts have the same name"):
        load_classes(["en", "en@2"])
    with pytest.raises(ValueError, match="make no texts of 0"):
        load_classes(["en:0.1s"])


def test_the_generator_needs_the_client_alone() -> None:
    code = (
        "import sys, vivavoce_bench.listener.cli; "
        "heavy = {'numpy', 'matplotlib', 'torch', 'vivavoce_server', 'vivavoce_engine'}; "
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
