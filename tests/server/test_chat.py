"""POST /v1/chat/completions over the fake engine: answers whole and streamed, their ends, and what is refused."""

import base64
import io
import wave
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from openai import OpenAI
from pydantic import SecretStr
from vivavoce_engine import ChatMessage, Engine, EngineConfig, Sound, ThinkerFailed, ThinkerToken
from vivavoce_engine.fake_runner import FAKE_CHAT_INFO, FakeRunner, tone
from vivavoce_engine.thinker.fake import FakeThinker
from vivavoce_server import ServerConfig
from vivavoce_server.chat import spoken_answers
from vivavoce_server.chat.schemas import ChatRequest
from vivavoce_server.chat.spoken_answers import SpokenAnswers
from vivavoce_server.errors import ApiError

from tests.support.chatting import (
    ANSWER,
    HELLO,
    PATH,
    SPOKEN,
    EarlyEnd,
    Json,
    ScriptedThinker,
    ask,
    chat_server,
    error_of,
    png,
    streamed,
)
from tests.support.live_server import LiveServer, ask_and_leave, fake_engine, live_server
from tests.support.waiting import wait_until

FRAMES = len(ANSWER)
PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)


def wav_of(seconds: float) -> str:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16000)
        samples = np.round(8000 * np.sin(np.arange(round(seconds * 16000)) / 20))
        writer.writeframes(samples.astype("<i2").tobytes())
    return base64.b64encode(file.getvalue()).decode()


def pcm16(seed: int, frames: int) -> bytes:
    samples: bytes = np.round(tone(seed, 0, frames) * 32767).astype("<i2").tobytes()
    return samples


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with chat_server(config=ServerConfig(leading_silence="keep")) as running:
        yield running


# ---- answers --------------------------------------------------------------------------------------------------


def test_a_text_answer_does_not_touch_the_talker(server: LiveServer) -> None:
    frames = server.engine.stats().frames
    body = ask(server, HELLO).json()
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "refusal": None, "content": ANSWER}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert (body["object"], body["model"]) == ("chat.completion", "fake-chat")
    assert body["usage"]["completion_tokens_details"]["audio_tokens"] == 0
    assert (body["usage"]["characters_per_minute"], body["usage"]["words_per_minute"]) == (None, None)
    assert streamed(server, HELLO).content == ANSWER
    assert server.engine.stats().frames == frames


def test_a_spoken_answer_has_its_audio_and_the_text_that_it_says(server: LiveServer) -> None:
    body = ask(server, {**SPOKEN, "audio": {"voice": "heart", "format": "wav"}}).json()
    (choice,) = body["choices"]
    assert choice["message"]["content"] is None
    audio = choice["message"]["audio"]
    assert audio.keys() == {"id", "data", "expires_at", "transcript"}
    assert audio["transcript"] == ANSWER
    with wave.open(io.BytesIO(base64.b64decode(audio["data"]))) as file:
        assert (file.getframerate(), file.getnchannels()) == (24000, 1)
        heard = file.readframes(file.getnframes())
    assert np.abs(np.frombuffer(heard, "<i2") - np.frombuffer(pcm16(7, FRAMES), "<i2").astype(int)).max() <= 1
    usage = body["usage"]
    assert usage["completion_tokens_details"]["audio_tokens"] == FRAMES
    assert usage["completion_tokens_details"]["text_tokens"] == len(ANSWER)
    assert usage["completion_tokens"] == FRAMES + len(ANSWER)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    minutes = FRAMES * 0.08 / 60
    rate = round(len(ANSWER) / minutes, 1), round(3 / minutes, 1)
    assert (usage["characters_per_minute"], usage["words_per_minute"]) == rate


def test_a_stream_is_the_whole_answer_in_parts(server: LiveServer) -> None:
    answer = streamed(server, {**SPOKEN, "stream_options": {"include_usage": True}})
    whole = ask(server, SPOKEN).json()
    assert answer.transcript == ANSWER
    assert answer.audio == base64.b64decode(whole["choices"][0]["message"]["audio"]["data"])
    assert (answer.finish_reason, answer.done, answer.error) == ("stop", True, None)
    assert answer.usage == whole["usage"]
    assert answer.order[:2] == ["role", "transcript"]
    assert answer.expires_at is not None
    assert streamed(server, SPOKEN).usage is None


