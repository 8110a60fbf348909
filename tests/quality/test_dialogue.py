"""Judges hear a dialogue of three voices of the shipped voice: the right words, and each turn in its own voice.

Run by `make test-quality`. Takes minutes and needs the extra `eval`, so it runs only if its marker is selected.
"""

import base64
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest
from vivavoce_eval.asr import Transcriber, word_errors
from vivavoce_eval.judges import Embedding, SpeakerEncoder
from vivavoce_eval.waves import RATE_HZ, Samples, for_judges

from tests.server.test_sse import events
from tests.support.server_process import serving

pytestmark = [
    pytest.mark.quality,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the judges' packages
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
TURNS = (
    ("heart", "Good morning. Have you seen the new library beside the old station?"),
    ("michael", "Yes, I walked past it yesterday, and the doors were still closed."),
    ("emma", "They open on Monday at nine, and everybody is invited to breakfast."),
    ("heart", "Then we should go there together, before all the good books are gone."),
    ("emma", "I will bring a large bag, because I always borrow more than I can carry."),
    ("michael", "And I will bring the car, since nobody wants to carry that bag home."),
)
OTHER = "The river was quiet in the evening, and a small boat moved slowly under the bridge."
"""A text that each voice speaks alone, for comparison."""
TURN_PAUSE_S = 0.5
MOST_WRONG_WORDS = 0.06
"""Share of the words that the transcriber may hear wrong."""


def speak(url: str, **fields: Any) -> tuple[Samples, dict[str, Any]]:
    """Samples at 24 kHz, float32, and the last event."""
    body = {"seed": 11, "response_format": "pcm", "stream_format": "sse", **fields}
    response = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=600)
    assert response.status_code == 200, response.text
    *deltas, (_, done) = events(response.text)
    pcm = b"".join(base64.b64decode(data["audio"]) for _, data in deltas)
    return (np.frombuffer(pcm, "<i2") / np.float32(32768)).astype(np.float32), done


def embedded(judge: SpeakerEncoder, samples: Samples) -> Embedding:
    embedding = judge.embed(for_judges(samples))
    assert embedding is not None, "there is too little speech"
    return embedding


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Samples], dict[str, Samples]]:
    """The turns of the dialogue, and the other speech of each voice."""
    text = " ".join(f"[voice:{voice}] {text}" for voice, text in TURNS)
    with serving(tmp_path_factory.mktemp("server")) as (_, url):
        samples, done = speak(url, input=text, turn_pause_s=TURN_PAUSE_S)
        others = {voice: speak(url, input=OTHER, voice=voice)[0] for voice, _ in TURNS}
    segments = done["segments"]
    assert [segment["voice"] for segment in segments] == [voice for voice, _ in TURNS]
    turns = [samples[round(each["start"] * RATE_HZ) : round(each["end"] * RATE_HZ)] for each in segments]
    for before, behind in pairwise(segments):
        assert behind["start"] - before["end"] == pytest.approx(TURN_PAUSE_S, abs=0.002)
        pause = samples[round(before["end"] * RATE_HZ) + 48 : round(behind["start"] * RATE_HZ) - 48]
        assert not pause.any()
    return turns, others


def test_every_turn_says_its_words(spoken: tuple[list[Samples], dict[str, Samples]]) -> None:
    whisper = Transcriber()
    wrong = words = 0
    for (_, text), samples in zip(TURNS, spoken[0], strict=True):
        heard = whisper.normalise(whisper.transcribe(for_judges(samples)))
        errors, all_words = word_errors(whisper.normalise(text), heard)
        wrong, words = wrong + errors, words + all_words
    assert wrong <= MOST_WRONG_WORDS * words


def test_every_turn_is_nearest_to_other_speech_of_its_voice(
    spoken: tuple[list[Samples], dict[str, Samples]],
) -> None:
    judge = SpeakerEncoder()
    turns, others = spoken
    voices = {voice: embedded(judge, samples) for voice, samples in others.items()}
    for (voice, _), samples in zip(TURNS, turns, strict=True):
        turn = embedded(judge, samples)
        assert max(voices, key=lambda name: float(voices[name] @ turn)) == voice
