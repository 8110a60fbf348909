"""Alignment of codec frames with the teacher's durations, and the gates that stop a run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from voice_recipe.config import SAMPLES_PER_FRAME, TEACHER_HOP_SAMPLES
from voice_recipe.corpus import Corpus
from voice_recipe.run import GateError, code_gate, heard_gate
from voice_recipe.synthesize import LEAD_UNITS, TAIL_UNITS, TARGET_RMS, batches, cut_to_frames, sounding_ids
from voice_recipe.teacher import TeacherSpeech, align, length_mask


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
    audio, phones, log_f0, frames = cut_to_frames(*speech(quiet, loud, 30))
    kept = (LEAD_UNITS + loud + TAIL_UNITS) * TEACHER_HOP_SAMPLES
    assert frames.tolist() == [-(-kept // SAMPLES_PER_FRAME)]
    flat = audio.flatten()
    first = int((flat.abs() > 1e-3).nonzero()[0])
    assert first == pytest.approx(LEAD_UNITS * TEACHER_HOP_SAMPLES, abs=5)
    inside = flat[first : first + loud * TEACHER_HOP_SAMPLES]
    assert float(inside.square().mean().sqrt()) == pytest.approx(TARGET_RMS, rel=0.01)
    names = phones.flatten().tolist()
    assert names[:10] == [5] * 10  # the lead, 100 ms
    assert names[10 : 10 + 100] == [50] * 100  # a second
    assert set(names[110:125]) == {6}
    assert log_f0.flatten()[:100].exp().numpy() == pytest.approx(200, rel=1e-3)


def test_a_silent_sentence_has_no_frames() -> None:
    silent, ids = speech(10, 0, 10)
    assert cut_to_frames(silent, ids)[3].tolist() == [0]


def test_batches_hold_every_sentence_once_within_their_size() -> None:
    lengths = np.random.default_rng(0).integers(3, 120, 500)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    corpus = Corpus([""] * 500, np.zeros(offsets[-1], np.uint8), offsets)
    order = np.random.default_rng(1).permutation(500)
    made = list(batches(corpus, order, phonemes_per_batch=1000))
    assert sorted(index for batch in made for index in batch) == list(range(500))
    assert all(len(batch) * max(lengths[index] + 2 for index in batch) <= 1000 for batch in made)


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
