"""Interrupted and truncated speech of OpenAI's Realtime socket: the transcript keeps what was said."""

from vivavoce_engine import Engine, EngineConfig

from tests.server.test_endless import Endless
from tests.server.test_realtime import TEXT, begin
from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.live_socket import pcm_of
from tests.support.realtime_socket import Realtime, dial_realtime


async def truncate(socket: Realtime, item_id: str, audio_end_ms: int) -> str:
    """Truncates an item. Returns its transcript."""
    truncated = {"item_id": item_id, "content_index": 0, "audio_end_ms": audio_end_ms}
    await socket.send("conversation.item.truncate", **truncated)
    assert (await socket.expect("conversation.item.truncated")).items() >= truncated.items()
    return await transcript_of(socket, item_id)


async def transcript_of(socket: Realtime, item_id: str) -> str:
    await socket.send("conversation.item.retrieve", item_id=item_id)
    [part] = (await socket.expect("conversation.item.retrieved"))["item"]["content"]
    transcript: str = part["transcript"]
    return transcript


PARTS = "One. [pause:1s]Two, three, four."
ENDS_MS = {
    "": 319,
    "One.": 1399,
    "One. [pause:1s]": 1719,
    "One. [pause:1s]Two,": 1720,
    "One. [pause:1s]Two, three,": 2280,
}


async def test_a_cancelled_response_has_the_word_that_had_begun() -> None:
    said = "One. [pause:1s]Two,"
    gate = Gate(hold_from_step=7)
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial_realtime(server) as socket:
            await begin(socket)
            await socket.add(f"{PARTS} [pause:1s] Five.")
            await socket.send("response.create")
            audio = b""
            while len(audio) <= len(pcm_of(0, 5)) + 48000:
                audio += (await socket.until("response.output_audio.delta")).audio
            await socket.send("response.cancel")
            heard = await socket.response()
            gate.open()
    audio += heard.audio
    [item] = heard.response["output"]
    assert (item["status"], item["content"]) == ("incomplete", [{"type": "output_audio", "transcript": said}])
    assert said.startswith(heard.transcript)
    done = {event["type"]: event for event in heard.events}
    assert done["response.output_audio_transcript.done"]["transcript"] == said
    assert done["response.content_part.done"]["part"]["transcript"] == said
    assert done["conversation.item.done"]["item"] == item
    assert heard.response["usage"]["output_tokens"] == (len(audio) - 48000) / len(pcm_of(0, 1))


async def test_a_cancelled_response_is_not_cut_in_markup() -> None:
    gate = Gate(hold_from_step=5)
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial_realtime(server) as socket:
            await begin(socket)
            await socket.add("A [link](https://a.example/b) two.")
            await socket.send("response.create")
            audio = b""
            while len(audio) < len(pcm_of(0, 2)):
                audio += (await socket.until("response.output_audio.delta")).audio
            await socket.send("response.cancel")
            heard = await socket.response()
            gate.open()
    [item] = heard.response["output"]
    assert item["content"][0]["transcript"] == "A [link](https://a.example/b)"


async def test_a_truncated_item_keeps_the_words_that_were_heard(server: LiveServer) -> None:
    async with dial_realtime(server) as socket:
        await begin(socket)
        await socket.add(PARTS)
        await socket.send("response.create")
        heard = await socket.response()
        item_id = heard.response["output"][0]["id"]
        whole_ms = len(heard.audio) // 48
        assert await truncate(socket, item_id, whole_ms) == PARTS
        for transcript, end_ms in reversed(ENDS_MS.items()):
            assert await truncate(socket, item_id, end_ms) == transcript
        await socket.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=whole_ms + 1)
        error = await socket.error()
        assert (error["param"], error["code"]) == ("audio_end_ms", "invalid_value")
        assert (
            error["message"] == f"The item {item_id!r} has {whole_ms} ms of audio, which is less than {whole_ms + 1} ms"
        )


async def test_an_item_that_is_truncated_while_it_speaks_keeps_what_was_heard() -> None:
    """openai-agents truncates before it cancels."""
    gate = Gate(hold_from_step=7)
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial_realtime(server) as socket:
            await begin(socket)
            await socket.add(PARTS)
            await socket.send("response.create")
            events, audio = [], b""
            while len(audio) <= len(pcm_of(0, 5)) + 48000:
                heard = await socket.until("response.output_audio.delta")
                events += heard.events
                audio += heard.audio
            item_id = events[1]["item"]["id"]
            await socket.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=500)
            await socket.until("conversation.item.truncated")
            await socket.send("response.cancel")
            [item] = (await socket.response()).response["output"]
            assert item["content"][0]["transcript"] == "One."
            assert await transcript_of(socket, item_id) == "One."
            gate.open()


async def test_a_written_item_has_no_audio(server: LiveServer) -> None:
    async with dial_realtime(server) as socket:
        await begin(socket)
        item = {"type": "message", "id": "a", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
        await socket.send("conversation.item.create", item=item)
        await socket.until("conversation.item.done")
        await socket.send("conversation.item.truncate", item_id="a", content_index=0, audio_end_ms=1)
        assert (await socket.error())["message"] == "The item 'a' has 0 ms of audio, which is less than 1 ms"


async def test_endless_speech_fails_its_response() -> None:
    with live_server(Engine(Endless(attempts=1), EngineConfig())) as server:
        async with dial_realtime(server) as socket:
            await begin(socket)
            await socket.say(TEXT)
            response = (await socket.response()).response
        assert (response["status"], response["status_details"]["error"]["code"]) == ("failed", "endless_speech")
