"""Stage 1: makes teacher speech on one GPU: audio, phoneme alignment and pitch, for as many sentences as time allows.

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
from torch import Tensor

from voice_recipe.audio_features import frame_mels
from voice_recipe.config import MEL_BINS, MELS_PER_FRAME, SAMPLES_PER_FRAME, SPEAKERS, TEACHER_HOP_SAMPLES
from voice_recipe.corpus import Corpus
from voice_recipe.teacher import Kokoro, TeacherSpeech, align, load_teacher

UNITS_PER_SECOND = 40  # of 25 ms
LEAD_UNITS, TAIL_UNITS = 4, 6  # silence kept before and after the speech: 100 and 150 ms
FADE_SAMPLES = 480
TARGET_RMS, PEAK_LIMIT = 0.08, 0.89
SPEED_RANGE = (0.92, 1.15)
STRESS_IDS, LENGTH_MARK_ID = (156, 157), 158
ARRAYS = ("audio", "mels", "phones", "log_f0", "utterance", "speaker", "frames")


@dataclass
class Shard:
    """Arrays of one shard, with N frames and U utterances in total."""

    audio: list[npt.NDArray[np.int16]] = field(default_factory=list)  # [N, 1920], only where keeps_audio
    mels: list[npt.NDArray[np.float16]] = field(default_factory=list)  # [N, 8, 80]
    phones: list[npt.NDArray[np.uint8]] = field(default_factory=list)  # [N, 8], phoneme id of every 10 ms
    log_f0: list[npt.NDArray[np.float16]] = field(default_factory=list)  # [N, 8], ln(Hz), 0 where unvoiced
    utterance: list[npt.NDArray[np.int32]] = field(default_factory=list)  # [U]
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
        return float(sum(int(f.sum()) for f in self.frames)) * SAMPLES_PER_FRAME / 24000 / 3600


def sounding_ids(ids: Tensor) -> Tensor:
    """[B, T]. Replace stress marks by the next symbol and length marks by the one before: every frame has a sound."""
    following = torch.cat([ids[:, 1:], ids[:, -1:]], 1)
    before = torch.cat([ids[:, :1], ids[:, :-1]], 1)
    stress = torch.isin(ids, torch.tensor(STRESS_IDS, device=ids.device))
    return torch.where(stress, following, torch.where(ids == LENGTH_MARK_ID, before, ids))


def cut_to_frames(speech: TeacherSpeech, ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Trim silence, set the level, cut into codec frames.

    -> audio [B, N, 1920], phones [B, N, 8], log_f0 [B, N, 8], frames [B] (0 marks a failed sentence).
    """
    batch, units = ids.shape[0], int(speech.frames.max())
    rms = speech.audio.view(batch, units, TEACHER_HOP_SAMPLES).pow(2).mean(-1).sqrt()
    peak_rms = rms.max(1, keepdim=True).values
    active, at = rms > (peak_rms * 0.02).clamp(min=0.0015), torch.arange(units, device=ids.device)
    first = torch.where(active, at, units).min(1).values
    last = torch.where(active, at, -1).max(1).values
    fine = (last > first) & torch.isfinite(peak_rms[:, 0])
    start, stop = first - LEAD_UNITS, last + 1 + TAIL_UNITS
    frames = torch.where(fine, ((stop - start) * TEACHER_HOP_SAMPLES + SAMPLES_PER_FRAME - 1) // SAMPLES_PER_FRAME, 0)
    total = max(int(frames.max()), 1)
    sample = torch.arange(total * SAMPLES_PER_FRAME, device=ids.device)[None] + start[:, None] * TEACHER_HOP_SAMPLES
    end = torch.minimum(stop, speech.frames)[:, None] * TEACHER_HOP_SAMPLES
    inside = (sample >= 0) & (sample < end)
    audio = torch.gather(speech.audio, 1, sample.clamp(0, speech.audio.shape[1] - 1)) * inside
    audio = audio * ((end - sample).clamp(0, FADE_SAMPLES) / FADE_SAMPLES)
    level = (rms.pow(2) * active).sum(1) / active.sum(1).clamp(min=1)
    gain = torch.minimum(TARGET_RMS / level.sqrt().clamp(min=1e-4), PEAK_LIMIT / audio.abs().amax(1).clamp(min=1e-4))
    audio = (audio * gain[:, None]).view(batch, total, SAMPLES_PER_FRAME)
    phones = torch.gather(sounding_ids(ids), 1, align(speech.durations, units))
    middle = (torch.arange(total * MELS_PER_FRAME, device=ids.device) + 0.5) / (100 / UNITS_PER_SECOND)
    unit = middle[None] + start[:, None]
    known = (unit >= 0) & (unit < speech.frames[:, None])
    phones = torch.gather(phones, 1, unit.long().clamp(0, units - 1)) * known
    f0_hz = torch.gather(speech.f0_hz.float(), 1, (unit * 2).long().clamp(0, 2 * units - 1))
    log_f0 = torch.where(known & (f0_hz > 40), f0_hz.clamp(min=40).log(), 0.0)
    shape = (batch, total, MELS_PER_FRAME)
    return audio, phones.view(shape), log_f0.view(shape), frames


def batches(corpus: Corpus, order: npt.NDArray[np.int64], phonemes_per_batch: int) -> Iterator[list[int]]:
    """Batch sentences of similar length. Sorting happens within pools, so that the order stays random overall."""
    pool = 1536
    for begin in range(0, len(order), pool):
        inside = sorted(order[begin : begin + pool], key=lambda i: int(corpus.offsets[i + 1] - corpus.offsets[i]))
        batch: list[int] = []
        for i in inside:
            longest = int(corpus.offsets[i + 1] - corpus.offsets[i]) + 2
            if batch and longest * (len(batch) + 1) > phonemes_per_batch:
                yield batch
                batch = []
            batch.append(int(i))
        yield batch


class Synthesizer:
    """The teacher on one device with its voices."""

    def __init__(self, teacher_dir: Path, device: str) -> None:
        self.device = device
        self.model: Kokoro = load_teacher(teacher_dir / "kokoro_int8.npz").to(device)
        table = np.load(teacher_dir / "voices_en_fp16.npz")
        styles = np.stack([table[name][:256].astype(np.float32) for name in SPEAKERS.values()])
        self.styles = torch.from_numpy(styles).to(device)  # [speakers, 256 lengths, 256]

    def speak(self, corpus: Corpus, batch: list[int], speakers: Tensor, speed: Tensor, shard: Shard) -> int:
        """Synthesise one batch into the shard -> number of frames."""
        rows = [corpus.phonemes_of(i) for i in batch]
        lengths = torch.tensor([len(row) + 2 for row in rows])
        ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
        for row, symbols in enumerate(rows):
            ids[row, 1 : len(symbols) + 1] = torch.from_numpy(symbols.astype(np.int64))
        ids, lengths = ids.to(self.device), lengths.to(self.device)
        style = self.styles[speakers, (lengths - 3).clamp(0, 255)]
        audio, phones, log_f0, frames = cut_to_frames(self.model(ids, lengths, style, speed), ids)
        keep = torch.arange(audio.shape[1], device=self.device)[None] < frames[:, None]
        if shard.keeps_audio:
            shard.audio.append((audio[keep].clamp(-1, 1) * 32767).round().short().cpu().numpy())
        mels = frame_mels(audio.flatten(1)).view(*phones.shape, MEL_BINS)
        shard.mels.append(mels[keep].half().cpu().numpy())
        shard.phones.append(phones[keep].byte().cpu().numpy())
        shard.log_f0.append(log_f0[keep].half().cpu().numpy())
        made = (frames > 0).cpu().numpy()
        shard.utterance.append(np.array(batch, np.int32)[made])
        shard.speaker.append(speakers.byte().cpu().numpy()[made])
        shard.frames.append(frames.int().cpu().numpy()[made])
        return int(frames.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--seconds", type=float, nargs="+", required=True, help="deadlines, one shard each")
    parser.add_argument("--batch-phonemes", type=int, default=9000)
    args = parser.parse_args()
    started = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if device == "cuda":  # batches differ in shape, so without a bound the allocator would keep the whole card
        torch.cuda.set_per_process_memory_fraction(0.4)
    torch.manual_seed(args.rank)
    corpus, voice = Corpus.load(args.corpus), Synthesizer(args.teacher, device)
    rng = np.random.default_rng(11)
    # Later passes over the corpus give each sentence another speaker and rate.
    order = np.concatenate([rng.permutation(len(corpus.texts)) for _ in range(4)])[args.rank :: args.world]
    deadlines, shard, frames, part = list(args.seconds), Shard(), 0, 0
    for number, batch in enumerate(batches(corpus, order, args.batch_phonemes)):
        elapsed = time.time() - started
        if elapsed > deadlines[0] and shard.frames:
            hours = shard.save(args.out / f"shard{args.rank}_{part}")
            print(f"shard {args.rank}_{part}: {hours:.1f} h after {time.time() - started:.0f} s", flush=True)
            shard, part = Shard(keeps_audio=False), part + 1  # only the decoder needs audio, and one shard is enough
            deadlines.pop(0)
            if not deadlines:
                return
        if number % 50 == 1:
            print(f"{elapsed:.0f} s, {frames * 0.08 / 3600:.2f} h, x{frames * 0.08 / elapsed:.0f}", flush=True)
        speakers = torch.randint(len(SPEAKERS), (len(batch),), device=device)
        speed = torch.empty(len(batch), device=device).uniform_(*SPEED_RANGE)
        frames += voice.speak(corpus, batch, speakers, speed, shard)
    shard.save(args.out / f"shard{args.rank}_{part}")


if __name__ == "__main__":
    main()