@pytest.mark.parametrize("format_name", ["wav", "aac", "mp3", "flac", "opus", "pcm16"])
def test_every_format_streams_as_the_file_that_is_sent_whole(server: LiveServer, format_name: str) -> None:
    body = {**SPOKEN, "audio": {"voice": "heart", "format": format_name}}
    whole = base64.b64decode(ask(server, body).json()["choices"][0]["message"]["audio"]["data"])
    parts = streamed(server, body).audio
    assert len(whole) > 1000
    assert parts[100:] == whole[100:] or format_name in ("opus", "flac", "aac", "mp3")
    assert abs(len(parts) - len(whole)) <= 100


def test_an_answer_ends_at_its_limit(server: LiveServer) -> None:
    for field in ("max_completion_tokens", "max_tokens"):
        body = ask(server, {**HELLO, field: 3}).json()
        assert body["choices"][0]["message"]["content"] == ANSWER[:3]
        assert body["choices"][0]["finish_reason"] == "length"
    answer = streamed(server, {**SPOKEN, "max_tokens": 3})
    assert (answer.transcript, answer.finish_reason) == (ANSWER[:3], "length")  # the last token is spoken too


def test_a_transcript_never_runs_ahead_of_the_frames() -> None:
    """The thinker is at its end long before the voice is; the text comes with the frames that read it all the same."""
    with chat_server(FakeThinker(lambda _: "abcdefghij" * 4)) as server:
        answer = streamed(server, SPOKEN)
    assert answer.transcript == "abcdefghij" * 4
    parts = [name for name in answer.order if name in ("transcript", "data")]
    assert parts.count("transcript") > 4
    assert parts[:2] == ["transcript", "data"]


def test_speech_that_ends_before_its_text_says_what_it_left_out() -> None:
    with chat_server(runner=EarlyEnd(5)) as server:
        answer = streamed(server, SPOKEN)
        whole = ask(server, SPOKEN).json()["choices"][0]
    assert (answer.transcript, answer.unspoken) == (ANSWER[:5], ANSWER[5:])
    assert (answer.finish_reason, answer.done) == ("stop", True)
    audio = whole["message"]["audio"]
    assert (audio["transcript"], audio["unspoken"]) == (ANSWER[:5], ANSWER[5:])


def test_an_answer_may_be_empty() -> None:
    with chat_server(FakeThinker(lambda _: "")) as server:
        answer = streamed(server, SPOKEN)
        assert (answer.transcript, answer.audio, answer.finish_reason) == ("", b"", "stop")
        assert ask(server, HELLO).json()["choices"][0]["message"]["content"] == ""
        assert ask(server, SPOKEN).json()["choices"][0]["message"]["audio"]["data"] == ""


def test_speech_is_the_same_however_slowly_the_text_is_thought(server: LiveServer) -> None:
    with chat_server(FakeThinker(token_s=0.01), ServerConfig(leading_silence="keep")) as slow:
        assert streamed(slow, SPOKEN).audio == streamed(server, SPOKEN).audio


# ---- clients ---------------------------------------------------------------------------------------------------


def test_the_openai_package_reads_an_answer(server: LiveServer) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model="gpt-audio",
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
        messages=[{"role": "user", "content": "Hello."}],
    )
    message = answer.choices[0].message
    assert message.audio is not None
    assert message.audio.transcript == ANSWER
    again = client.chat.completions.create(
        model="gpt-audio",
        messages=[
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "audio": {"id": message.audio.id}},
            {"role": "user", "content": "Really?"},
        ],
    )
    assert again.choices[0].message.content == "You said: Really?"
    assert again.usage is not None
    assert again.usage.prompt_tokens == len("Hello." + ANSWER + "Really?") + 3 * 5 + 3


def test_the_openai_package_reads_a_stream(server: LiveServer) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    events = client.chat.completions.create(
        model="fake-chat",
        modalities=["text", "audio"],
        audio={"voice": "heart", "format": "pcm16"},
        messages=[{"role": "user", "content": "Hello."}],
        stream=True,
        stream_options={"include_usage": True},
    )
    transcript, audio, reasons, usage = "", b"", [], None
    for event in events:
        usage = event.usage or usage
        for choice in event.choices:
            if (told := choice.delta.audio) is not None:
                transcript += told.transcript or ""
                audio += base64.b64decode(told.data or "")
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert (transcript, reasons) == (ANSWER, ["stop"])
    assert len(audio) == FRAMES * 1920 * 2
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.audio_tokens == FRAMES


