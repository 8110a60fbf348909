"""Stage 1: makes teacher speech on one GPU: audio, phoneme alignment and pitch, for as many texts as time allows.

    python -m voice_recipe.synthesize --teacher DIR --corpus corpus.xz --out DIR --rank 0 --world 4 --seconds 60 150

A shard is written at every deadline, so that the next stage can start on the first one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from voice_recipe import units
from voice_recipe.audio_features import frame_mels
from voice_recipe.config import (
    ACCENT_OF_SPEAKER,
    MEL_BINS,
    MEL_HOP_SAMPLES,
    MELS_PER_FRAME,
    SAMPLE_RATE_HZ,
    SAMPLES_PER_FRAME,
    SPEAKERS,
)
from voice_recipe.corpus import Corpus
from voice_recipe.teacher import Kokoro, load_teacher
from voice_recipe.trim import LEAD_SAMPLES, TAIL_SAMPLES, Sentence, join, trim

SPEED_RANGE = (0.92, 1.15)
ARRAYS = ("audio", "mels", "phones", "log_f0", "records", "counts", "speaker", "frames")
GROUP_SENTENCES = 256
"""Sentences whose mels are computed at once."""
PASSES = 4


@dataclass
class Shard:
    """Arrays of one shard, with N frames, U utterances and R records in total."""

    audio: list[npt.NDArray[np.int16]] = field(default_factory=list)  # [N, 1920], only where keeps_audio
    mels: list[npt.NDArray[np.float16]] = field(default_factory=list)  # [N, 8, 80]
    phones: list[npt.NDArray[np.uint8]] = field(default_factory=list)  # [N, 8], phoneme id of every 10 ms
    log_f0: list[npt.NDArray[np.float16]] = field(default_factory=list)  # [N, 8], ln(Hz), 0 where unvoiced
    records: list[npt.NDArray[np.int32]] = field(default_factory=list)  # [R], of all utterances
    counts: list[npt.NDArray[np.uint8]] = field(default_factory=list)  # [U], records of each utterance
    speaker: list[npt.NDArray[np.uint8]] = field(default_factory=list)  # [U]
    frames: list[npt.NDArray[np.int32]] = field(default_factory=list)  # [U]
    keeps_audio: bool = True

    def save(self, folder: Path) -> float:
        """Write the arrays, then an empty file `done` -> hours of speech."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ARRAYS:
            if getattr(self, name):
                np.save(folder / f"{name}.npy", np.concatenate(getattr(self, name)))
        (folder / "done").touch()
        return float(sum(int(f.sum()) for f in self.frames)) * SAMPLES_PER_FRAME / SAMPLE_RATE_HZ / 3600


@dataclass(frozen=True)
class Job:
    """Records that are spoken as one utterance, by one speaker at one rate."""

    records: list[int]
    speaker: int
    speed: float
    pauses_s: list[float]  # before each record


def draw(corpus: Corpus, records: list[int], rng: np.random.Generator) -> Job:
    """Choose speaker, rate and pauses of an utterance."""
    speaker, speed = int(rng.integers(len(SPEAKERS))), float(rng.uniform(*SPEED_RANGE))
    return Job(records, speaker, speed, units.pauses(corpus, records, rng))


def pools(corpus: Corpus, chosen: list[list[int]], rng: np.random.Generator, size: int) -> Iterator[list[Job]]:
    """Utterances in groups of at least `size` records, which are spoken together."""
    pool: list[Job] = []
    for records in chosen:
        pool.append(draw(corpus, records, rng))
        if sum(len(job.records) for job in pool) >= size:
            yield pool
            pool = []
    if pool:
        yield pool


def batches(lengths: npt.NDArray[np.int64], phonemes_per_batch: int) -> Iterator[list[int]]:
    """Batch sentences of similar length -> indices in `lengths`."""
    batch: list[int] = []
    for i in np.argsort(lengths, kind="stable").tolist():
        if batch and (int(lengths[i]) + 2) * (len(batch) + 1) > phonemes_per_batch:
            yield batch
            batch = []
        batch.append(i)
    yield batch


