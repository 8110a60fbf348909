"""The server's reading of text: the stages by checkpoint, request and operator, and what cannot be spoken.

`"return": "text"` shows the text exactly as it would be said.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from vivavoce_engine import ModelInfo
from vivavoce_engine.fake_runner import FAKE_INFO
from vivavoce_server import ServerConfig, create_app, reading
from vivavoce_server.config import load_settings
from vivavoce_server.errors import ApiError
from vivavoce_server.reading import default_stages, normalize_of, plan_text, read, warm_up
from vivavoce_server.schemas import NormalizationOptions, SpeechOptions
from vivavoce_server.setting_sources import SettingError
from vivavoce_server.spoken_text import runs_of
from vivavoce_text import STAGES, Profile, Reading, Traced, speakable
from vivavoce_text.traced import Edit

from tests.support.live_server import LiveServer, fake_engine, live_server
from tests.support.readers import ANYTHING, MANY, WORDS, answer_of, ask, reading_server
from tests.text.pairs import pairs

BATCH = "/v1/audio/speech/batch"
ALL = set(STAGES)
PROSE = {"clean", "emoji", "markup"}
ENGLISH = PROSE | {"formulas", "urls", "emails", "names"}


@pytest.fixture(scope="module")
def reader() -> Iterator[LiveServer]:
    with reading_server() as server:
        yield server


@pytest.fixture(scope="module")
def lenient() -> Iterator[LiveServer]:
    with reading_server(ServerConfig(strict_text=False)) as server:
        yield server


def refusal(response: httpx.Response) -> tuple[int, str, str, str]:
    error = response.json()["error"]
    return response.status_code, error["param"], error["code"], error["message"]


# ---- which stages run


@pytest.mark.parametrize(
    ("info", "language", "stages"),
    [
        (WORDS, None, ALL),
        (FAKE_INFO, None, ENGLISH),
        (FAKE_INFO, "auto", ENGLISH),
        (ANYTHING, None, {"clean"}),
        (MANY, None, ENGLISH),
        (MANY, "english", ENGLISH),
        (MANY, "English", ENGLISH),
        (MANY, "german", PROSE),
        (MANY, "chinese", PROSE),
    ],
)
def test_a_checkpoint_decides_what_is_done_to_its_text(info: ModelInfo, language: str | None, stages: set[str]) -> None:
    plan = plan_text(SpeechOptions(language=language), info, ServerConfig())
    assert plan.profile.stages == stages
    assert (plan.profile.alphabet, plan.profile.letters) == (info.text.alphabet, info.text.letters)


@pytest.mark.parametrize(
    ("info", "language", "code"),
    [(FAKE_INFO, None, "en"), (MANY, None, ""), (MANY, "auto", ""), (MANY, "Chinese", "zh"), (MANY, "russian", "ru")],
)
def test_only_one_language_needs_no_name(info: ModelInfo, language: str | None, code: str) -> None:
    assert plan_text(SpeechOptions(language=language), info, ServerConfig()).language == code


@pytest.mark.parametrize(
    ("normalize", "stages"),
    [
        (None, ENGLISH),
        (True, ALL),
        (False, set()),
        ([], set()),
        (["units"], {"units"}),
        (["markdown", "links"], {"markup", "urls", "emails", "names"}),
        (["fold", "clean", "clean"], {"clean", "fold"}),
    ],
)
def test_a_request_may_decide_otherwise(normalize: Any, stages: set[str]) -> None:
    assert plan_text(SpeechOptions(normalize=normalize), FAKE_INFO, ServerConfig()).profile.stages == stages


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ({}, ENGLISH),
        ({"normalize": True}, ALL),
        ({"normalize": False}, set()),
        ({"normalize": False, "unit_normalization": True}, set()),
        (
            {"normalize": True, "unit_normalization": False, "phone_normalization": False},
            ALL - {"units", "phone_numbers"},
        ),
        ({"url_normalization": False, "email_normalization": False}, ENGLISH - {"urls", "emails"}),
        ({"unit_normalization": True, "url_normalization": True}, ENGLISH | {"units"}),
        ({"replace_remaining_symbols": False}, ENGLISH - {"names"}),
        ({"optional_pluralization_normalization": False}, ENGLISH - {"names"}),
    ],
)
def test_kokoros_switches_name_stages(options: dict[str, bool], stages: set[str]) -> None:
    request = SpeechOptions(normalization_options=NormalizationOptions(**options))
    assert plan_text(request, FAKE_INFO, ServerConfig()).profile.stages == stages


def test_each_of_kokoros_switches_has_stages() -> None:
    assert {*NormalizationOptions.SWITCHES, "normalize"} == set(NormalizationOptions.model_fields)


@pytest.mark.parametrize(("value", "normalize"), [(None, None), ("auto", None), ("on", True), ("off", False)])
def test_elevenlabs_field_says_the_same(value: str | None, normalize: bool | None) -> None:
    assert normalize_of(value) is normalize


def test_elevenlabs_field_has_three_values() -> None:
    with pytest.raises(ApiError, match="auto, on, off") as refused:
        normalize_of("maybe")
    assert refused.value.detail.param == "apply_text_normalization"


@pytest.mark.parametrize(
    ("setting", "stages"),
    [("checkpoint", ENGLISH), ("true", ALL), ("false", set()), ("clean, links", {"clean", "urls", "emails", "names"})],
)
def test_an_operator_decides_for_requests_that_say_nothing(
    setting: str, stages: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVAVOCE_NORMALIZE", setting)
    config, _ = load_settings({})
    assert plan_text(SpeechOptions(), FAKE_INFO, config).profile.stages == stages
    assert plan_text(SpeechOptions(normalize=["units"]), FAKE_INFO, config).profile.stages == {"units"}
    flagged, _ = load_settings({"normalize": "units"})
    assert plan_text(SpeechOptions(), FAKE_INFO, flagged).profile.stages == {"units"}


@pytest.mark.parametrize(("setting", "said"), [("True", True), ("FALSE", False), (" Checkpoint ", "checkpoint")])
def test_an_operators_choice_may_have_capitals(setting: str, said: bool | str) -> None:
    assert load_settings({"normalize": setting})[0].normalize == said


@pytest.mark.parametrize(
    ("setting", "messages"),
    [
        ("units,speling", ["there is no stage 'speling'; there are clean, emoji, "]),
        ("yes", ["there is no stage 'yes'", "checkpoint, true and false"]),
        ("units,true", ["there is no stage 'true'", "checkpoint, true and false"]),
        ("", ["give checkpoint, true, false or stages"]),
        (",", ["give checkpoint, true, false or stages"]),
    ],
)
def test_an_operators_wrong_choice_is_named(setting: str, messages: list[str]) -> None:
    with pytest.raises(SettingError) as refused:
        load_settings({"normalize": setting})
    assert str(refused.value).startswith("--normalize: ")
    assert all(message in str(refused.value) for message in messages)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"normalize": ["speling"]}, "normalize", "there is no stage 'speling'; there are clean, emoji, "),
        ({"normalize": "yes"}, "normalize", "give true, false or a list of stages"),
        ({"normalization_options": {"speling": True}}, "normalization_options.speling", "Unknown field"),
        ({"normalization_options": {"normalize": "yes"}}, "normalization_options.normalize", "valid boolean"),
        ({"normalization_options": True}, "normalization_options", "object"),
        ({"language": "Klingon", "return": "text"}, "language", "there are auto, english"),
        ({"normalization_options": {}, "normalize": True}, "normalization_options", "give one of them"),
        ({"return": "phonemes"}, "return", "'audio' or 'text'"),
        ({"word_timestamps": True}, "word_timestamps", "no place for words"),
    ],
)
def test_wrong_options_of_text_are_named(fields: dict[str, Any], param: str, message: str, reader: LiveServer) -> None:
    response = ask(reader, "Hi.", **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert message in response.json()["error"]["message"]


def test_models_show_what_they_read(reader: LiveServer) -> None:
    listed = {model["id"]: model["text"] for model in httpx.get(f"{reader.url}/v1/models").json()["data"]}
    assert listed == {
        "fake": {"reads": "prose", "alphabet": None, "letters": "as_written", "stages": in_order(ENGLISH)},
        "words": {"reads": "words", "alphabet": "ascii", "letters": "names", "stages": list(STAGES)},
        "anything": {"reads": "anything", "alphabet": None, "letters": "as_written", "stages": ["clean"]},
        "many": {"reads": "prose", "alphabet": None, "letters": "as_written", "stages": in_order(ENGLISH)},
    }
    assert httpx.get(f"{reader.url}/v1/models/words").json()["text"] == listed["words"]
    assert in_order(default_stages(ANYTHING, "en")) == ["clean"]


def in_order(stages: Any) -> list[str]:
    return [stage for stage in STAGES if stage in stages]


# ---- the text that would be said


def test_the_answer_shows_everything_about_a_text(reader: LiveServer) -> None:
    assert answer_of(reader, "One.[pause:500ms]Two.", normalize=False, speed=2.0) == {
        "text": "One.[pause:500ms]Two.",
        "parts": [{"text": "One."}, {"pause_s": 0.5}, {"text": "Two."}],
        "language": "en",
        "stages": [],
        "left_out": [],
        "warnings": [],
        "ignored": [],
        "characters": {"input": 21, "output": 21},
        "map": [[0, 21, 0, 21]],
    }


def test_the_map_has_runs_of_characters() -> None:
    text = Traced.source("It is 5 km off.").edited([Edit(6, 10, "five kilometers")])
    assert text.text == "It is five kilometers off."
    assert runs_of(text) == [[0, 6, 0, 6], [6, 21, 6, 10], [21, 26, 10, 15]]
    assert runs_of(Traced.source("5").edited([Edit(0, 1, "five")])) == [[0, 4, 0, 1]]
    assert runs_of(Traced.source("a-b").edited([Edit(1, 2, "")])) == [[0, 1, 0, 1], [1, 2, 2, 3]]
    assert runs_of(Traced.source("")) == []


def test_it_takes_no_row_and_no_voice() -> None:
    steps: list[object] = []
    with live_server(fake_engine(before_step=steps.append)) as server:
        response = httpx.post(f"{server.url}/v1/audio/speech", json={"input": "Hello.", "return": "text"})
    assert (response.json()["text"], steps) == ("Hello.", [])


def test_a_long_text_is_read_as_a_short_one(reader: LiveServer) -> None:
    """It is read in several jobs, which other requests may come between."""
    text = " ".join(f"The {number} sentence has **bold** words." for number in ("first", "second", "third") * 30)
    assert len(text) > 2000
    assert answer_of(reader, text, "fake")["text"] == text.replace("*", "")


async def test_all_pairs_are_read_in_jobs_as_they_are_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHARS_A_JOB", 7)
    for pair in pairs():
        plan = replace(plan_text(SpeechOptions(), WORDS, ServerConfig()), language=pair.language)
        assert await read(plan, pair.written) == speakable(pair.written, pair.language, plan.profile)


async def test_text_is_read_in_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of several texts come in turns, so that a short text does not wait for the whole of a long one."""
    order: list[str] = []
    append = Reading.append

    def watched(self: Reading, text: str) -> list[Traced]:
        order.append(text[:1])
        assert threading.current_thread().name.startswith("vivavoce-text")
        return append(self, text)

    monkeypatch.setattr(Reading, "append", watched)
    monkeypatch.setattr(reading, "THREADS", ThreadPoolExecutor(1, "vivavoce-text"))
    plan = plan_text(SpeechOptions(), WORDS, ServerConfig())
    await asyncio.gather(read(plan, "a word " * 200), read(plan, "bye"))
    assert order.index("b") == 1
    assert len(order) == 1400 // reading.CHARS_A_JOB + 1


