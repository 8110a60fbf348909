"""OpenAI's Realtime socket: speech of given text, driven by OpenAI's own client and by hand."""

import asyncio
import base64
import io
import signal
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from pydantic import SecretStr
from vivavoce_engine import EngineConfig
from vivavoce_server import ServerConfig
from vivavoce_server.live import conversation, realtime

from tests.server.test_shutdown import impatient_server
from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.live_socket import pcm_of
from tests.support.realtime_socket import Realtime, dial_realtime
from tests.support.waiting import wait_until

TEXT = "Hello there. How are you?"
KEY = "sk-right"
OUT_OF_BAND = [
    "response.created",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_audio.delta",
    "response.output_audio_transcript.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.done",
]
IN_CONVERSATION = [
    *OUT_OF_BAND[:2],
    "conversation.item.added",
    *OUT_OF_BAND[2:-1],
    "conversation.item.done",
    "response.done",
]


def is_tone(audio: bytes, frames: int) -> bool:
    """True if this is the whole speech of a fake text, whose seed is not known."""
    return any(audio == pcm_of(seed, frames) for seed in range(400))


async def begin(socket: Realtime, **output: object) -> dict[str, Any]:
    """Receives session.created, and changes the audio that the session gets. Returns the session."""
    await socket.expect("session.created")
    await socket.send("session.update", session={"type": "realtime", "audio": {"output": output}})
    session: dict[str, Any] = (await socket.expect("session.updated"))["session"]
    return session


async def test_openais_client_hears_a_text(server: LiveServer) -> None:
    client = openai.AsyncOpenAI(api_key="any", base_url=f"{server.url}/v1", max_retries=0)
    audio, kinds = b"", []
    async with client.realtime.connect(model="gpt-realtime-2.1-mini") as connection:
        assert (await connection.recv()).type == "session.created"
        await connection.session.update(
            session={"type": "realtime", "output_modalities": ["audio"], "audio": {"output": {"voice": "marin"}}}
        )
        await connection.response.create(
            response={
                "conversation": "none",
                "instructions": "Read the text aloud, word for word.",
                "tools": [],
                "tool_choice": "none",
                "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]}],
            }
        )
        async for event in connection:
            kinds.append(event.type)
            if event.type == "response.output_audio.delta":
                audio += base64.b64decode(event.delta)
            if event.type == "response.output_audio_transcript.done":
                assert event.transcript == TEXT
            if event.type == "response.done":
                assert event.response.status == "completed"
                assert event.response.usage is not None
                assert event.response.usage.output_tokens == len(TEXT)
                break
    assert kinds[0] == "session.updated"
    assert is_tone(audio, len(TEXT))
    wait_until(lambda: server.engine.stats().running == 0)


async def test_events_out_of_band_come_in_order(server: LiveServer) -> None:
    async with dial_realtime(server, "?model=gpt-realtime") as socket:
        await begin(socket)
        await socket.say(TEXT, metadata={"client_event_id": "7"}, output_modalities=["audio"], tools=[])
        heard = await socket.response()
    assert heard.kinds == OUT_OF_BAND
    created = heard.events[0]["response"]
    assert (created["metadata"], created["conversation_id"], created["status"], created["output"]) == (
        {"client_event_id": "7"},
        None,
        "in_progress",
        [],
    )
    done = heard.response
    assert (done["id"], done["status"], done["metadata"]) == (created["id"], "completed", created["metadata"])
    item = heard.events[1]["item"]
    assert (item["content"], item["status"]) == ([], "in_progress")
    assert done["output"] == [
        {**item, "status": "completed", "content": [{"type": "output_audio", "transcript": TEXT}]}
    ]
    for event in heard.events[1:-1]:
        assert (event["response_id"], event["output_index"]) == (created["id"], 0)
        if "item" not in event:
            assert (event["item_id"], event["content_index"]) == (item["id"], 0)
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"]


