"""Voice tags in live text: the same turns for every fragmentation, and voices that do not exist are passed over."""

import random
import time
from typing import Any

import numpy as np
import pytest
from vivavoce_engine import UtteranceOptions
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import FAKE_INFO, SAMPLE_RATE, SAMPLES_PER_FRAME
from vivavoce_server.text_parts import MAX_TURNS, MAX_VOICES

from tests.support.live_server import fake_engine, live_server
from tests.support.live_socket import Socket, dial
from tests.support.live_text import plan_for, record

TAGGED = "Hello there. [voice:michael]Good morning. [voice: Heart ] Bye."


def cuts(text: str, seed: int) -> list[str]:
    places = sorted(random.Random(seed).choices(range(len(text) + 1), k=1 + len(text) // 3))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("seed", range(12))
async def test_a_tag_changes_the_voice_wherever_it_is_cut(seed: int) -> None:
    found = await record(plan_for(FAKE_INFO), cuts(TAGGED, seed) if seed else [TAGGED])
    assert found.parts == ["Hello there. ", 0.25, "Good morning. ", 0.25, "Bye."]
    assert found.voices == [("heart", False), ("michael", False), ("heart", False)]
    assert found.changes == [2, 4]
    assert "".join(found.texts) == TAGGED
    assert found.texts[0] == "Hello there."
    assert found.errors == []


async def test_a_text_that_begins_with_a_tag_waits_for_its_turn_with_that_voice() -> None:
    found = await record(plan_for(FAKE_INFO), ["[voice:michael] Hello. ", "[voice:heart] Bye."])
    assert found.voices == [("michael", True), ("heart", False)]
    assert found.changes == [2]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. [pause:1s][voice:michael] Two.", ["One. ", 1.0, "Two."]),
        ("One. [voice:michael] [pause:0s] Two.", ["One. ", 0.0, "Two."]),
        ("One. [voice:HEART] two.", ["One. two."]),
        ("One. [voice:alloy] two. [voice:heart]Three.", ["One. two. Three."]),
        (
            "One. [voice:michael] Two. [voice:alloy] Three. [voice:heart] Four.",
            ["One. ", 0.25, "Two. ", 0.25, "Three. Four."],
        ),
        ("One. [voice:michael] ... [voice:heart] Two.", ["One. ", "Two."]),
        ("One. [voice:michael] Two. [voice:emma]", ["One. ", 0.25, "Two. "]),
    ],
)
async def test_a_pause_stands_only_between_two_voices(text: str, parts: list[str | float]) -> None:
    assert (await record(plan_for(FAKE_INFO), [text])).parts == parts


@pytest.mark.parametrize("tag", ["[voice:nobody]", "[voice:]"])
async def test_a_voice_that_does_not_exist_is_passed_over(tag: str) -> None:
    found = await record(plan_for(FAKE_INFO), [f"One {tag} two. [voice:emma] Three."])
    assert found.parts == ["One two. ", 0.25, "Three."]
    assert (await record(plan_for(FAKE_INFO), [f"One{tag}two."])).parts == ["One two."]
    [error] = found.errors
    assert tag in error.message
    assert error.message.endswith("The tag is passed over")
    assert (error.param, error.code) == ("text", "voice_not_found")