def test_a_missing_package_is_told_once_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vivavoce_server.app.missing_packages", lambda: {"wetext": "numbers stay"})
    create_app(fake_engine(), ServerConfig())
    assert [record.message for record in caplog.records] == ["the package wetext is missing: numbers stay"]


def test_warming_up_reads_a_sample_in_each_language_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, Profile]] = []
    monkeypatch.setattr(reading, "speakable", lambda _, language, profile: read.append((language, profile)))
    warm_up([WORDS, MANY], ServerConfig()).result()
    assert [language for language, _ in read] == ["en", "en", "", "en", "zh", "de", "ru"]
    assert {profile.stages for _, profile in read[:2]} == {frozenset(STAGES)}


# ---- what cannot be spoken


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\u200b", "\ufeff", "\u00ad", "\u200b \u2060", "\u3000"])
@pytest.mark.parametrize("model", ["words", "fake", "anything"])
def test_blank_and_invisible_text_is_one_and_the_same(text: str, model: str, reader: LiveServer) -> None:
    assert refusal(ask(reader, text, model)) == refusal(ask(reader, "", model))


@pytest.mark.parametrize(
    "text", [".", "-", "\U0001f600", "...", "?!", "[pause:0s]", "\u2014", "\U0001f468\u200d\U0001f469", "***"]
)
@pytest.mark.parametrize("model", ["words", "fake", "anything"])
def test_signs_alone_are_refused(text: str, model: str, reader: LiveServer) -> None:
    for fields in ({}, {"stream": False}, {"stream_format": "sse"}, {"return": "text"}):
        assert refusal(ask(reader, text, model, **fields)) == (
            400,
            "input",
            "nothing_to_speak",
            "The input is blank: nothing in it can be spoken",
        )


