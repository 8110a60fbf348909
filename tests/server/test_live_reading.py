"""Live text is read like a whole one: the same parts for every fragmentation, pauses, and what cannot be spoken."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from vivavoce_engine import ModelInfo, Rejected
from vivavoce_engine.fake_runner import FAKE_INFO
from vivavoce_server import ServerConfig
from vivavoce_server.errors import ApiError
from vivavoce_server.live.cutting import PartCutter
from vivavoce_server.reading import nothing_to_speak, read

from tests.support.live_text import Recorder, plan_for, record
from tests.support.readers import MANY, WORDS
from tests.support.scripts import parts_of
from tests.text.pairs import pairs

SHORT = replace(WORDS, max_utterance_chars=60)
STORY = (
    "The train leaves at noon, and nobody knows why. Mr. Smith said that it was late, but not by much! "
    "Then the doors opened: a boy, a dog and an old woman with a very large umbrella climbed down and walked away "
    "without a word to anybody at all, which seemed odd. Was it? Perhaps."
)


def cuts(text: str, seed: int) -> list[str]:
    """The text in random fragments, some of them empty."""
    places = sorted(random.Random(seed).choices(range(len(text) + 1), k=1 + len(text) // 4))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


FRAGMENTATIONS: tuple[Callable[[str], list[str]], ...] = (list, lambda text: cuts(text, 1), lambda text: cuts(text, 2))


# ---- the same for every fragmentation


@pytest.mark.parametrize(("info", "every"), [(WORDS, 1), (SHORT, 3), (MANY, 3)], ids=["words", "short", "many"])
async def test_fragments_give_the_parts_of_the_whole_text(info: ModelInfo, every: int) -> None:
    plan = plan_for(info)
    for pair in pairs()[::every]:
        text = f"He said: {pair.written} [pause:1s] That was it."
        whole = await record(plan, [text])
        assert len(whole.parts) >= 3
        for cut in FRAGMENTATIONS:
            assert await record(plan, cut(text)) == whole


async def test_live_text_has_the_parts_of_http() -> None:
    for pair in pairs():
        plan = plan_for(MANY if pair.language == "zh" else WORDS)
        text = f"{pair.written} [pause:1s] That was it."
        spoken = await read(plan.text, text)
        expected = parts_of(spoken.text, "english", 10_000)
        # The second part goes on from nothing, so it begins without a blank.
        expected[1:] = [part.lstrip() if isinstance(part, str) else part for part in expected[1:]]
        if isinstance(expected[0], str):
            assert (await record(plan, list(text))).parts == expected


@pytest.mark.parametrize("normalize", [False, True, ["markup"], ["numbers", "units"], None])
async def test_the_stages_are_the_configurations_choice(normalize: Any) -> None:
    plan = plan_for(WORDS, normalize=normalize)
    text = "It is **5 km** to https://example.com, FBI."
    assert (await record(plan, list(text))).parts == [(await read(plan.text, text)).text]


async def test_a_plain_word_waits_for_one_complete_word() -> None:
    recorded = await record(plan_for(WORDS), ["The ", "train ", "leaves", " ", "at ", "noon, ", "she ", "said."])
    assert recorded.first_part == [
        "",
        "The",
        "The",
        "The train",
        "The train leaves",
        "The train leaves at",
        "The train leaves at noon",
        "The train leaves at noon",
    ]
    assert recorded.parts == ["The train leaves at noon, she said."]


# ---- what was written for each part


@pytest.mark.parametrize("info", [FAKE_INFO, SHORT, MANY], ids=["prose", "short", "many"])
async def test_what_was_written_for_the_parts_is_the_text(info: ModelInfo) -> None:
    for pair in pairs()[::5]:
        text = f"It costs $5: {pair.written} [pause:1s] That was it. [pause:2s] ..."
        recorded = await record(plan_for(info), cuts(text, 3))
        assert len(recorded.texts) == len(recorded.parts)
        assert "".join(recorded.texts) == text


async def test_a_part_has_the_text_that_was_written_for_it() -> None:
    text = "It costs $5.50, [pause:1s]and [pause:x]**that**  is a lot. [pause:2s] ..."
    recorded = await record(plan_for(WORDS), [text])
    assert recorded.parts == ["It costs five dollars and fifty cents, ", 1.0, "and that is a lot. ", 2.0]
    assert recorded.texts == [
        "It costs $5.50,",
        " [pause:1s]",
        "and [pause:x]**that**  is a lot.",
        " [pause:2s] ...",
    ]
    long = await record(plan_for(SHORT, normalize=False), [STORY])
    assert [part.strip() for part in long.texts] == long.parts


async def test_an_open_part_has_the_text_that_has_reached_the_engine() -> None:
    recorded = await record(plan_for(WORDS), ["It costs $5 ", "and ", "more ", "now"])
    assert recorded.reached == ["It", "It", "It costs $5 and", "It costs $5 and"]


# ---- pauses


@pytest.mark.parametrize("tag", ["[pause:2s]", "[pause:2000ms]", "[PAUSE: 2 s]", '<break time="2s"/>'])
async def test_a_pause_tag_is_silence_wherever_it_is_cut(tag: str) -> None:
    text = f"One. {tag} Two."
    plan = plan_for(FAKE_INFO)
    for place in range(len(text)):
        recorded = await record(plan, [text[:place], text[place:]])
        assert recorded.parts == ["One. ", 2.0, "Two."]
        assert recorded.errors == []


async def test_a_pause_lasts_as_long_as_its_tag_says_at_any_speed() -> None:
    """The encoder shortens what it gets by the speed."""
    assert (await record(plan_for(FAKE_INFO, speed=2.0), ["One. [pause:2s] Two."])).parts == ["One. ", 4.0, "Two."]


async def test_pauses_may_stand_anywhere() -> None:
    text = "[pause:1s] [pause:500ms]One.[pause:1s] ... \U0001f600[pause:2s]Two [pause:0s]three.[pause:3s]"
    recorded = await record(plan_for(FAKE_INFO), [text])
    assert recorded.parts == [1.0, 0.5, "One.", 1.0, 2.0, "Two ", 0.0, "three.", 3.0]


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("[pause:abc]", "[pause:abc] is not a pause; write [pause:0.5s] or [pause:500ms]. The tag is passed over"),
        ("[pause:]", "[pause:] is not a pause; write [pause:0.5s] or [pause:500ms]. The tag is passed over"),
        ("[pause:11s]", "[pause:11s] is too long; the longest pause is 10 s. The tag is passed over"),
        (
            "[pause:\ud83d]",
            "[pause:\\ud83d] is not a pause; write [pause:0.5s] or [pause:500ms]. The tag is passed over",
        ),
    ],
)
async def test_a_wrong_tag_is_told_and_passed_over(tag: str, message: str) -> None:
    recorded = await record(plan_for(FAKE_INFO), list(f"One. {tag} Two."))
    assert recorded.parts == ["One. Two."]
    assert [(error.param, error.code, error.message) for error in recorded.errors] == [
        ("text", "invalid_value", message)
    ]


# ---- what cannot be spoken


async def refusal(plan: Any, fragments: list[str]) -> tuple[str | None, str | None, str]:
    with pytest.raises(ApiError) as refused:
        await record(plan, fragments)
    detail = refused.value.detail
    return detail.param, detail.code, detail.message


@pytest.mark.parametrize(
    "text", ["", "  \n ", "\t\t", "\u200b", "\ufeff", "\u00ad", ".", "-", "?!", "\U0001f600", "[pause:0s]", "\ud83d"]
)
@pytest.mark.parametrize("info", [FAKE_INFO, WORDS], ids=["prose", "words"])
async def test_a_text_without_anything_to_speak_is_refused(text: str, info: ModelInfo) -> None:
    expected = nothing_to_speak().detail
    for fragments in ([text], list(text), ["", text, ""]):
        assert await refusal(plan_for(info), fragments) == (expected.param, expected.code, expected.message)


@pytest.mark.parametrize("info", [FAKE_INFO, WORDS], ids=["prose", "words"])
async def test_a_script_that_the_model_does_not_read_is_refused(info: ModelInfo) -> None:
    message = "This model does not read Chinese letters; it reads English"
    for text in ("\u4f60\u597d", "\u4f60\u597d\u3002[pause:1s]\u4f60\u597d!"):
        assert await refusal(plan_for(info), list(text)) == ("input", "unsupported_script", message)


async def test_signs_beside_speakable_text_are_silent() -> None:
    recorded = await record(plan_for(WORDS), ["\U0001f600 ", "Hello ", "\U0001f600", " there. \U0001f600"])
    assert recorded.parts == ["Hello there."]
    assert recorded.warnings == ()


async def test_what_is_left_out_is_told() -> None:
    recorded = await record(plan_for(FAKE_INFO), list("She said \u4f60\u597d and left."))
    assert recorded.warnings == ("The model may not read these letters: \u4f60\u597d",)


async def test_without_strictness_it_speaks_on() -> None:
    lenient = ServerConfig(strict_text=False)
    assert (await record(plan_for(FAKE_INFO, lenient), ["\u4f60\u597d"])).parts == ["\u4f60\u597d"]
    recorded = await record(plan_for(FAKE_INFO, lenient, speed=2.0), ["\U0001f600"])
    assert recorded.parts == [0.6]
    assert recorded.warnings == ("Nothing in the text can be spoken; it is a short silence",)
    assert (await refusal(plan_for(FAKE_INFO, lenient), [" "]))[1] == "nothing_to_speak"


@pytest.mark.parametrize("strict", [True, False])
async def test_a_pause_alone_is_silence(strict: bool) -> None:
    config = ServerConfig(strict_text=strict)
    for fragments in (["[pause:1s]"], list("... [pause:1s] \U0001f600"), ['<break time="1s"/>']):
        recorded = await record(plan_for(FAKE_INFO, config), fragments)
        assert (recorded.parts, recorded.warnings, recorded.errors) == ([1.0], (), [])
        assert "".join(recorded.texts) == "".join(fragments)


async def test_half_of_a_surrogate_pair_reaches_the_engine() -> None:
    recorded = await record(plan_for(WORDS), ["Hello \ud83d", "\ude00 there [pause:1s] and 5 \udc00km"])
    assert isinstance(recorded.parts[0], str)
    assert recorded.parts[0].startswith("Hello")


async def test_an_empty_fragment_starts_no_work() -> None:
    plan = plan_for(FAKE_INFO)
    plain = await record(plan, ["Hello", " there."])
    with_empty_ones = await record(plan, ["", "Hello", *[""] * 500, " there.", ""])
    assert with_empty_ones == plain
    assert with_empty_ones.jobs == plain.jobs


async def test_an_error_of_the_engine_ends_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(self: Recorder, text: str, word_ends: bool = False) -> None:
        raise Rejected("text", "the text has more than 5 tokens")

    monkeypatch.setattr(Recorder, "append", reject)
    with pytest.raises(Rejected, match="more than 5"):
        await record(plan_for(FAKE_INFO), ["Hello there."])


# ---- the longest part


async def test_a_long_text_is_cut_between_sentences() -> None:
    recorded = await record(plan_for(SHORT, normalize=False), [STORY])
    assert recorded.parts == [
        "The train leaves at noon, and nobody knows why.",
        "Mr. Smith said that it was late, but not by much!",
        "Then the doors opened: a boy, a dog and an old woman with a",
        "very large umbrella climbed down and walked away without a",
        "word to anybody at all, which seemed odd.",
        "Was it? Perhaps.",
    ]


@pytest.mark.parametrize("max_chars", [1, 7, 20, 60, 180])
@pytest.mark.parametrize("text", [STORY, STORY.replace(" ", ""), "\u4f60\u597d\u3002" * 70, "a" * 300, "  Hi  there  "])
def test_no_part_is_too_long_and_nothing_is_lost(text: str, max_chars: int) -> None:
    cutter = PartCutter(max_chars)
    parts = [*cutter.append(text)]
    parts[-1] += cutter.end_part()
    assert max(len(part.strip()) for part in parts) <= max_chars
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(part == part.strip() for part in parts[1:-1])


def test_a_text_for_a_model_without_a_limit_is_one_part() -> None:
    cutter = PartCutter(None)
    assert cutter.append(STORY * 9 + "  ") == [STORY * 9]
    assert cutter.end_part() == "  "


def test_chinese_is_cut_behind_its_signs() -> None:
    text = "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u516c\u56ed\u5427\uff0c\u597d\u5417\uff1f"
    assert PartCutter(12).append(text) == [text[:7], text[7:]]