# ---- conversations ----------------------------------------------------------------------------------------------


def heard(messages: Any) -> list[tuple[str, list[str]]]:
    """Roles and parts of what a thinker was told; sounds and pictures by their kinds and sizes."""
    told: list[tuple[str, list[str]]] = []
    for message in messages:
        assert isinstance(message, ChatMessage)
        parts = [
            part
            if isinstance(part, str)
            else f"{len(part.samples)}"
            if isinstance(part, Sound)
            else f"{part.pixels.shape}"
            for part in message.parts
        ]
        told.append((message.role, parts))
    return told


def test_the_thinker_is_told_the_conversation() -> None:
    seen: list[Any] = []

    def answer(messages: Any) -> str:
        seen.extend(heard(messages))
        return "Yes."

    content = [
        {"type": "text", "text": "What is "},
        {"type": "input_audio", "input_audio": {"data": wav_of(0.5), "format": "wav"}},
        {"type": "image_url", "image_url": {"url": png(PIXELS), "detail": "low"}},
    ]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello."}, {"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": content, "name": "ada"},
    ]
    with chat_server(FakeThinker(answer)) as server:
        body = ask(server, {**SPOKEN, "messages": messages}).json()
    assert seen == [
        ("system", ["Be brief."]),
        ("user", ["Hi."]),
        ("assistant", ["Hello.", "No."]),
        ("user", ["What is ", "8000", "(2, 2, 3)"]),
    ]
    assert body["choices"][0]["message"]["audio"]["transcript"] == "Yes."
    details = body["usage"]["prompt_tokens_details"]
    assert (details["audio_tokens"], details["image_tokens"]) == (4, 4)


def test_a_spoken_answer_is_known_to_its_own_client_alone() -> None:
    config = ServerConfig(api_keys=(SecretStr("one"), SecretStr("two")))
    with chat_server(config=config) as server:
        ids = ask(server, SPOKEN, headers={"Authorization": "Bearer one"}).json()
        audio_id = ids["choices"][0]["message"]["audio"]["id"]
        later = {"messages": [*HELLO["messages"], {"role": "assistant", "audio": {"id": audio_id}}, *HELLO["messages"]]}
        assert ask(server, later, headers={"Authorization": "Bearer one"}).status_code == 200
        refused = ask(server, later, headers={"Authorization": "Bearer two"})
        assert error_of(refused) == (400, "messages[1].audio.id", "audio_not_found")
        assert ask(server, later).status_code == 401


# ---- refusals ---------------------------------------------------------------------------------------------------

UNSUPPORTED: dict[str, Any] = {
    "n": 2,
    "logprobs": True,
    "top_logprobs": 3,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "response_format": {"type": "json_object"},
    "stop": "\n",
    "logit_bias": {"1": 2},
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "prediction": {"type": "content", "content": "x"},
    "web_search_options": {},
    "reasoning_effort": "high",
    "verbosity": "low",
    "store": True,
    "metadata": {"a": "b"},
    "service_tier": "flex",
}


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_fields_that_cannot_be_followed_are_refused_by_name(server: LiveServer, field: str) -> None:
    assert error_of(ask(server, {**HELLO, field: UNSUPPORTED[field]})) == (400, field, "unsupported_parameter")


def test_every_unsupported_field_is_tried() -> None:
    assert UNSUPPORTED.keys() | {"parallel_tool_calls"} == ChatRequest.HARMLESS.keys()


def test_unsupported_fields_may_ask_for_nothing(server: LiveServer) -> None:
    body = {name: values[0] if values else None for name, values in ChatRequest.HARMLESS.items()}
    body |= dict.fromkeys(ChatRequest.IGNORED, "ada")
    assert ask(server, {**HELLO, **body}).status_code == 200


@pytest.mark.parametrize(
    "field", sorted({*ChatRequest.model_fields, *ChatRequest.HARMLESS, *ChatRequest.IGNORED} - {"messages"})
)
def test_null_means_the_default(server: LiveServer, field: str) -> None:
    answer = ask(server, {**HELLO, field: None})
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize("field", ["speed", "sample_rate"])
def test_null_means_the_default_of_the_audio(server: LiveServer, field: str) -> None:
    body = {**SPOKEN, "audio": {**SPOKEN["audio"], field: None}}
    assert ask(server, body).json()["choices"][0]["message"]["audio"]["transcript"] == ANSWER


