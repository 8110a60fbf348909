"""Forced alignment of recorded speech: words, the best path, and times that the aligner is not sure of."""

import pytest
import torch
from torch import Tensor, nn
from voice_recipe.align_words import AROUND, Classifier, State, Utterance, around, times_of, written_words
from voice_recipe.config import PHONEME_SYMBOLS


def test_a_written_number_is_several_spoken_words() -> None:
    written, spoken = written_words("He paid 25 dollars - at 6:40, I think.")
    assert written == ["He", "paid", "25", "dollars", "at", "6:40,", "I", "think."]
    assert [len(words) for words in spoken] == [1, 1, 2, 1, 1, 2, 1, 1]
    assert spoken[-1].stop == 10


def test_words_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="12', '34"):
        written_words("We need 12 34 now")


def test_a_mel_is_seen_with_its_neighbours() -> None:
    mels = torch.arange(5.0)[:, None] * 2 - 5  # scaled to 0, 1, 2, 3, 4
    seen = around(mels)
    assert seen.shape == (5, 2 * AROUND + 1)
    assert seen[2].tolist() == [0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 4, 4, 4, 4, 4]


class Heard(nn.Module):
    """Takes the middle mel's first value for the sound."""

    def forward(self, inputs: Tensor) -> Tensor:
        sounds = (inputs.view(len(inputs), -1)[:, AROUND] * 2 - 5).round().long()
        return 9.0 * nn.functional.one_hot(sounds, PHONEME_SYMBOLS)


def aligned(sounds: list[int], *states: State) -> tuple[Utterance, list[int]]:
    utterance = Utterance(torch.tensor(sounds, dtype=torch.float32)[:, None], list(states), 2)
    return utterance, Classifier(Heard(), torch.zeros(PHONEME_SYMBOLS)).align(utterance).tolist()


SILENCE, FIRST, LAST = State(0, -1, True), State(50, 0, False), State(60, 1, False)


def test_silence_between_words_may_be_there_or_not() -> None:
    states = (SILENCE, FIRST, SILENCE, LAST, SILENCE)
    assert aligned([0, 50, 50, 0, 60, 0], *states)[1] == [0, 1, 1, 2, 3, 4]
    assert aligned([50, 50, 60, 60], *states)[1] == [1, 1, 3, 3]


def test_times_are_in_ms_and_squeezed_words_have_none() -> None:
    states = (SILENCE, FIRST, SILENCE, LAST, SILENCE)
    utterance, path = aligned([0, 50, 50, 50, 0, 60, 60, 60], *states)
    assert times_of("a b", utterance, torch.tensor(path).numpy()) == [[10, 40], [50, 80]]
    squeezed, path = aligned([0, 50, 50, 50, 60], *states)
    assert times_of("a b", squeezed, torch.tensor(path).numpy()) is None