@pytest.mark.parametrize("text", ["[pause:500ms]", "... [pause:500ms] \U0001f600", '<break time="0.5s"/>'])
def test_a_pause_alone_is_silence(text: str, reader: LiveServer) -> None:
    assert answer_of(reader, text, "fake")["parts"] == [{"pause_s": 0.5}]
    for fields in ({}, {"stream": False}):
        answer = ask(reader, text, "fake", response_format="pcm", **fields)
        assert answer.status_code == 200, answer.text
        assert answer.content == bytes(2 * 12000)
        assert "X-Vivavoce-Warnings" not in answer.headers
    done = ask(reader, text, "fake", stream_format="sse", response_format="pcm").text
    assert '"output_tokens": 0' in done or '"output_tokens":0' in done


def test_signs_beside_speakable_text_are_silence(reader: LiveServer) -> None:
    answer = answer_of(reader, "Hi.[pause:1s] \U0001f600 ... [pause:1s]Bye.", "fake")
    assert answer["parts"] == [{"text": "Hi."}, {"pause_s": 1.0}, {"pause_s": 1.0}, {"text": "Bye."}]


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("\u4f60\u597d", "Chinese"),
        ("\u041f\u0440\u0438\u0432\u0435\u0442, Tom!", "Cyrillic"),
        ("\u4f60\u597d 123", "Chinese"),
        ("\u4f60\u597d[pause:1s]\u4f60\u597d", "Chinese"),
    ],
)
@pytest.mark.parametrize("model", ["words", "fake"])
def test_a_script_that_the_model_does_not_read_is_refused(
    text: str, script: str, model: str, reader: LiveServer
) -> None:
    for fields in ({}, {"normalize": False}, {"normalize": True}, {"return": "text"}):
        assert refusal(ask(reader, text, model, **fields)) == (
            400,
            "input",
            "unsupported_script",
            f"This model does not read {script} letters; it reads English",
        )


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("\u4f60\u597d", "many"),
        ("\u041f\u0440\u0438\u0432\u0435\u0442", "many"),
        ("\u3053\u3093\u306b\u3061\u306f", "anything"),
        ("na\u00efve fa\u00e7ade", "words"),
    ],
)
def test_a_script_that_the_model_reads_is_not(text: str, model: str, reader: LiveServer) -> None:
    assert ask(reader, text, model).status_code == 200


