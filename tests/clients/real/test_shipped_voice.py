"""Published clients hear the voice that ships: one for each protocol of an agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from vivavoce_engine import EngineConfig, load_engine
from vivavoce_voice import CHECKPOINT

from tests.clients.real.harness import Served, Session, briefly
from tests.support.live_server import live_server

SESSIONS = [
    Session("livekit/elevenlabs_words", live=True),
    Session("openai_agents/voice", live=True),
    Session("pipecat/openai_tts", live=True),
    Session("pipecat/realtime", live=False),
]
SPEECH_LEVEL = 0.01
"""Root of the mean square, far below that of speech and far above that of silence."""
CHARACTER_S = (0.03, 0.15)
"""Time of a character, at least and at most: about 0.07 in the shipped voice."""


@pytest.fixture(scope="module")
def shipped() -> Iterator[Served]:
    with live_server(load_engine(str(CHECKPOINT), EngineConfig(device="cpu"))) as server:
        yield Served(server.url, server.engine, server.url)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.name)
def test_turns_around_an_interruption_are_speech(shipped: Served, session: Session, tmp_path: Path) -> None:
    outcome = briefly(session, shipped, tmp_path)
    assert len(outcome.turns) == 2
    for turn in outcome.turns:
        assert CHARACTER_S[0] < turn["seconds"] / len(turn["text"]) < CHARACTER_S[1]
        assert turn["level"] > SPEECH_LEVEL
    assert {turn["began_early"] for turn in outcome.turns} == {True if session.live else None}
    assert outcome.given_up
    assert outcome.silent["late_s"] == 0
    assert outcome.end["errors"] == []
