"""Cuts the silence off the teacher's sentences, and puts sentences together to utterances of whole codec frames."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from voice_recipe.config import MEL_HOP_SAMPLES, MELS_PER_FRAME, SAMPLE_RATE_HZ, TEACHER_HOP_SAMPLES
from voice_recipe.teacher import TeacherSpeech, align

LEVEL_SAMPLES = SAMPLE_RATE_HZ // 200  # levels are of 5 ms
SOUND_SHARE, SOUND_FLOOR = 0.005, 3e-4  # RMS of 5 ms that counts as sound: -46 dB below the loudest 25 ms, and at least
# A click of some voices 150 to 280 ms behind a word is no speech: speech lasts 40 ms within 150 ms.
SPEECH_WINDOW, SPEECH_WITHIN = 30, 8  # in levels
LEAD_SAMPLES = SAMPLE_RATE_HZ * 15 // 1000  # silence kept before the first sound
TAIL_SAMPLES = SAMPLE_RATE_HZ * 60 // 1000  # and after the last one
FADE_SAMPLES = 480
TARGET_RMS, PEAK_LIMIT = 0.08, 0.89
STRESS_IDS, LENGTH_MARK_ID = (156, 157), 158
DURATIONS_LATE_S = 0.045
"""The teacher's durations lag behind its sound: sibilants sound 35 to 55 ms before their symbols, in six voices."""
SILENT_FRAMES = 1
"""Silent frames before every utterance. Streaming text may need one to wait for its second token (prompts.py)."""


@dataclass(frozen=True)
class Sentence:
    """One sentence of M hops of 10 ms, with the silence kept around it."""

    audio: Tensor  # [240 M] float32
    phones: Tensor  # [M] phoneme id, 0 in the silence around
    log_f0: Tensor  # [M] ln(Hz), 0 where unvoiced


@dataclass(frozen=True)
class Utterances:
    """Utterances in a row, of whole frames."""

    audio: Tensor  # [1920 N]
    phones: Tensor  # [8 N]
    log_f0: Tensor  # [8 N]
    frames: list[int]  # of each utterance, the silent ones included


def sounding_ids(ids: Tensor) -> Tensor:
    """[B, T]. Replace stress marks by the next symbol and length marks by the one before: every frame has a sound."""
    following = torch.cat([ids[:, 1:], ids[:, -1:]], 1)
    before = torch.cat([ids[:, :1], ids[:, :-1]], 1)
    stress = torch.isin(ids, torch.tensor(STRESS_IDS, device=ids.device))
    return torch.where(stress, following, torch.where(ids == LENGTH_MARK_ID, before, ids))


def _edges(levels: Tensor, peak: Tensor) -> tuple[Tensor, Tensor]:
    """levels [B, n] and peak [B, 1] in RMS -> first and last level of speech [B]. First > last where there is none."""
    sounds = levels > (peak * SOUND_SHARE).clamp(min=SOUND_FLOOR)
    counted = F.pad(sounds.float()[:, None], (SPEECH_WINDOW - 1, SPEECH_WINDOW - 1))
    sums = F.avg_pool1d(counted, SPEECH_WINDOW, 1)[:, 0] * SPEECH_WINDOW + 0.5
    count = levels.shape[1]
    begins, ends = (sounds & (part >= SPEECH_WITHIN) for part in (sums[:, SPEECH_WINDOW - 1 :], sums[:, :count]))
    at = torch.arange(count, device=levels.device)
    return torch.where(begins, at, count).min(1).values, torch.where(ends, at, -1).max(1).values


