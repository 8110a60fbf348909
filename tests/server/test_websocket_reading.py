"""The live sockets' text is read: pauses, normalization, refusals and warnings, as over HTTP."""

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from vivavoce_engine import Engine, EngineConfig, LiveUtterance
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices
from vivavoce_server import ServerConfig
from vivavoce_server.ignored import INSTRUCTIONS_IGNORED
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.live_socket import Socket, Utterance, dial, pcm_of
from tests.support.readers import WORDS, answer_of, ask, reading_server
from tests.support.waiting import HUNG_S, wait_until
from tests.text.pairs import pairs

SILENCE_2_S = bytes(2 * 2 * FAKE_INFO.sample_rate)
NOTHING = ["", "  \n ", "\t\t", "\u200b", ".", "-", "\U0001f600", "[pause:0s]"]
FOREIGN = "\u4f60\u597d"


@pytest.fixture(scope="module")
def reader() -> Iterator[LiveServer]:
    with reading_server() as server:
        yield server


async def say(socket: Socket, *fragments: str) -> Utterance:
    await socket.say(*fragments)
    await socket.send("input.done")
    return await socket.utterance()


async def refused(socket: Socket, *fragments: str) -> dict[str, Any]:
    """The error of an utterance that is not spoken."""
    await socket.say(*fragments)
    await socket.send("input.done")
    await socket.expect("audio.start")
    error = await socket.error()
    done = await socket.expect("audio.done")
    assert (done["cancelled"], done["total_bytes"]) == (True, 0)
    return error


# ---- pauses


async def test_a_pause_is_silence_in_one_utterance_for_any_fragments(reader: LiveServer) -> None:
    text = "One. [pause:2s] Two."
    async with dial(reader) as socket:
        await socket.configure(model="fake")
        for fragments in ([text], list(text), ["One. [pau", "se:2", "s] Two."], ["One. [pause:2s]", "", " Two."]):
            heard = await say(socket, *fragments)
            assert heard.audio == pcm_of(5, len("One. ")) + SILENCE_2_S + pcm_of(5, 4)
            assert heard.done["duration_ms"] == 2720
            assert "warnings" not in heard.done
        assert (await say(socket, 'One. <break time="2s"/> Two.')).audio == heard.audio


async def test_live_speech_with_a_pause_is_that_of_http(reader: LiveServer) -> None:
    text = "One.[pause:700ms]Two."
    async with dial(reader) as socket:
        await socket.configure(model="fake", seed=9, speed=2.0)
        assert (await say(socket, *text)).audio == ask(reader, text, "fake", seed=9, speed=2.0).content


async def test_a_wrong_tag_keeps_utterance_and_connection(reader: LiveServer) -> None:
    async with dial(reader) as socket:
        await socket.configure(model="fake")
        await socket.say("One. [pause:abc] Two.")
        await socket.send("input.done")
        await socket.expect("audio.start")
        error = await socket.error()
        assert (error["param"], error["code"]) == ("text", "invalid_value")
        assert error["message"].startswith("[pause:abc] is not a pause; write [pause:0.5s]")
        assert error["message"].endswith("The tag is passed over")
        assert (await socket.rest())[0] == pcm_of(5, len("One. Two."))
        assert (await say(socket, "Hi!")).audio == pcm_of(5, 3)


async def test_parts_share_one_seed_and_one_row_and_none_is_refused() -> None:
    """Another utterance waits for the only row meanwhile, and the queue is full."""
    plans: list[Plan] = []
    gate = Gate()

    def before_step(plan: Plan) -> None:
        plans.append(plan)
        gate(plan)

    with live_server(fake_engine(EngineConfig(max_streams=1, max_queue=1), before_step)) as server:
        async with dial(server) as socket, dial(server) as other:
            await socket.configure(seed=None)
            await socket.say("One.[pause:2s]Two.[pause:2s]Three.")
            await socket.send("input.done")
            await socket.expect("audio.start")
            wait_until(lambda: bool(gate.batches))
            await other.configure()
            await other.say("Hi!")
            await other.send("input.done")
            await other.expect("audio.start")
            wait_until(lambda: server.engine.stats().queued == 1)
            gate.open()
            audio, done = await socket.rest()
            assert not done["cancelled"]
            assert len(audio) == len(pcm_of(0, 4 + 4 + 6) + 2 * SILENCE_2_S)
            assert (await other.rest())[0] == pcm_of(5, 3)
    started = [sequence.pending.seed for plan in plans for sequence in plan.start]
    started.remove(5)
    assert len(started) == 3
    assert len(set(started)) == 1
    assert max(gate.batches) == 1


