"""Alignment of codec frames with the teacher's durations, and the gates that stop a run."""

from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor
from voice_recipe.config import MEL_HOP_SAMPLES, SAMPLES_PER_FRAME, TEACHER_HOP_SAMPLES
from voice_recipe.corpus import Corpus, Record
from voice_recipe.run import GateError, code_gate, heard_gate
from voice_recipe.synthesize import Job, Shard, Synthesizer, batches, pause_hops
from voice_recipe.teacher import Kokoro, TeacherSpeech, align, length_mask
from voice_recipe.trim import (
    DURATIONS_LATE_S,
    LEAD_SAMPLES,
    TAIL_SAMPLES,
    TARGET_RMS,
    Sentence,
    join,
    sounding_ids,
    trim,
)


def test_every_frame_has_the_phoneme_that_sounds_in_it() -> None:
    durations = torch.tensor([[2, 1, 3], [1, 1, 0]])
    assert align(durations, 6).tolist() == [[0, 0, 1, 2, 2, 2], [0, 1, 2, 2, 2, 2]]


def test_masks_cover_the_length() -> None:
    assert length_mask(torch.tensor([0, 2]), 3).tolist() == [[[0, 0, 0]], [[1, 1, 0]]]


def test_stress_takes_the_next_sound_and_length_the_one_before() -> None:
    ids = torch.tensor([[0, 156, 50, 158, 62, 157, 43, 0]])
    assert sounding_ids(ids).tolist() == [[0, 50, 50, 50, 62, 43, 43, 0]]


def speech(quiet: int, loud: int, after: int) -> tuple[TeacherSpeech, Tensor]:
    """Silence, a hum, silence, in units of 25 ms; one phoneme for each part."""
    units = quiet + loud + after
    time = torch.arange(units * TEACHER_HOP_SAMPLES) / 24_000
    inside = (time >= quiet * 0.025) & (time < (quiet + loud) * 0.025)
    audio = 0.3 * torch.sin(2 * torch.pi * 200 * time) * inside
    f0_hz = torch.full((1, 2 * units), 200.0)
    durations = torch.tensor([[quiet, loud, after]])
    return TeacherSpeech(audio[None], torch.tensor([units]), durations, f0_hz), torch.tensor([[5, 50, 6]])


