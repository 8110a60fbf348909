"""Published clients, each over a session of minutes with a server whose speech has a known length (README.md)."""

from collections.abc import Iterator

import pytest

from tests.clients.real.harness import ENVIRONMENTS, SESSION_S, Session, Sessions
from tests.clients.real.sessions import SESSIONS
from tests.support.programs import needs

CHARACTER_S = 0.08
TONE_LEVEL = 0.3 / 2**0.5
"""Root of the mean square of the fake engine's tone."""


@pytest.fixture(scope="module")
def sessions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """Sessions of the tests that were chosen, started at once."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    named = [item.callspec.params["session"] for item in items if "sessions" in item.fixturenames]
    chosen = [each for each in named if isinstance(each, Session)]
    running = Sessions(dict.fromkeys(chosen), tmp_path_factory.mktemp("sessions"))
    yield running
    running.close()


def marks_of(session: Session) -> list[pytest.MarkDecorator]:
    """Reasons for which the session may be skipped."""
    newer = session.name.startswith("wyoming_openai/")
    left_out = newer and not (ENVIRONMENTS / "wyoming_openai").exists()
    reason = "wyoming-openai needs Python 3.12: make test-clients PYTHON312=/path/to/python3.12"
    return [pytest.mark.skipif(left_out, reason=reason), *([needs(*session.programs)] if session.programs else [])]


each_session = pytest.mark.parametrize(
    "session", [pytest.param(each, id=each.name, marks=marks_of(each)) for each in SESSIONS]
)


@each_session
def test_every_turn_is_heard_whole(sessions: Sessions, session: Session) -> None:
    turns = sessions.outcome(session).turns
    assert len(turns) >= 3, "before the interruption, behind it, and after a silence"
    for turn in turns:
        assert turn["seconds"] == pytest.approx(len(turn["text"]) * CHARACTER_S, abs=session.tolerance_s)
        assert turn["level"] == pytest.approx(TONE_LEVEL, rel=0.15)


@each_session
def test_speech_begins_before_the_text_ends(sessions: Sessions, session: Session) -> None:
    assert {turn["began_early"] for turn in sessions.outcome(session).turns} == {True if session.live else None}


@each_session
def test_an_interruption_frees_the_row_and_is_silent(sessions: Sessions, session: Session) -> None:
    outcome = sessions.outcome(session)
    heard_s, whole_s = outcome.interrupted["before_s"], len(outcome.silent["text"]) * CHARACTER_S
    assert 0.5 <= heard_s < whole_s if session.streams else heard_s == 0
    assert outcome.given_up
    assert outcome.silent["late_s"] == 0


@each_session
def test_the_session_lasts_without_an_error(sessions: Sessions, session: Session) -> None:
    outcome = sessions.outcome(session)
    end = outcome.end
    assert end["errors"] == [], outcome.log
    assert end["lasted_s"] >= SESSION_S