@pytest.mark.parametrize("text", ["One.[pause:10s]", "One.[pause:1s]Two and three "])
async def test_cancel_behind_a_pause_frees_everything(text: str) -> None:
    with live_server() as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say(text)
            await socket.expect("audio.start")
            heard = b""
            while len(heard) < len(pcm_of(5, 4)) + 48000:
                heard += await socket.audio()
            await socket.send("input.cancel")
            rest, done = await socket.rest()
            assert (done["cancelled"], done["total_bytes"]) == (True, len(heard + rest))
            wait_until(lambda: server.engine.stats().running + server.engine.stats().queued == 0)
            assert (await say(socket, "Hi!")).audio == pcm_of(5, 3)


async def test_an_utterance_that_waits_behind_a_pause_times_out() -> None:
    with live_server(config=ServerConfig(live_idle_s=0.2)) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say("One.[pause:1s]")
            await socket.expect("audio.start")
            message = await socket.receive()
            while isinstance(message, bytes):
                message = await socket.receive()
            assert message["error"]["code"] == "idle_timeout"
            assert (await socket.expect("audio.done"))["cancelled"]
            await socket.say("this is passed over")
            await socket.send("input.done")
            assert (await say(socket, "Hi!")).audio == pcm_of(5, 3)


# ---- the longest utterance of a checkpoint


async def test_a_long_text_is_spoken_in_parts_for_any_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: dict[int, str] = {}
    append = LiveUtterance.append

    def noting(utterance: LiveUtterance, text: str, word_ends: bool = False) -> None:
        number = utterance.stream.utterance_id
        texts[number] = texts.get(number, "") + text
        append(utterance, text, word_ends)

    monkeypatch.setattr(LiveUtterance, "append", noting)
    engine = Engine(FakeRunner(replace(FAKE_INFO, max_utterance_chars=40)), EngineConfig(max_streams=1, max_queue=1))
    text = "The train leaves at noon. Nobody knows why, and nobody asks. It is late, as it always was here."
    parts = ["The train leaves at noon.", "Nobody knows why, and nobody asks.", "It is late, as it always was here."]
    with live_server(engine) as server:
        async with dial(server) as socket:
            await socket.configure()
            for fragments in ([text], list(text), [text[:30], text[30:37], text[37:]]):
                heard = await say(socket, *fragments)
                assert heard.audio == b"".join(pcm_of(5, len(part)) for part in parts)
                assert list(texts.values()) == parts
                texts.clear()


# ---- reading


async def test_pairs_through_the_socket_are_those_of_http(reader: LiveServer) -> None:
    async with dial(reader) as socket:
        await socket.configure(model="words")
        for pair in [pair for pair in pairs() if pair.language == "en"][::25]:
            expected = ask(reader, pair.written, seed=5).content
            assert (await say(socket, pair.written)).audio == expected
            assert (await say(socket, *pair.written)).audio == expected


@pytest.mark.parametrize("fields", [{}, {"normalize": True}, {"normalize": False}, {"normalize": ["emoji", "links"]}])
async def test_normalize_is_the_configurations_choice(fields: dict[str, Any], reader: LiveServer) -> None:
    text = "**Hello** \U0001f600 https://example.com/docs, friends."
    said = answer_of(reader, text, "words", **fields)["text"]
    async with dial(reader) as socket:
        await socket.configure(model="words", **fields)
        assert (await say(socket, text[:5], text[5:30], text[30:])).audio == pcm_of(5, len(said))


