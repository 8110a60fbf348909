"""Real judges pass the shipped voice and fail planted faults. Run by `make test-quality`.

Takes minutes and needs the extra `eval`, so it runs only if its marker is selected.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from vivavoce_client import Client
from vivavoce_eval.asr import Transcriber
from vivavoce_eval.figures import Run, load, voices_of
from vivavoce_eval.gates import Limits, faults, gates
from vivavoce_eval.hearing import Panel, Row, Spoken
from vivavoce_eval.judges import Embedding, SpeakerEncoder
from vivavoce_eval.quality import BASELINES, TEACHER
from vivavoce_eval.sentences import pick, read_sentences
from vivavoce_eval.speaking import through_server
from vivavoce_eval.waves import FRAME_SAMPLES, RATE_HZ, Samples

from tests.support.server_process import serving

pytestmark = [
    pytest.mark.quality,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the judges' packages
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SENTENCES = 18
LIMITS = Limits(max_wer=6.0)
"""Other processors round otherwise, and a few words more or less are heard wrong."""


@dataclass(frozen=True)
class Heard:
    """The voice's speech, and what the judges said of it."""

    spoken: dict[int, Spoken]
    rows: dict[int, Row]
    embeddings: list[Embedding | None]

    def longest(self) -> Spoken:
        return self.by_length()[0]

    def by_length(self) -> list[Spoken]:
        """The utterances, the longest first."""
        return sorted(self.spoken.values(), key=lambda one: -len(one.samples))


@pytest.fixture(scope="module")
def teacher() -> Run:
    return load(TEACHER)


@pytest.fixture(scope="module")
def panel(teacher: Run) -> Panel:
    voices = {name: voice.embedding for name, voice in teacher.voices.items()}
    return Panel(Transcriber(), SpeakerEncoder(), voices)


@pytest.fixture(scope="module")
def heard(panel: Panel, teacher: Run, tmp_path_factory: pytest.TempPathFactory) -> Heard:
    sentences, speakers = pick(read_sentences(), SENTENCES), list(teacher.voices)
    with serving(tmp_path_factory.mktemp("server")) as (_, url), Client(url) as client:
        spoken = {one.sentence.number: one for one in through_server(client, sentences, speakers, {})}
    judged = [panel.judge(one) for one in spoken.values()]
    return Heard(spoken, {row.number: row for row, _ in judged}, [embedding for _, embedding in judged])


def test_the_clean_voice_passes(heard: Heard, teacher: Run) -> None:
    rows = tuple(heard.rows.values())
    run = Run({}, rows, voices_of(rows, heard.embeddings))
    found = gates(run, load(BASELINES["whole"]), teacher, LIMITS)
    assert [str(gate) for gate in found if not gate.passed] == []
    judged = {gate.name for gate in found}
    assert {f"median F0 of {name}, off the teacher's" for name in teacher.voices} <= judged
    assert {"word error rate", "DNSMOS OVRL", "DNSMOS P808", "stops by itself"} <= judged
    assert [faults(row) for row in rows] == [[]] * SENTENCES


def with_samples(spoken: Spoken, samples: Samples) -> Spoken:
    return replace(spoken, samples=samples)


def with_second_muted(spoken: Spoken) -> Spoken:
    """The utterance with silence in place of its loudest 1.1 s: pauses are measured in steps of 10 ms."""
    length = int(1.1 * RATE_HZ)
    loudness = np.convolve(np.abs(spoken.samples), np.ones(length, dtype=np.float32), "valid")
    start = int(np.argmax(loudness))
    muted = spoken.samples.copy()
    muted[start : start + length] = 0
    return with_samples(spoken, muted)


def test_a_muted_second_is_heard(heard: Heard, panel: Panel) -> None:
    """A muted second loses words. Several utterances are judged, because Whisper guesses the words of some."""
    longest = heard.by_length()[:3]
    rows = [panel.judge(with_second_muted(spoken))[0] for spoken in longest]
    for row in rows:
        assert row.longest_pause_s >= 1.0
        assert any(fault.startswith("longest pause") for fault in faults(row))
    assert sum(row.wrong_words for row in rows) > sum(heard.rows[row.number].wrong_words for row in rows)


def test_a_wrong_voice_is_heard(heard: Heard, panel: Panel, teacher: Run) -> None:
    """Each utterance that is long enough, under the next speaker's name."""
    names = list(teacher.voices)
    tried = 0
    for number, spoken in heard.spoken.items():
        if heard.rows[number].likest is not None:
            claimed = names[(names.index(spoken.speaker) + 1) % len(names)]
            likest, _ = panel.likest(claimed, heard.embeddings[list(heard.spoken).index(number)])
            assert likest == spoken.speaker
            tried += 1
    assert tried >= SENTENCES // 2
    spoken = heard.longest()
    claimed = names[(names.index(spoken.speaker) + 1) % len(names)]
    row, _ = panel.judge(replace(spoken, speaker=claimed))
    assert faults(row) == [f"sounds like {spoken.speaker}"]


def test_a_click_at_a_seam_is_heard(heard: Heard, panel: Panel) -> None:
    """A step of a twentieth of full scale, at the quietest seam inside the speech; loud ones mask it for people too."""
    spoken = heard.longest()
    seams = np.arange(3, len(spoken.samples) // FRAME_SAMPLES - 3) * FRAME_SAMPLES
    loudness = [float(np.abs(spoken.samples[seam - 240 : seam + 240]).mean()) for seam in seams]
    seam = int(seams[int(np.argmin(loudness))])
    clicking = spoken.samples.copy()
    clicking[seam : seam + 240] += 0.05 * np.linspace(1, 0, 240, dtype=np.float32)
    row, _ = panel.judge(with_samples(spoken, clicking))
    assert any(fault.startswith("click at a frame's edge") for fault in faults(row))