def trim(speech: TeacherSpeech, ids: Tensor) -> list[Sentence | None]:
    """Trim silence and set the level of sentences [B, T]. None marks a failed one."""
    batch, units = ids.shape[0], int(speech.frames.max())
    levels = speech.audio.view(batch, -1, LEVEL_SAMPLES).pow(2).mean(-1).sqrt()
    rms = speech.audio.view(batch, units, TEACHER_HOP_SAMPLES).pow(2).mean(-1).sqrt()
    peak = rms.max(1, keepdim=True).values
    first, last = _edges(levels, peak)
    fine = ((last > first) & torch.isfinite(peak[:, 0])).tolist()
    start, stop = first * LEVEL_SAMPLES - LEAD_SAMPLES, (last + 1) * LEVEL_SAMPLES + TAIL_SAMPLES
    hops = (stop - start + MEL_HOP_SAMPLES - 1).div(MEL_HOP_SAMPLES, rounding_mode="floor")
    total = max(int(hops.max()), 1)
    sample = torch.arange(total * MEL_HOP_SAMPLES, device=ids.device)[None] + start[:, None]
    end = torch.minimum(stop, speech.frames * TEACHER_HOP_SAMPLES)[:, None]
    audio = torch.gather(speech.audio, 1, sample.clamp(0, speech.audio.shape[1] - 1)) * ((sample >= 0) & (sample < end))
    audio = audio * ((end - sample).clamp(0, FADE_SAMPLES) / FADE_SAMPLES)
    active = rms > peak * 0.02
    level = ((rms * active).pow(2).sum(1) / active.sum(1).clamp(min=1)).sqrt()
    gain = torch.minimum(TARGET_RMS / level.clamp(min=1e-4), PEAK_LIMIT / audio.abs().amax(1).clamp(min=1e-4))
    audio = audio * gain[:, None]
    middle = torch.arange(total, device=ids.device)[None] * MEL_HOP_SAMPLES + MEL_HOP_SAMPLES // 2 + start[:, None]
    unit = middle / TEACHER_HOP_SAMPLES
    known = (unit >= 0) & (unit < speech.frames[:, None])
    phones = torch.gather(sounding_ids(ids), 1, align(speech.durations, units))
    late = unit + DURATIONS_LATE_S * SAMPLE_RATE_HZ / TEACHER_HOP_SAMPLES
    sounding = (middle >= start[:, None] + LEAD_SAMPLES) & (middle < stop[:, None] - TAIL_SAMPLES)
    phones = torch.gather(phones, 1, late.long().clamp(0, units - 1)) * sounding
    f0_hz = torch.gather(speech.f0_hz.float(), 1, (unit * 2).long().clamp(0, 2 * units - 1))
    log_f0 = torch.where(known & (f0_hz > 40), f0_hz.clamp(min=40).log(), 0.0)
    return [
        Sentence(audio[row, : size * MEL_HOP_SAMPLES], phones[row, :size], log_f0[row, :size]) if fine[row] else None
        for row, size in enumerate(hops.tolist())
    ]


def join(utterances: list[list[Sentence]], pauses: list[list[int]]) -> Utterances:
    """Join the sentences of every utterance, with a pause in hops before each, and fill up to whole frames.

    Every utterance begins with SILENT_FRAMES.
    """
    parts: list[Sentence] = []
    frames = []
    like = utterances[0][0]

    def silence(hops: int) -> None:
        if hops:
            zeros = like.phones.new_zeros(hops)
            parts.append(Sentence(like.audio.new_zeros(hops * MEL_HOP_SAMPLES), zeros, like.log_f0.new_zeros(hops)))

    for sentences, before in zip(utterances, pauses, strict=True):
        silence(SILENT_FRAMES * MELS_PER_FRAME)
        for sentence, pause in zip(sentences, before, strict=True):
            silence(pause)
            parts.append(sentence)
        hops = sum(before) + sum(len(sentence.phones) for sentence in sentences)
        silence(-hops % MELS_PER_FRAME)
        frames.append(SILENT_FRAMES + -(-hops // MELS_PER_FRAME))
    return Utterances(
        torch.cat([part.audio for part in parts]),
        torch.cat([part.phones for part in parts]),
        torch.cat([part.log_f0 for part in parts]),
        frames,
    )
