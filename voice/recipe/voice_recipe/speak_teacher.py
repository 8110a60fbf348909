"""Speaks the held-out sentences with the teacher, as a reference for `vivavoce eval quality`.

    python -m voice_recipe.speak_teacher --teacher DIR --out WAVS

File names, speakers and sentences are those of `speak`. The speaking rate is the middle of the corpus's rates. As in
the corpus, silence is trimmed and the level set. Needs `sanotts` but no GPU. On one core it takes about as long as
the speech.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from voice_recipe.config import SAMPLES_PER_FRAME, SPEAKERS
from voice_recipe.corpus import KINDS, Corpus
from voice_recipe.make_corpus import read
from voice_recipe.sentences import held_out
from voice_recipe.speak import write_wav
from voice_recipe.synthesize import SPEED_RANGE, Job, Shard, Synthesizer
from voice_recipe.texts import Draft
from voice_recipe.trim import SILENT_FRAMES

BATCH = 5


def held_out_corpus() -> Corpus:
    """The held-out sentences with their phonemes. Raises SystemExit if one has none."""
    texts = [text for _, text in held_out()]
    records = {text: read(Draft(text, KINDS.index("plain"))) for text in texts}
    if None in records.values():
        raise SystemExit(f"no phonemes for {[text for text, record in records.items() if record is None]}")
    return Corpus.of(record for record in records.values() if record is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    corpus = held_out_corpus()
    voice = Synthesizer(args.teacher, "cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(corpus.texts), BATCH):
        rows = list(range(start, min(start + BATCH, len(corpus.texts))))
        shard, speed = Shard(), sum(SPEED_RANGE) / 2
        voice.speak(corpus, [Job([row], row % len(SPEAKERS), speed, [0.0]) for row in rows], shard)
        audio, frames = shard.audio[0].reshape(-1, SAMPLES_PER_FRAME), shard.frames[0]
        for row, samples in zip(rows, np.split(audio, np.cumsum(frames)[:-1]), strict=True):
            spoken = samples[SILENT_FRAMES:].reshape(-1) / np.float32(32767)
            write_wav(args.out / f"{row:03d}.wav", torch.from_numpy(spoken))
        print(f"{rows[-1] + 1} of {len(corpus.texts)}", flush=True)


if __name__ == "__main__":
    main()
