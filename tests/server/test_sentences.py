"""`split: "sentence"`: the same sentences for any fragments of the text, and a bound on the text that is held."""

import random

import pytest
from sentencex import segment  # type: ignore[import-untyped]
from vivavoce_server.live.sentences import LOOK_BACK_CHARS, MAX_SENTENCE_CHARS, Sentences

from tests.support.live_server import LiveServer
from tests.support.live_socket import dial, pcm_of

PROSE = (
    "Mr. J. R. Tolkien wrote. “Really?” he said. Then 3.5 of them, e.g. Dr. Smith, left... and came back!! (So)?\n"
    "A list\nof lines.  Two blanks.Glued. "
    "\u4eca\u5929\u5929\u6c14\u597d\u3002\u300c\u8d70\uff01\u300d\u597d\u3002 End. "
)


def cut(text: str, sizes: list[int], language: str | None = None) -> list[str]:
    """The sentences of a text that comes in fragments of these sizes, then as a whole."""
    sentences, found, at = Sentences(language), [], 0
    for size in sizes:
        found += sentences.append(text[at : at + size])
        at += size
    return [*found, *sentences.append(text[at:]), sentences.take()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. J. R. Tolkien wrote.", ["Mr. J. R. Tolkien wrote."]),
        ("Good morning. How are you? I am", ["Good morning.", "How are you?", "I am"]),
        ("“Really?” he said. Then he left.", ["“Really?” he said.", "Then he left."]),
        ("\u597d\u3002\u8d70\uff01", ["\u597d\u3002", "\u8d70\uff01"]),
    ],
)
def test_sentences_end_where_the_next_one_begins(text: str, expected: list[str]) -> None:
    assert cut(text, []) == cut(text, [1] * len(text)) == cut(text, [4] * len(text)) == expected


@pytest.mark.parametrize("language", [None, "german", "chinese"])
@pytest.mark.parametrize("text", [PROSE * 12, "a. " * 900, "word " * 700, ("x" * 333 + " End. So ") * 9])
def test_fragments_have_no_effect(text: str, language: str | None) -> None:
    whole = cut(text, [], language)
    assert "".join("".join(whole).split()) == "".join(text.split())
    for seed in range(8):
        draw = random.Random(seed)
        sizes = [draw.randint(1, draw.choice((2, 10, 1500))) for _ in range(len(text))]
        assert cut(text, sizes, language) == whole


def test_text_without_an_end_is_not_held_without_bound() -> None:
    sentences = Sentences(None)
    found = [sentence for _ in range(30) for sentence in sentences.append("“" * 4300)]
    assert {len(sentence) for sentence in found} == {MAX_SENTENCE_CHARS}
    assert len(found) >= 128
    assert len(sentences.take()) <= MAX_SENTENCE_CHARS
    assert all(len(sentence) <= MAX_SENTENCE_CHARS for sentence in sentences.append("word " * 5000))


@pytest.mark.parametrize("text", ["\u201c" * 43_000, "a. " * 9000, "word " * 9000, "Is it? So it is. " * 2000])
def test_the_work_on_a_text_grows_with_its_length_alone(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0

    def counted(language: str, part: str) -> list[str]:
        nonlocal looked_at
        looked_at += len(part)
        return list(segment(language, part))

    monkeypatch.setattr("vivavoce_server.live.sentences.segment", counted)
    sentences = Sentences(None)
    for _ in range(3):
        sentences.append(text)
    # For each possible end, the sentence before it as far as it is looked at, and a word.
    assert looked_at <= 3 * len(text) * (LOOK_BACK_CHARS + 2) // 3


@pytest.mark.parametrize("size", [1, 4, 100])
async def test_utterances_of_a_socket_are_the_same_for_any_fragments(server: LiveServer, size: int) -> None:
    text = "Mr. J. R. Tolkien wrote. He slept."
    async with dial(server) as socket:
        await socket.configure(split="sentence", normalize=False)
        await socket.say(*(text[start : start + size] for start in range(0, len(text), size)))
        await socket.send("input.done")
        for sentence in ("Mr. J. R. Tolkien wrote.", "He slept."):
            assert (await socket.utterance()).audio == pcm_of(5, len(sentence))