def test_a_model_of_several_languages_names_them(reader: LiveServer) -> None:
    message = refusal(ask(reader, "\u05e9\u05dc\u05d5\u05dd", "many"))[3]
    assert message == "This model does not read Hebrew letters; it reads English, Chinese, German, Russian"


def test_the_alphabet_of_a_language_unknown_here_is_not_guarded() -> None:
    info = replace(FAKE_INFO, languages=("auto", "english", "klingon"))
    assert plan_text(SpeechOptions(), info, ServerConfig()).scripts == frozenset()


LEFT_OUT = "The model cannot read these letters; they are left out: \u4f60\u597d"
PASSED_ON = "The model may not read these letters: \u4f60\u597d"


@pytest.mark.parametrize(("model", "warning"), [("words", LEFT_OUT), ("fake", PASSED_ON)])
def test_a_few_foreign_letters_are_told(model: str, warning: str, reader: LiveServer) -> None:
    text = "She said \u4f60\u597d and left."
    answer = answer_of(reader, text, model)
    assert answer["warnings"] == [warning]
    assert answer["left_out"] == (["\u4f60\u597d"] if model == "words" else [])
    assert ("\u4f60\u597d" in answer["text"]) == (model == "fake")
    for fields in ({}, {"stream": False}, {"stream_format": "sse"}):
        header = ask(reader, text, model, **fields).headers["x-vivavoce-warnings"]
        assert header.isascii()
        assert json.loads(header) == [warning]
    body = {"model": model, "voice": "heart", "items": [{"input": text}, {"input": "She left."}]}
    results = httpx.post(reader.url + BATCH, json=body).json()["results"]
    assert [result["warnings"] for result in results] == [[warning], []]