async def test_kokoros_switches_are_taken(reader: LiveServer) -> None:
    text = "See https://example.com/docs now."
    options = {"url_normalization": False}
    said = answer_of(reader, text, "words", normalization_options=options)["text"]
    async with dial(reader) as socket:
        await socket.configure(model="words", normalization_options=options)
        assert (await say(socket, text)).audio == pcm_of(5, len(said))
        await socket.send("session.config", model="words", voice="heart", normalize=True, normalization_options=options)
        assert (await socket.error())["param"] == "normalization_options"


async def test_every_sentence_is_read_and_an_utterance(reader: LiveServer) -> None:
    async with dial(reader) as socket:
        await socket.configure(model="fake", split="sentence")
        await socket.say("See **this** one. [pause:2s] And *that*. ")
        await socket.send("input.done")
        heard = [(await socket.utterance()).audio for _ in range(2)]
    assert heard == [pcm_of(5, len("See this one.")), SILENCE_2_S + pcm_of(5, len("And that."))]


# ---- what cannot be spoken


@pytest.mark.parametrize("text", [*NOTHING, FOREIGN])
@pytest.mark.parametrize("model", ["words", "fake"])
async def test_what_cannot_be_spoken_is_refused_as_over_http(text: str, model: str, reader: LiveServer) -> None:
    expected = ask(reader, text, model).json()["error"]
    async with dial(reader) as socket:
        await socket.configure(model=model)
        for fragments in ([text], list(text) or [""]):
            if text == "[pause:1s]":
                await socket.say(*fragments)
                await socket.send("input.done")
                await socket.expect("audio.start")
                while isinstance(message := await socket.receive(), bytes):
                    assert not any(message)
                assert message["error"] == expected
                assert (await socket.expect("audio.done"))["cancelled"]
            else:
                assert await refused(socket, *fragments) == expected
        assert (await say(socket, "Hi!")).audio == pcm_of(5, 3)


async def test_what_is_left_out_is_told_with_the_end(reader: LiveServer) -> None:
    text = f"She said {FOREIGN} and left."
    answer = answer_of(reader, text, "words")
    async with dial(reader) as socket:
        await socket.configure(model="words")
        heard = await say(socket, *text)
        assert heard.done["warnings"] == answer["warnings"]
        assert len(answer["warnings"]) == 1
        assert heard.audio == pcm_of(5, len(answer["text"]))
        assert "warnings" not in (await say(socket, "She left.")).done


async def test_instructions_that_the_model_cannot_follow_are_ignored_and_that_is_told() -> None:
    engine = Engine(FakeRunner(replace(FAKE_INFO, takes_instructions=False)), EngineConfig(), fake_voices())
    with live_server(engine) as server:
        async with dial(server) as socket:
            await socket.configure(instructions="Whisper.")
            for text in ("Hi.", "So."):
                await socket.say(text)
                await socket.send("input.done")
                spoken = await socket.utterance()
                assert spoken.audio == pcm_of(5, 3)
                assert spoken.done["warnings"] == [INSTRUCTIONS_IGNORED]


async def test_without_strictness_it_speaks_on() -> None:
    with reading_server(ServerConfig(strict_text=False)) as server:
        async with dial(server) as socket:
            await socket.configure(model="fake")
            assert (await say(socket, FOREIGN)).audio == pcm_of(5, len(FOREIGN))
            heard = await say(socket, "\U0001f600")
            assert not any(heard.audio)
            assert (heard.done["duration_ms"], len(heard.done["warnings"])) == (300, 1)
            assert (await refused(socket, " "))["code"] == "nothing_to_speak"


async def test_a_flood_of_fragments_is_bounded() -> None:
    with live_server(config=ServerConfig(live_max_chars=600)) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say(*["ab " for _ in range(400)], *[""] * 400)
            await socket.send("input.done")
            errors = 0
            while not isinstance(message := await socket.receive(), dict) or message["type"] != "audio.done":
                errors += isinstance(message, dict) and message["type"] == "error"
            assert errors == 200
            assert message["total_bytes"] == len(pcm_of(5, len("ab " * 200) - 1))


# ---- ElevenLabs' protocol


