"""The ceiling of a text's frames, beyond which speech counts as endless."""

import httpx
import pytest
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import ServerConfig
from vivavoce_server.frame_ceiling import (
    BASE_FRAMES,
    LETTER_FRAMES,
    MOST_REPEATS,
    PART_FRAMES,
    PAUSE_FRAMES,
    SIGN_FRAMES,
    frame_ceiling,
)

from tests.server.test_endless import Endless, body
from tests.support.live_server import fake_engine, live_server, spoken_request

SPEECH = "/v1/audio/speech"


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("", 0),
        ("  \n", 0),
        ("word", 4 * LETTER_FRAMES),
        ("Word, word.", 7 * LETTER_FRAMES + 3 * PAUSE_FRAMES),
        ("1000000", 7 * SIGN_FRAMES),
        ("\u4f60\u597d", 2 * SIGN_FRAMES),
        ("!" * 4096, MOST_REPEATS * PAUSE_FRAMES),
        ("a" * 4096, MOST_REPEATS * LETTER_FRAMES),
    ],
)
def test_it_follows_from_what_will_be_said(text: str, frames: int) -> None:
    assert frame_ceiling(text) == BASE_FRAMES + frames


def test_the_longest_part_of_the_shipped_voice_stays_below_its_limit_of_frames() -> None:
    """An utterance that is cut at the limit counts as complete: its ceiling has to come first."""
    sentence = "She said that the harbour was empty, and that nobody had seen the boat since Sunday. "
    assert frame_ceiling((sentence * 3)[:180]) < 1024


def test_repeated_letters_cannot_hold_a_row() -> None:
    runner = Endless(attempts=1)
    with live_server(Engine(runner, EngineConfig())) as server:
        response = httpx.post(server.url + SPEECH, json=body(input="a" * 4096, seed=1))
        steps = server.engine.stats().steps
    assert (response.status_code, response.json()["error"]["code"]) == (500, "endless_speech")
    assert steps <= frame_ceiling("a" * 4096) + 10


def test_the_parts_of_a_request_share_one_ceiling() -> None:
    """Each part takes 20 frames here, more than its text is worth."""
    plans: list[Plan] = []
    text = ("a" * 19 + ". ") * 20
    with live_server(fake_engine(before_step=plans.append), ServerConfig(max_part_chars=20)) as server:
        response = httpx.post(server.url + SPEECH, json=body(input=text, normalize=False))
    ceilings = [spoken_request(row).endless_frames for plan in plans for row in plan.start]
    one, whole = frame_ceiling("a" * 19 + "."), frame_ceiling(text)
    assert response.status_code == 200
    assert ceilings == [min(one, whole - 20 * part - max(0, part - 1)) for part in range(20)]


def test_many_short_turns_have_frames_for_each() -> None:
    """A turn of one letter takes 20 frames here; the turns before it leave it none of the request's own."""
    plans: list[Plan] = []
    segments = [{"text": "a", "voice": ("heart", "michael")[number % 2]} for number in range(128)]
    runner = FakeRunner(before_step=plans.append, frames_per_character=20)
    with live_server(Engine(runner, EngineConfig(), fake_voices())) as server:
        response = httpx.post(server.url + SPEECH, json={"segments": segments, "response_format": "pcm", "seed": 1})
    ceilings = [spoken_request(row).endless_frames for plan in plans for row in plan.start]
    assert (response.status_code, len(ceilings)) == (200, 128)
    assert (ceilings[0], ceilings[-1]) == (frame_ceiling("a"), LETTER_FRAMES + PART_FRAMES)