async def test_tags_and_voices_are_bounded() -> None:
    text = "a. [voice:emma]b. [voice:heart]" * (1 + MAX_TURNS // 2) + "c. [voice:emma]d."
    found = await record(plan_for(FAKE_INFO), [text])
    assert len(found.voices) == MAX_TURNS + 1
    assert [error.code for error in found.errors] == ["too_many_turns"]
    assert MAX_VOICES > 3


async def test_tags_may_be_text() -> None:
    found = await record(plan_for(FAKE_INFO, allow_voice_tags=False), ["One [voice:nobody] two."])
    assert (found.errors, found.voices) == ([], [("heart", False)])


async def test_the_live_socket_speaks_each_turn_with_its_voice() -> None:
    heard: list[UtteranceOptions] = []

    def note(plan: Plan) -> None:
        heard.extend(sequence.pending.request for sequence in plan.step)

    with live_server(fake_engine(before_step=note)) as server:
        async with dial(server) as socket:
            await socket.configure(turn_pause_s=0.5)
            await socket.say("One. [voi", "ce:michael]Two. [voice:nobody]Three.")
            await socket.send("input.done")
            audio = b""
            errors: list[dict[str, Any]] = []
            while not isinstance(message := await socket.receive(), dict) or message["type"] != "audio.done":
                if isinstance(message, bytes):
                    audio += message
                elif message["type"] == "error":
                    errors.append(message["error"])
    voices = list(dict.fromkeys((request.speaker, request.seed) for request in heard))
    assert voices == [("heart", 5), ("michael", 5)]
    assert [error["code"] for error in errors] == ["voice_not_found"]
    frames = len("One. ") + len("Two. Three.")
    assert len(audio) // 2 == frames * SAMPLES_PER_FRAME + SAMPLE_RATE // 2
    silence = np.frombuffer(audio, "<i2")[len("One. ") * SAMPLES_PER_FRAME :][: SAMPLE_RATE // 2]
    assert not silence.any()


async def test_another_name_of_the_first_voice_begins_at_once() -> None:
    found = await record(plan_for(FAKE_INFO), ["[voice:michael][voice:alloy] Hello. [voice:heart] Bye."])
    assert (found.voices, found.parts) == ([("heart", False)], ["Hello. Bye."])


async def test_the_end_of_a_dialogue_tells_its_turns() -> None:
    with live_server() as server:
        async with dial(server) as socket:
            await socket.configure(speed=2)
            done = await end_of(socket, "abcde[voice:mich", "ael]abc[pause:1s]d")
            assert done["segments"] == [
                {"index": 0, "voice": "heart", "start": 0.0, "end": 0.2},
                {"index": 1, "voice": "michael", "start": 0.4, "end": done["duration_ms"] / 1000},
            ]
            assert "segments" not in await end_of(socket, "abcde[voice:heart]abc")


async def test_turns_of_an_interrupted_dialogue_are_those_that_were_sent() -> None:
    def slow(plan: Plan) -> None:
        time.sleep(0.02)

    with live_server(fake_engine(before_step=slow)) as server:
        async with dial(server) as socket:
            await socket.configure(turn_pause_s=0)
            await socket.say("ab[voice:michael]" + "cd" * 40 + "[voice:heart]ef")
            heard = b""
            while len(heard) < 6 * 2 * SAMPLES_PER_FRAME:
                message = await socket.receive()
                heard += message if isinstance(message, bytes) else b""
            await socket.send("input.cancel")
            _, message = await socket.rest()
    first, second = message["segments"]
    assert (first["voice"], second["voice"]) == ("heart", "michael")
    assert first["end"] == second["start"] == 0.16
    assert second["end"] == pytest.approx(message["duration_ms"] / 1000)


async def end_of(socket: Socket, *fragments: str) -> dict[str, Any]:
    """Says a text. Returns its audio.done."""
    await socket.say(*fragments)
    await socket.send("input.done")
    return (await socket.utterance()).done


async def test_the_end_of_a_dialogue_tells_its_turns_and_the_voice_of_each_part() -> None:
    text = "One. [voice:michael]Two.[pause:1s] Three. [voice:heart]Four."
    with live_server() as server:
        async with dial(server) as socket:
            await socket.configure(turn_pause_s=0.5)
            await socket.say(text)
            await socket.send("input.done")
            done = (await socket.utterance()).done
            await socket.say("Alone. [pause:1s] Still.")
            await socket.send("input.done")
            alone = (await socket.utterance()).done
    frame_s = SAMPLES_PER_FRAME / SAMPLE_RATE
    ends = np.cumsum([5 * frame_s, 0.5, 4 * frame_s, 1.0, 7 * frame_s, 0.5, 5 * frame_s])
    assert [(part["text"], part["voice"]) for part in done["parts"]] == [
        ("One.", "heart"),
        ("", None),
        (" [voice:michael]Two.", "michael"),
        ("[pause:1s]", None),
        (" Three.", "michael"),
        ("", None),
        (" [voice:heart]Four.", "heart"),
    ]
    assert [part["end_ms"] for part in done["parts"]] == [round(1000 * end) for end in ends]
    assert [(turn["index"], turn["voice"]) for turn in done["segments"]] == [(0, "heart"), (1, "michael"), (2, "heart")]
    assert [turn["start"] for turn in done["segments"]] == pytest.approx([0.0, ends[1], ends[5]])
    assert [turn["end"] for turn in done["segments"]] == pytest.approx([ends[0], ends[4], ends[6]])
    assert "segments" not in alone
    assert all("voice" not in part for part in alone["parts"])
