"""The judge of decoders: what it judges, its arithmetic, and the same opinion of speech as `vivavoce eval`."""

import numpy as np
import pytest
import torch
from vivavoce_eval.judges import dnsmos
from vivavoce_eval.waves import for_judges
from voice_recipe.corpus import Corpus
from voice_recipe.judge_decoder import HELD_OUT, Sentence, at_judge_rate, judges, verdict
from voice_recipe.sentences import held_out

TONE = 0.1 * torch.sin(2 * torch.pi * 1000 * torch.arange(2 * 24_000) / 24_000)


def test_the_sentences_are_the_held_out_ones_with_phonemes_in_both_accents() -> None:
    corpus = Corpus.load(HELD_OUT)
    assert corpus.texts == [text for _, text in held_out()]
    lengths = [len(corpus.phonemes_of(row, accent)) for row in range(len(corpus.texts)) for accent in (0, 1)]
    assert min(lengths) > 3


def test_resampling_keeps_a_tone_and_drops_what_16_khz_cannot_hold() -> None:
    time = torch.arange(2 * 16_000) / 16_000
    assert np.allclose(at_judge_rate(TONE), 0.1 * torch.sin(2 * torch.pi * 1000 * time), atol=1e-3)
    high = torch.sin(2 * torch.pi * 9000 * torch.arange(2 * 24_000).double() / 24_000)
    assert float(np.abs(at_judge_rate(high)).max()) < 1e-4


def test_a_verdict_compares_with_the_teacher_sentence_by_sentence() -> None:
    sentences = [Sentence(row, TONE, torch.zeros(25, 8)) for row in range(2)]
    opinions = {"teacher": [3.4, 3.2], "ovrl": [3.1, 3.1], "plcmos": [4.0, 4.5]}
    found = verdict("a", [0.5 * TONE, 0.5 * TONE], sentences, opinions)
    assert found.ovrl == pytest.approx(3.1)
    assert found.plcmos == pytest.approx(4.25)
    assert found.behind == pytest.approx(0.2)
    assert found.error == pytest.approx(0.1)  # of 0.3 and 0.1: deviation 0.141, over the root of 2
    assert found.level_db == pytest.approx(-6.02, abs=0.01)
    assert verdict("a", [TONE, TONE], sentences, opinions).mel == 0


def test_its_dnsmos_is_that_of_eval_quality() -> None:
    pytest.importorskip("speechmos.dnsmos")
    noise = 0.02 * torch.randn(1, len(TONE) + 7, generator=torch.Generator().manual_seed(0))
    noise = torch.nn.functional.avg_pool1d(noise, 8, 1)[0]  # where the resamplers' filters end, there is little
    for sound in (TONE + noise, (TONE + noise).repeat(6)):  # shorter and longer than one window
        mine = judges()["ovrl"](at_judge_rate(sound))
        assert mine == pytest.approx(dnsmos(for_judges(sound.numpy())).ovrl, abs=0.02)