def user(*content: Json) -> Json:
    return {"messages": [{"role": "user", "content": list(content)}]}


SOUND: Json = {"type": "input_audio", "input_audio": {"data": "bm8=", "format": "wav"}}
PICTURE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,bm8="}}
WRONG: dict[str, tuple[Json, int, str | None, str]] = {
    "no messages": ({"messages": []}, 400, "messages", "invalid_value"),
    "unknown field": ({**HELLO, "mesages": []}, 400, "mesages", "unknown_parameter"),
    "a tool's message": (
        {"messages": [{"role": "tool", "content": "1", "tool_call_id": "x"}]}, 400, "messages[0].role",
        "unsupported_parameter",
    ),
    "a file": (user({"type": "file", "file": {"file_id": "x"}}), 400, "messages[0].content[0].file",
               "unsupported_parameter"),
    "no text": (user({"type": "text"}), 400, "messages[0].content[0]", "invalid_value"),
    "two fields": (user({**SOUND, "text": "x"}), 400, "messages[0].content[0]", "invalid_value"),
    "no content": ({"messages": [{"role": "user"}]}, 400, "messages[0].content", "missing_required_parameter"),
    "no sound": (user(SOUND), 400, "messages[0].content[0].input_audio", "invalid_value"),
    "no picture": (user({"type": "text", "text": "See:"}, PICTURE), 400, "messages[0].content[1].image_url",
                   "invalid_value"),
    "a foreign picture": (
        user({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}), 400,
        "messages[0].content[0].image_url", "invalid_value",
    ),
    "an assistant's picture": (
        {"messages": [{"role": "assistant", "content": [PICTURE]}, *HELLO["messages"]]}, 400,
        "messages[0].content[0]", "invalid_value",
    ),
    "the assistant's turn": (
        {"messages": [*HELLO["messages"], {"role": "assistant", "content": "Hi."}]}, 400, "messages", "invalid_value",
    ),
    "unknown audio": (
        {"messages": [{"role": "assistant", "audio": {"id": "audio_0"}}, *HELLO["messages"]]}, 400,
        "messages[0].audio.id", "audio_not_found",
    ),
    "a user's audio": (
        {"messages": [{"role": "user", "audio": {"id": "audio_0"}}]}, 400, "messages[0].audio", "invalid_value",
    ),
    "audio without a voice": ({**HELLO, "modalities": ["audio"]}, 400, "audio", "missing_required_parameter"),
    "an unknown voice": (
        {**SPOKEN, "audio": {"voice": "nobody", "format": "wav"}}, 400, "audio.voice", "voice_not_found",
    ),
    "an unknown format": (
        {**SPOKEN, "audio": {"voice": "heart", "format": "pcm8"}}, 400, "audio.format", "invalid_value",
    ),
    "an unknown model": ({**HELLO, "model": "gpt-5"}, 404, "model", "model_not_found"),
    "two limits": ({**HELLO, "max_tokens": 3, "max_completion_tokens": 4}, 400, "max_tokens", "invalid_value"),
    "too long a limit": ({**HELLO, "max_completion_tokens": 1025}, 400, "max_completion_tokens", "invalid_value"),
    "options of no stream": ({**HELLO, "stream_options": {"include_usage": True}}, 400, "stream_options",
                             "invalid_value"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests_name_their_field(server: LiveServer, name: str) -> None:
    body, *expected = WRONG[name]
    frames = server.engine.stats().frames
    assert error_of(ask(server, body)) == tuple(expected)
    if "stream_options" not in body:
        assert error_of(ask(server, {**body, "stream": True})) == tuple(expected)
    assert server.engine.stats().frames == frames


def test_a_model_that_speaks_texts_does_not_chat(server: LiveServer) -> None:
    with live_server() as plain:
        assert error_of(ask(plain, HELLO)) == (404, "model", "model_not_found")
    speech = httpx.post(f"{server.url}/v1/audio/speech", json={"input": "Hello.", "voice": "heart"})
    assert error_of(speech) == (400, "model", "not_available")


TEXT_ROUTES = ("/v1/audio/speech", "/dev/captioned_speech", "/v1/text-to-speech/heart")


@pytest.mark.parametrize("path", TEXT_ROUTES)
def test_no_route_speaks_texts_by_a_model_that_chats(server: LiveServer, path: str) -> None:
    name = "text" if "text-to-speech" in path else "input"
    refused = httpx.post(server.url + path, json={name: "Hello."})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_available")
    listed = httpx.get(f"{server.url}/v1/models", headers={"xi-api-key": "none"})
    assert listed.json() == []


def test_names_of_speech_models_mean_the_first_one_that_speaks_texts() -> None:
    chat = Engine(FakeRunner(FAKE_CHAT_INFO), EngineConfig())
    with live_server({"talks": chat, "reads": fake_engine()}, thinkers={"talks": FakeThinker()}) as server:
        for model in ("tts-1", None, "reads"):
            spoken = httpx.post(
                f"{server.url}/v1/audio/speech", json={"input": "Hi.", "voice": "heart", "model": model}
            )
            assert spoken.status_code == 200
        assert ask(server, {**HELLO, "model": "gpt-audio"}).json()["model"] == "talks"
        assert error_of(ask(server, {**HELLO, "model": "reads"})) == (400, "model", "not_available")


# ---- faults -----------------------------------------------------------------------------------------------------


def test_a_thinker_that_breaks_off_leaves_no_complete_answer() -> None:
    with chat_server(ScriptedThinker("abc", 0.2, ThinkerFailed("it broke off"))) as server:
        assert error_of(ask(server, SPOKEN)) == (502, None, "thinker_failed")
        assert error_of(ask(server, HELLO)) == (502, None, "thinker_failed")
        for body in (SPOKEN, HELLO):
            answer = streamed(server, body)
            assert answer.error is not None
            assert (answer.error["code"], answer.done, answer.finish_reason) == ("thinker_failed", False, None)
            assert (answer.transcript or answer.content) == "abc"
        assert server.engine.stats().running == 0


def test_a_thinker_that_breaks_off_at_once_is_a_proper_error() -> None:
    with chat_server(ScriptedThinker(ThinkerFailed("it broke off"))) as server:
        for body in (SPOKEN, HELLO):
            assert error_of(ask(server, {**body, "stream": True})) == (502, None, "thinker_failed")


@pytest.mark.parametrize("script", [(None,), ("abc", None), ("abcdefghijkl" * 20,)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_thinker_and_row(script: tuple[Any, ...], stream: bool) -> None:
    thinker = ScriptedThinker(*script)
    with chat_server(thinker, runner=FakeRunner(FAKE_CHAT_INFO, step_s=0.01)) as server:

        def has_begun() -> bool:
            return thinker.writing == 1 if script[0] is None else server.engine.stats().running == 1

        ask_and_leave(server, PATH, {**SPOKEN, "stream": stream}, has_begun)
        wait_until(lambda: thinker.writing == 0 and server.engine.stats().running == 0)
        wait_until(lambda: server.service.speaking == 0)


def test_a_token_that_cannot_be_spoken_is_a_fault_of_the_thinker() -> None:
    class Foreign(ScriptedThinker):
        async def stream(self, messages: Any, options: Any) -> Any:
            yield self._prompt(messages)
            yield ThinkerToken(2**40)

    with chat_server(Foreign()) as server:
        assert error_of(ask(server, SPOKEN)) == (502, None, "thinker_failed")


def test_texts_of_spoken_answers_expire_and_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    spoken = SpokenAnswers(lambda: now_s[0])
    expires_s = spoken.expires_s()
    spoken.add("a", "ada", "Hello.", expires_s)
    assert spoken.text_of("a", "ada", "x") == "Hello."
    now_s[0] = expires_s + 1
    with pytest.raises(ApiError):
        spoken.text_of("a", "ada", "x")
    monkeypatch.setattr(spoken_answers, "MAX_CHARS", 10)
    for name in "bcd":
        spoken.add(name, "ada", "12345", now_s[0] + 1)
    with pytest.raises(ApiError):
        spoken.text_of("b", "ada", "x")
    assert [spoken.text_of(name, "ada", "x") for name in "cd"] == ["12345"] * 2