class Synthesizer:
    """The teacher on one device with its voices."""

    def __init__(self, teacher_dir: Path, device: str, batch_phonemes: int = 9000) -> None:
        self.device, self.batch_phonemes = device, batch_phonemes
        self.model: Kokoro = load_teacher(teacher_dir / "kokoro_int8.npz").to(device)
        table = np.load(teacher_dir / "voices_en_fp16.npz")
        styles = np.stack([table[name][:256].astype(np.float32) for name in SPEAKERS.values()])
        self.styles = torch.from_numpy(styles).to(device)  # [speakers, 256 lengths, 256]

    def sentences(
        self, rows: list[npt.NDArray[np.uint8]], speakers: list[int], speeds: list[float]
    ) -> list[Sentence | None]:
        """Speak one batch of phoneme rows. None marks a sentence without sound."""
        lengths = torch.tensor([len(row) + 2 for row in rows])
        ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
        for row, symbols in enumerate(rows):
            ids[row, 1 : len(symbols) + 1] = torch.from_numpy(symbols.astype(np.int64))
        ids, lengths = ids.to(self.device), lengths.to(self.device)
        style = self.styles[torch.tensor(speakers, device=self.device), (lengths - 3).clamp(0, 255)]
        return trim(self.model(ids, lengths, style, torch.tensor(speeds, device=self.device)), ids)

    def speak(self, corpus: Corpus, pool: list[Job], shard: Shard) -> int:
        """Speak utterances into the shard -> number of frames. Those with a sentence without sound are left out."""
        said = [(job, record) for job in pool for record in job.records]
        rows = [corpus.phonemes_of(record, ACCENT_OF_SPEAKER[job.speaker]) for job, record in said]
        made: list[Sentence | None] = [None] * len(said)
        for batch in batches(np.array([len(row) for row in rows]), self.batch_phonemes):
            speakers, speeds = [said[i][0].speaker for i in batch], [said[i][0].speed for i in batch]
            for i, sentence in zip(batch, self.sentences([rows[i] for i in batch], speakers, speeds), strict=True):
                made[i] = sentence
        ready: list[tuple[Job, list[Sentence]]] = []
        total, at, held = 0, 0, 0
        for job in pool:
            some = made[at : at + len(job.records)]
            at += len(job.records)
            spoken = [sentence for sentence in some if sentence is not None]
            if len(spoken) == len(some):
                ready.append((job, spoken))
                held += len(spoken)
            if held >= GROUP_SENTENCES:
                total += store(ready, shard)
                ready, held = [], 0
        return total + (store(ready, shard) if ready else 0)


def pause_hops(seconds: float) -> int:
    """Hops between two sentences, beyond the silence that `trim` keeps around them."""
    kept_s = (LEAD_SAMPLES + TAIL_SAMPLES) / SAMPLE_RATE_HZ
    return max(0, round((seconds - kept_s) * SAMPLE_RATE_HZ / MEL_HOP_SAMPLES))


def store(ready: list[tuple[Job, list[Sentence]]], shard: Shard) -> int:
    """Join sentences to utterances, compute their mels and add them to the shard -> number of frames."""
    joined = join([spoken for _, spoken in ready], [[pause_hops(s) for s in job.pauses_s] for job, _ in ready])
    total = sum(joined.frames)
    shape = (total, MELS_PER_FRAME)
    if shard.keeps_audio:
        audio = (joined.audio.clamp(-1, 1) * 32767).round().short()
        shard.audio.append(audio.view(total, SAMPLES_PER_FRAME).cpu().numpy())
    shard.mels.append(frame_mels(joined.audio[None]).view(*shape, MEL_BINS).half().cpu().numpy())
    shard.phones.append(joined.phones.byte().view(shape).cpu().numpy())
    shard.log_f0.append(joined.log_f0.half().view(shape).cpu().numpy())
    shard.records.append(np.array([record for job, _ in ready for record in job.records], np.int32))
    shard.counts.append(np.array([len(job.records) for job, _ in ready], np.uint8))
    shard.speaker.append(np.array([job.speaker for job, _ in ready], np.uint8))
    shard.frames.append(np.array(joined.frames, np.int32))
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--seconds", type=float, nargs="+", required=True, help="deadlines, one shard each")
    parser.add_argument("--seed", type=int, default=11, help="of the utterances, their speakers, rates and pauses")
    parser.add_argument("--audio-shards", type=int, default=1, help="first shards that keep audio, for the decoder")
    parser.add_argument("--batch-phonemes", type=int, default=9000)
    parser.add_argument("--pool-records", type=int, default=1536, help="records spoken between two looks at the clock")
    args = parser.parse_args()
    started = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if device == "cuda":  # batches differ in shape, so without a bound the allocator would keep the whole card
        torch.cuda.set_per_process_memory_fraction(0.4)
    torch.manual_seed(args.seed + args.rank)
    corpus, voice = Corpus.load(args.corpus), Synthesizer(args.teacher, device, args.batch_phonemes)
    rng = np.random.default_rng(args.seed)
    # Later passes over the corpus give each text another speaker, rate and neighbours.
    chosen = [unit for _ in range(PASSES) for unit in units.plan(corpus, rng)][args.rank :: args.world]
    deadlines, frames, part = list(args.seconds), 0, 0
    shard = Shard(keeps_audio=part < args.audio_shards)
    rng = np.random.default_rng([args.seed, args.rank])
    for number, pool in enumerate(pools(corpus, chosen, rng, args.pool_records)):
        frames += voice.speak(corpus, pool, shard)
        elapsed = time.time() - started
        if number % 10 == 0:
            print(f"{elapsed:.0f} s, {frames * 0.08 / 3600:.2f} h, x{frames * 0.08 / elapsed:.0f}", flush=True)
        if elapsed > deadlines[0]:
            hours = shard.save(args.out / f"shard{args.rank}_{part}")
            print(f"shard {args.rank}_{part}: {hours:.1f} h after {time.time() - started:.0f} s", flush=True)
            part += 1
            shard = Shard(keeps_audio=part < args.audio_shards)
            deadlines.pop(0)
            if not deadlines:
                return
    if shard.frames:
        shard.save(args.out / f"shard{args.rank}_{part}")


if __name__ == "__main__":
    main()