async def test_the_text_of_the_conversation_is_spoken_once(server: LiveServer) -> None:
    async with dial_realtime(server) as socket:
        await begin(socket)
        await socket.add("Old words.", role="assistant")
        mine = await socket.add("One.", id="mine")
        await socket.add("Two.")
        assert mine == "mine"
        await socket.send("response.create")
        heard = await socket.response()
        assert heard.kinds == IN_CONVERSATION
        assert heard.response["output"][0]["content"][0]["transcript"] == "One.\nTwo."
        added = next(event for event in heard.events if event["type"] == "conversation.item.added")
        assert added["item"]["id"] == heard.response["output"][0]["id"]
        assert heard.response["conversation_id"].startswith("conv_")

        await socket.send("response.create", event_id="again")
        error = await socket.error()
        assert (error["code"], error["event_id"], error["type"]) == ("no_text", "again", "invalid_request_error")
        await socket.add("Three.")
        await socket.send("response.create", response={"instructions": "Be brief."})
        assert (await socket.response()).response["output"][0]["content"][0]["transcript"] == "Three."


async def test_the_last_message_of_the_user_in_an_input_is_spoken(server: LiveServer) -> None:
    async with dial_realtime(server) as socket:
        await begin(socket)
        await socket.add("Kept.", id="kept")
        texts = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "First."}]}]
        for given, said in (
            ([*texts, {"type": "item_reference", "id": "kept"}], "Kept."),
            ([{"type": "item_reference", "id": "kept"}, *texts], "First."),
        ):
            await socket.send("response.create", response={"conversation": "none", "input": given})
            assert (await socket.response()).response["output"][0]["content"][0]["transcript"] == said
        # What was said out of band leaves the conversation unanswered.
        await socket.send("response.create")
        assert (await socket.response()).response["output"][0]["content"][0]["transcript"] == "Kept."


async def test_text_is_read_and_pauses_are_silence(server: LiveServer) -> None:
    async with dial_realtime(server) as socket:
        await begin(socket)
        text = "**One**[pause:0.5s]two"
        await socket.say(text)
        heard = await socket.response()
    assert heard.response["output"][0]["content"][0]["transcript"] == text
    assert heard.response["usage"]["output_tokens"] == len("One") + len("two")
    assert len(heard.audio) == len(pcm_of(0, len("One") + len("two"))) + 24000