async def eleven(server: LiveServer, query: str, *texts: str) -> tuple[bytes, list[dict[str, Any]]]:
    """The audio, and the messages without audio and times, for a first message " " and these texts."""
    url = server.url.replace("http", "ws")
    url += f"/v1/text-to-speech/heart/stream-input?seed=5&output_format=pcm_24000&{query}"
    audio, others = b"", []
    async with connect(url, proxy=None) as connection, asyncio.timeout(HUNG_S):
        try:
            for text in (" ", *texts):
                await connection.send(json.dumps({"text": text}))
            await connection.send(json.dumps({"text": ""}))
            while True:
                message = json.loads(await connection.recv())
                if message.get("audio") is not None:  # one that has the times of the last signs has no sound
                    audio += base64.b64decode(message["audio"])
                else:
                    others.append(message)
        except ConnectionClosed:
            return audio, others


FINAL = [{"isFinal": True}]


async def test_elevenlabs_pauses_are_silence(reader: LiveServer) -> None:
    for texts in (["One. [pause:2s] Two. "], ["One. [pau", "se:2s] ", "Two. "], ['One. <break time="2.0s" /> Two. ']):
        heard = await eleven(reader, "model_id=fake", *texts)
        assert heard == (pcm_of(5, len("One. ")) + SILENCE_2_S + pcm_of(5, 4), FINAL)


async def test_elevenlabs_is_told_what_cannot_be_spoken(reader: LiveServer) -> None:
    expected = ask(reader, FOREIGN, "words").json()["error"]
    audio, others = await eleven(reader, "model_id=words", FOREIGN, " ")
    assert audio == b""
    assert [(other["message"], other["error"]) for other in others] == [(expected["message"], expected["code"])]


@pytest.mark.parametrize("text", NOTHING[3:7])
async def test_elevenlabs_session_ends_well_with_nothing_to_speak(text: str, reader: LiveServer) -> None:
    """Its clients wait for isFinal, and take an error for a reason to try the same text again."""
    message = ask(reader, text, "words").json()["error"]["message"]
    assert await eleven(reader, "model_id=words", text, " ") == (b"", [{"isFinal": True, "warnings": [message]}])


async def test_elevenlabs_keeps_silent_about_blanks(reader: LiveServer) -> None:
    """They keep the connection open, and open no utterance."""
    assert await eleven(reader, "model_id=words", " ", "  \n ", "\t") == (b"", FINAL)
    assert await eleven(reader, "model_id=words", " ", "Hi! ", " ") == (pcm_of(5, 3), FINAL)


@pytest.mark.parametrize(("value", "normalize"), [("auto", None), ("on", True), ("off", False)])
@pytest.mark.parametrize("model", ["fake", "words"])
async def test_elevenlabs_has_its_own_name_for_normalize(
    value: str, normalize: bool | None, model: str, reader: LiveServer
) -> None:
    text = "**Hello** https://example.com friends. "
    said = answer_of(reader, text, model, normalize=normalize)["text"]
    query = f"model_id={model}&apply_text_normalization={value}"
    assert await eleven(reader, query, text) == (pcm_of(5, len(said)), FINAL)


async def test_elevenlabs_other_values_are_refused(reader: LiveServer) -> None:
    audio, others = await eleven(reader, "model_id=fake&apply_text_normalization=yes", "Hi!")
    assert audio == b""
    assert [(other["message"], other["error"]) for other in others] == [
        ("There is no 'yes'; there are auto, on, off", "invalid_value")
    ]


async def test_the_shipped_voices_reading_is_live(reader: LiveServer) -> None:
    text = "It\u2019s \u201clate\u201d\u2026 we went home."
    said = answer_of(reader, text, WORDS.name)["text"]
    assert said.isascii()
    async with httpx.AsyncClient() as client, dial(reader) as socket:
        body = {"input": text, "model": WORDS.name, "voice": "heart", "seed": 5, "response_format": "pcm"}
        expected = (await client.post(f"{reader.url}/v1/audio/speech", json=body)).content
        await socket.configure(model=WORDS.name)
        assert (await say(socket, *text)).audio == expected == pcm_of(5, len(said))