def test_silence_is_cut_and_the_level_is_set() -> None:
    quiet, loud = 20, 40
    teacher, ids = speech(quiet, loud, 30)
    (sentence,) = trim(teacher, ids)
    assert sentence is not None
    kept = LEAD_SAMPLES + loud * TEACHER_HOP_SAMPLES + TAIL_SAMPLES
    assert len(sentence.phones) == -(-kept // MEL_HOP_SAMPLES)
    assert len(sentence.audio) == len(sentence.phones) * MEL_HOP_SAMPLES
    first = int((sentence.audio.abs() > 1e-3).nonzero()[0])
    assert first == pytest.approx(LEAD_SAMPLES, abs=5)
    inside = sentence.audio[first : first + loud * TEACHER_HOP_SAMPLES]
    assert float(inside.square().mean().sqrt()) == pytest.approx(TARGET_RMS, rel=0.01)
    names = sentence.phones.tolist()
    assert names[:1] == [0]  # 15 ms
    early = round(1000 * DURATIONS_LATE_S) // 10  # its durations say that the sound ends earlier than it does
    assert names[2 : 100 - early] == [50] * (98 - early)
    assert set(names[103 - early : 101]) == {6}
    assert set(names[102:]) == {0}
    assert sentence.log_f0[:100].exp().numpy() == pytest.approx(200, rel=1e-3)


def test_a_click_behind_the_speech_is_cut_and_a_plosive_is_not() -> None:
    for gap_ms, kept in ((200, False), (90, True)):
        teacher, ids = speech(20, 40, 30)
        at = 60 * TEACHER_HOP_SAMPLES + gap_ms * 24
        teacher.audio[0, at : at + 480] = 0.2 * torch.randn(480)
        (sentence,) = trim(teacher, ids)
        assert sentence is not None
        end_ms = len(sentence.phones) * 10
        assert end_ms == pytest.approx(15 + 1000 + (gap_ms + 20 if kept else 0) + 60, abs=15)


def test_a_silent_sentence_is_left_out() -> None:
    assert trim(*speech(10, 0, 10)) == [None]


def sentence(hops: int) -> Sentence:
    return Sentence(torch.ones(hops * MEL_HOP_SAMPLES), torch.full((hops,), 50), torch.full((hops,), 5.0))


def test_sentences_are_joined_to_whole_frames_behind_a_silent_one() -> None:
    joined = join([[sentence(10), sentence(5)], [sentence(16)]], [[0, 20], [0]])
    assert joined.frames == [1 + 5, 1 + 2]
    assert len(joined.audio) == 9 * SAMPLES_PER_FRAME
    sounds = [0] * 8 + [50] * 10 + [0] * 20 + [50] * 5 + [0] * 5 + [0] * 8 + [50] * 16
    assert joined.phones.tolist() == sounds
    assert joined.audio.view(-1, MEL_HOP_SAMPLES)[:, 0].tolist() == [float(sound > 0) for sound in sounds]


def test_pauses_count_the_silence_that_is_kept_around_sentences() -> None:
    assert pause_hops(0.075) == 0
    assert pause_hops(0.0) == 0
    assert pause_hops(0.275) == 20


def test_batches_hold_every_sentence_once_within_their_size() -> None:
    lengths = np.random.default_rng(0).integers(3, 120, 500)
    made = list(batches(lengths, phonemes_per_batch=1000))
    assert sorted(index for batch in made for index in batch) == list(range(500))
    assert all(len(batch) * max(lengths[index] + 2 for index in batch) <= 1000 for batch in made)


class Hum:
    """Stands in for the teacher: a hum as long as the row, at 5 units a phoneme. A row with the symbol 99 is silent."""

    def __call__(self, ids: Tensor, lengths: Tensor, style: Tensor, speed: Tensor) -> TeacherSpeech:
        durations = (torch.arange(ids.shape[1]) < lengths[:, None]).long() * 5
        frames = durations.sum(1)
        time = torch.arange(int(frames.max()) * TEACHER_HOP_SAMPLES)
        edge = 5 * TEACHER_HOP_SAMPLES
        inside = (time >= edge) & (time < (frames * TEACHER_HOP_SAMPLES - edge)[:, None])
        audio = 0.1 * torch.sin(time * 0.05) * inside * ~(ids == 99).any(1, keepdim=True)
        return TeacherSpeech(audio, frames, durations, torch.full((len(ids), 2 * int(frames.max())), 150.0))


def test_utterances_keep_their_order_accent_and_pauses() -> None:
    voice = Synthesizer.__new__(Synthesizer)
    voice.device, voice.batch_phonemes, voice.styles = "cpu", 20, torch.zeros(6, 256, 256)
    voice.model = cast("Kokoro", Hum())
    rows = [([50] * 4, [51] * 6), ([52] * 8, [53] * 8), ([54] * 2, [99] * 2)]
    corpus = Corpus.of(Record("x", "x", 0, (np.array(a, np.uint8), np.array(b, np.uint8))) for a, b in rows)
    shard, british = Shard(), 4
    pool = [Job([1, 0], british, 1.0, [0.0, 0.495]), Job([2], british, 1.0, [0.0]), Job([0], 0, 1.0, [0.0])]
    total = voice.speak(corpus, pool, shard)
    (frames,), (phones,) = shard.frames, shard.phones
    assert shard.records[0].tolist() == [1, 0, 0], "the silent one is left out"
    assert shard.counts[0].tolist() == [2, 1]
    assert shard.speaker[0].tolist() == [british, 0]
    assert total == frames.sum() == len(shard.mels[0]) == len(shard.audio[0])
    sounds = phones.reshape(-1)
    first, second = sounds[: frames[0] * 8], sounds[frames[0] * 8 :]
    assert (sounds[:8] == 0).all()
    assert [int(sound) for sound in dict.fromkeys(first)] == [0, 53, 51]
    assert set(second.tolist()) == {0, 50}
    level = np.abs(shard.audio[0].reshape(-1, MEL_HOP_SAMPLES)).max(1)[: frames[0] * 8] > 100
    edges = np.flatnonzero(np.diff(level.astype(int)))
    assert edges[2] - edges[1] == pytest.approx(49.5, abs=2), "the pause, in hops of 10 ms"


def report(**changes: float) -> dict[str, dict[str, float]]:
    good = {"probe_true": 0.9, "probe_decoded": 0.89, "perplexity0": 600.0, "perplexity1": 800.0}
    return {"report": {**good, **changes}}


def test_good_codes_pass_their_gate(tmp_path: Path) -> None:
    torch.save(report(), tmp_path / "codes.pt")
    assert "perplexity0 600.000" in code_gate(tmp_path / "codes.pt")


@pytest.mark.parametrize("changes", [{"probe_decoded": 0.3}, {"perplexity0": 2.0}, {"perplexity1": 2.0}])
def test_poor_codes_stop_the_run_and_say_why(tmp_path: Path, changes: dict[str, float]) -> None:
    torch.save(report(**changes), tmp_path / "codes.pt")
    name, value = next(iter(changes.items()))
    with pytest.raises(GateError, match=f"{name} {value:.3f}"):
        code_gate(tmp_path / "codes.pt")


def test_a_decoder_must_keep_the_phonemes() -> None:
    assert "keeps 0.95" in heard_gate({"heard": 0.855}, 0.9)
    with pytest.raises(GateError, match=r"keeps 0\.50"):
        heard_gate({"heard": 0.45}, 0.9)
    with pytest.raises(GateError):
        heard_gate({}, 0.9)