@pytest.mark.parametrize(("kind", "subtype"), [("audio/pcmu", "ULAW"), ("audio/pcma", "ALAW")])
async def test_telephones_get_their_formats(server: LiveServer, kind: str, subtype: str) -> None:
    async with dial_realtime(server) as socket:
        session = await begin(socket, format={"type": kind})
        assert session["audio"]["output"]["format"] == {"type": kind}
        await socket.say(TEXT)
        audio = (await socket.response()).audio
    samples, _ = soundfile.read(
        io.BytesIO(audio), samplerate=8000, channels=1, format="RAW", subtype=subtype, dtype="float32"
    )
    assert len(samples) == pytest.approx(len(TEXT) * 640, abs=64)
    assert np.sqrt(np.mean(samples[800:-800] ** 2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.05)


async def test_settings_change_for_the_session_or_for_one_response(server: LiveServer) -> None:
    async with dial_realtime(server) as socket:
        session = await begin(socket, speed=2.0, voice={"id": "heart"})
        assert (session["audio"]["output"]["speed"], session["audio"]["output"]["voice"]) == (2.0, {"id": "heart"})
        await socket.say(TEXT)
        assert len((await socket.response()).audio) == pytest.approx(len(pcm_of(0, len(TEXT))) // 2, abs=9600)
        await socket.say(TEXT, audio={"output": {"format": {"type": "audio/pcmu"}}})
        assert len((await socket.response()).audio) == pytest.approx(len(pcm_of(0, len(TEXT))) // 12, abs=1600)
        # What is not named stays, and no microphone is heard: an echo of its settings would be a promise.
        turn = {"type": "server_vad", "interrupt_response": True}
        listening = {"turn_detection": turn, "transcription": {"model": "whisper-1"}}
        await socket.send("session.update", session={"type": "realtime", "audio": {"input": listening}})
        updated = (await socket.expect("session.updated"))["session"]
        assert updated["audio"]["output"] == session["audio"]["output"]
        assert (updated["audio"]["input"]["turn_detection"], updated["audio"]["input"]["transcription"]) == (None, None)


async def test_what_needs_a_model_or_a_microphone_is_refused_by_name(server: LiveServer) -> None:
    refused: list[tuple[str, dict[str, Any], str, str]] = [
        ("session.update", {"session": {"output_modalities": ["text"]}}, "session.output_modalities", "not_available"),
        ("session.update", {"session": {"tools": [{"type": "function"}]}}, "session.tools", "not_available"),
        ("session.update", {"session": {"type": "transcription"}}, "session.type", "invalid_value"),
        ("session.update", {"session": {"model": "other"}}, "session.model", "model_not_found"),
        (
            "session.update",
            {"session": {"audio": {"output": {"voice": "nobody"}}}},
            "session.audio.output.voice",
            "voice_not_found",
        ),
        (
            "session.update",
            {"session": {"audio": {"output": {"format": {"type": "audio/pcm", "rate": 16000}}}}},
            "session.audio.output.format",
            "invalid_value",
        ),
        ("session.update", {}, "session", "missing_required_parameter"),
        (
            "response.create",
            {"response": {"output_modalities": ["text"]}},
            "response.output_modalities",
            "not_available",
        ),
        ("response.create", {"response": {"input": []}}, "response.input", "no_text"),
        ("input_audio_buffer.commit", {}, "type", "not_available"),
        ("output_audio_buffer.clear", {}, "type", "not_available"),
        ("response.think", {}, "type", "invalid_value"),
        ("conversation.item.create", {"item": {"type": "function_call"}}, "item.type", "not_available"),
        (
            "conversation.item.create",
            {"item": {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": ""}]}},
            "item.content.0.type",
            "not_available",
        ),
        ("conversation.item.retrieve", {"item_id": "none"}, "item_id", "item_not_found"),
        ("conversation.item.delete", {"item_id": "none"}, "item_id", "item_not_found"),
    ]
    async with dial_realtime(server) as socket:
        before = await begin(socket)
        for kind, fields, param, code in refused:
            await socket.send(kind, event_id="mine", **fields)
            error = await socket.error()
            assert (error["param"], error["code"], error["event_id"]) == (param, code, "mine"), error
        for broken in ("{", "[]", '{"type": 5}'):
            await socket.connection.send(broken)
            assert (await socket.error())["event_id"] is None
        await socket.send("session.update", session={})
        assert (await socket.expect("session.updated"))["session"] == before


async def test_null_is_an_absent_field_at_any_depth(server: LiveServer) -> None:
    output = {"format": None, "voice": None, "speed": None}
    shared: dict[str, Any] = {"output_modalities": None, "tools": None, "tool_choice": None, "instructions": None}
    content = [{"type": "input_text", "text": "Hi.", "transcript": None}]
    item = {"type": "message", "id": None, "role": None, "content": content}
    for response in (None, {**shared, "audio": None, "conversation": None, "metadata": None, "input": None}):
        async with dial_realtime(server) as socket:
            session = await begin(socket)
            for audio in (None, {"input": None, "output": None}, {"output": output}):
                given = {**shared, "type": None, "model": None, "audio": audio}
                await socket.send("session.update", event_id=None, session=given)
                assert (await socket.expect("session.updated"))["session"] == session
            await socket.send("conversation.item.create", previous_item_id=None, item=item)
            added = await socket.expect("conversation.item.added")
            assert (added["item"]["role"], added["item"]["content"][0]["text"]) == ("user", "Hi.")
            await socket.expect("conversation.item.done")
            await socket.send("conversation.item.retrieve", item_id=None)
            error = await socket.error()
            assert (error["param"], error["code"]) == ("item_id", "missing_required_parameter")
            await socket.send("response.create", response=response)
            await socket.expect("response.created")


async def test_audio_of_a_microphone_is_dropped(server: LiveServer) -> None:
    async with dial_realtime(server) as socket:
        await begin(socket)
        await socket.send("input_audio_buffer.append", audio="AAAA")
        await socket.send("input_audio_buffer.clear")
        await socket.expect("input_audio_buffer.cleared")


async def test_items_are_kept_shown_and_deleted(server: LiveServer) -> None:
    async with dial_realtime(server) as socket:
        await begin(socket)
        await socket.add("Two.", id="two")
        item = {"type": "message", "id": "one", "role": "user", "content": [{"type": "input_text", "text": "One."}]}
        await socket.send("conversation.item.create", previous_item_id="root", item=item)
        assert (await socket.expect("conversation.item.added"))["previous_item_id"] is None
        await socket.expect("conversation.item.done")
        await socket.send("conversation.item.create", previous_item_id="one", item={**item, "id": "middle"})
        assert (await socket.expect("conversation.item.added"))["previous_item_id"] == "one"
        await socket.expect("conversation.item.done")
        await socket.send("conversation.item.create", item=item)
        assert (await socket.error())["param"] == "item.id"
        await socket.send("conversation.item.retrieve", item_id="one")
        shown = (await socket.expect("conversation.item.retrieved"))["item"]
        assert shown == {**item, "object": "realtime.item", "status": "completed"}
        await socket.send("conversation.item.delete", item_id="middle")
        assert (await socket.expect("conversation.item.deleted"))["item_id"] == "middle"
        await socket.send("response.create")
        assert (await socket.response()).response["output"][0]["content"][0]["transcript"] == "One.\nTwo."


async def test_a_conversation_forgets_its_oldest_items(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MAX_ITEMS", 2)
    async with dial_realtime(server) as socket:
        await begin(socket)
        for name in ("a", "b", "c"):
            await socket.add(name, id=name)
        await socket.send("conversation.item.retrieve", item_id="a")
        assert (await socket.error())["code"] == "item_not_found"
        await socket.send("conversation.item.retrieve", item_id="b")
        await socket.expect("conversation.item.retrieved")


async def test_a_cancel_stops_at_once_and_tells_what_was_sent() -> None:
    gate = Gate(hold_from_step=4)
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial_realtime(server) as socket:
            await begin(socket)
            await socket.add(TEXT)
            await socket.send("response.create")
            heard = await socket.until("response.output_audio.delta")
            item_id = heard.events[1]["item"]["id"]
            await socket.send("response.cancel")
            rest = await socket.response()
            gate.open()
            assert rest.response["status"] == "cancelled"
            assert rest.response["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
            assert rest.response["output"][0]["status"] == "incomplete"
            sent = len(heard.audio + rest.audio) / len(pcm_of(0, 1))
            assert 0 < sent <= 4
            assert rest.response["usage"]["output_tokens"] == sent
            assert rest.kinds[-6:] == IN_CONVERSATION[-6:]
            await asyncio.to_thread(wait_until, lambda: server.engine.stats().running == 0)

            truncated = {"item_id": item_id, "content_index": 0, "audio_end_ms": 40}
            await socket.send("conversation.item.truncate", **truncated)
            assert (await socket.expect("conversation.item.truncated")).items() >= truncated.items()
            await socket.send("conversation.item.retrieve", item_id=item_id)
            shown = (await socket.expect("conversation.item.retrieved"))["item"]
            assert shown["content"] == [{"type": "output_audio", "transcript": ""}]

            # The next turn follows, without a sound of the first.
            await socket.add("Bye.")
            await socket.send("response.create")
            assert is_tone((await socket.response()).audio, len("Bye."))


async def test_a_cancel_of_nothing_is_told_as_clients_know_it(server: LiveServer) -> None:
    async with dial_realtime(server) as socket:
        await begin(socket)
        await socket.send("response.cancel", event_id="e")
        error = await socket.error()
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "e")
        assert error["message"].startswith("Cancellation failed")
        await socket.send("response.cancel", response_id="resp_gone")
        assert (await socket.error())["param"] == "response_id"


async def test_one_response_belongs_to_the_conversation_and_others_run_beside_it() -> None:
    gate = Gate()
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial_realtime(server) as socket:
            await begin(socket)
            await socket.add("One.")
            await socket.send("response.create")
            first = (await socket.until("response.content_part.added")).events[0]["response"]["id"]
            await socket.add("Two.")
            await socket.send("response.create", event_id="early")
            error = await socket.error()
            assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "early")
            await socket.say("Beside.")
            beside = (await socket.until("response.content_part.added")).events[0]["response"]["id"]
            await socket.send("response.cancel", response_id=beside)
            cancelled = await socket.response()
            assert (cancelled.response["id"], cancelled.response["status"]) == (beside, "cancelled")
            gate.open()
            finished = await socket.response()
            assert (finished.response["id"], finished.response["status"]) == (first, "completed")
            assert is_tone(finished.audio, len("One."))
            await socket.send("response.create")
            assert (await socket.response()).response["output"][0]["content"][0]["transcript"] == "Two."


async def test_responses_beside_each_other_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "MAX_RESPONSES", 1)
    gate = Gate()
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial_realtime(server) as socket:
            await begin(socket)
            await socket.say("One.")
            await socket.until("response.content_part.added")
            await socket.say("Two.")
            assert (await socket.error())["code"] == "too_many_responses"
            gate.open()
            await socket.response()


async def test_a_text_that_cannot_be_spoken_fails_its_response(server: LiveServer) -> None:
    async with dial_realtime(server) as socket:
        await begin(socket)
        await socket.say("...", metadata={"client_event_id": "1"})
        heard = await socket.response()
        assert heard.kinds == ["response.created", "response.done"]
        assert (heard.response["status"], heard.response["output"]) == ("failed", [])
        assert heard.response["status_details"]["error"]["code"] == "nothing_to_speak"
        await socket.say("x" * 5000)
        error = await socket.error()
        assert (error["param"], error["code"]) == ("response.input", "string_above_max_length")


async def test_a_full_queue_fails_the_response() -> None:
    gate = Gate()
    config = EngineConfig(max_streams=1, max_queue=1)
    with live_server(fake_engine(config, before_step=gate)) as server:
        async with dial_realtime(server) as socket:
            await begin(socket)
            for _ in range(3):
                await socket.say(TEXT)
            failed = (await socket.response()).response
            gate.open()
        assert (failed["status"], failed["status_details"]["error"]["code"]) == ("failed", "queue_full")


async def test_a_listener_who_leaves_frees_the_rows() -> None:
    with live_server(fake_engine(step_s=0.01)) as server:
        async with dial_realtime(server) as socket:
            await begin(socket)
            await socket.say(TEXT * 20)
            await socket.until("response.output_audio.delta")
        await asyncio.to_thread(wait_until, lambda: server.engine.stats().running == 0)
        await asyncio.to_thread(wait_until, lambda: server.service.live_sessions == 0)


async def test_keys_are_checked_behind_the_handshake() -> None:
    with live_server(config=ServerConfig(api_keys=(SecretStr(KEY),))) as server:
        wrong: list[dict[str, Any]] = [{}, {"additional_headers": {"Authorization": "Bearer sk-wrong"}}]
        for options in wrong:
            async with dial_realtime(server, **options) as socket:
                assert (await socket.error())["code"] == "invalid_api_key"
                assert await socket.close_code() == 1008
        async with dial_realtime(server, additional_headers={"Authorization": f"Bearer {KEY}"}) as socket:
            await begin(socket)
        browser: dict[str, Any] = {"subprotocols": ["realtime", f"openai-insecure-api-key.{KEY}"]}
        async with dial_realtime(server, **browser) as socket:
            assert socket.connection.subprotocol == "realtime"
            await begin(socket)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("?model=other", "model_not_found"),
        ("?intent=transcription", "not_available"),
        ("?model=gpt-realtime&call_id=rtc_1", "not_available"),
    ],
)
async def test_an_address_that_is_not_served_is_named(server: LiveServer, query: str, code: str) -> None:
    async with dial_realtime(server, query) as socket:
        assert (await socket.error())["code"] == code
        assert await socket.close_code() == 1008


async def test_a_full_server_is_to_be_tried_again() -> None:
    with live_server(config=ServerConfig(live_max_sessions=1)) as server:
        async with dial_realtime(server) as first, dial_realtime(server) as second:
            await begin(first)
            assert (await second.error())["type"] == "rate_limit_error"
            assert await second.close_code() == 1013


async def test_a_silent_connection_leaves_a_server_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    with impatient_server(monkeypatch) as (server, running):
        async with dial_realtime(server) as socket:
            await begin(socket)
            running.handle_exit(signal.SIGTERM, None)
            assert (await socket.error())["code"] == "not_serving"
            assert await socket.close_code() == 1013