def test_a_text_without_faults_has_no_warnings(reader: LiveServer) -> None:
    assert "x-vivavoce-warnings" not in ask(reader, "She left.").headers


def test_a_warning_is_short(reader: LiveServer) -> None:
    words = [chr(0x4E00 + number) * 3 for number in range(40)]
    text = " ".join(f"and some plain words {word}" for word in words)
    header = ask(reader, text, "fake").headers["x-vivavoce-warnings"]
    assert header.endswith('and 35 more"]')
    assert len(header) < 500


def test_without_strictness_signs_are_a_short_silence(lenient: LiveServer) -> None:
    response = ask(lenient, "\U0001f600", stream=False)
    assert np.frombuffer(response.content, "<i2").tolist() == [0] * round(0.3 * FAKE_INFO.sample_rate)
    assert json.loads(response.headers["x-vivavoce-warnings"]) == [
        "Nothing in the text can be spoken; it is a short silence"
    ]
    assert len(ask(lenient, "...", speed=2.0).content) == pytest.approx(2 * 0.3 * FAKE_INFO.sample_rate, rel=0.1)


def test_without_strictness_foreign_letters_are_latin_ones_or_passed_on(lenient: LiveServer) -> None:
    answer = answer_of(lenient, "\u041f\u0440\u0438\u0432\u0435\u0442", "words")
    assert answer["text"].isascii()
    assert answer["text"].lower() == "privet"
    assert answer["warnings"] == [
        "The model cannot read these letters; Latin ones stand for them: \u041f\u0440\u0438\u0432\u0435\u0442"
    ]
    answer = answer_of(lenient, "\u4f60\u597d", "fake")
    assert (answer["text"], answer["warnings"]) == ("\u4f60\u597d", [PASSED_ON])


def test_half_of_a_surrogate_pair_is_refused(reader: LiveServer) -> None:
    content = b'{"input": "Hello \\ud83d", "voice": "heart", "return": "text"}'
    response = httpx.post(
        f"{reader.url}/v1/audio/speech", content=content, headers={"Content-Type": "application/json"}
    )
    assert refusal(response)[:2] == (400, "input")


# ---- lengths


def test_limits_count_the_text_that_comes_in_and_parts_the_text_that_comes_out() -> None:
    text = "**a** " * 20
    with live_server(config=ServerConfig(max_input_chars=120, max_part_chars=40)) as server:
        answer = httpx.post(f"{server.url}/v1/audio/speech", json={"input": text, "return": "text"}).json()
        longer = httpx.post(f"{server.url}/v1/audio/speech", json={"input": text + "a", "return": "text"})
    assert answer["parts"] == [{"text": answer["text"]}]
    assert answer["characters"] == {"input": 120, "output": len(answer["text"])}
    assert len(answer["text"]) <= 40
    assert refusal(longer)[2] == "string_above_max_length"
