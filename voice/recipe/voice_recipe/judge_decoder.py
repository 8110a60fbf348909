"""Judges decoders on held-out sentences, beside the training that made them.

    python -m voice_recipe.judge_decoder --teacher DIR --codes codes.pt --decoders a.pt b.pt
    python -m voice_recipe.judge_decoder --write ../text/held_out.xz      (after a change of the G2P)

The teacher speaks the sentences, the codes' encoder encodes them, and every decoder decodes them. Teacher and decoders
are judged by DNSMOS (OVRL, with a pause at both ends as in `vivavoce eval quality`), by PLCMOS, and by the losses of
the training. It needs onnxruntime and speechmos, of which only the models and plcmos.py are used.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_recipe.audio_features import Speech
from voice_recipe.codes_file import load_encoder
from voice_recipe.config import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, SPEAKERS
from voice_recipe.corpus import Corpus
from voice_recipe.decoder_files import loaded_decoder, read_decoder
from voice_recipe.decoder_losses import harmonic_loss, level_loss, mel_loss
from voice_recipe.encode_shards import encode
from voice_recipe.sentences import TEXT_DIR
from voice_recipe.speak import write_wav
from voice_recipe.synthesize import SPEED_RANGE, Job, Shard, Synthesizer
from voice_recipe.trim import SILENT_FRAMES

HELD_OUT = TEXT_DIR / "held_out.xz"  # the held-out sentences with their phonemes
JUDGE_RATE_HZ = 16_000
DNSMOS_SAMPLES, SILENCE_SAMPLES = int(9.01 * JUDGE_RATE_HZ), int(0.15 * JUDGE_RATE_HZ)
OVRL_OF_OUTPUT = (-0.06766283, 1.11546468, 0.04602535)  # of DNSMOS P.835 (speechmos 0.0.1.1)
Samples = npt.NDArray[np.float32]
Judge = Callable[[Samples], float]


@dataclass(frozen=True)
class Sentence:
    """A held-out sentence by the teacher: samples [S] at 24 kHz, and its codes [N, 8] with those of SILENT_FRAMES."""

    row: int
    audio: Tensor
    codes: Tensor


@dataclass(frozen=True)
class Verdict:
    """Means over all sentences. `behind` is the teacher's OVRL less this, with its standard error."""

    name: str
    ovrl: float
    behind: float
    error: float
    plcmos: float
    mel: float
    harmonic: float
    level: float
    level_db: float


def at_judge_rate(audio: Tensor) -> Samples:
    """Samples [S] at 24 kHz, S even in codec frames -> at 16 kHz, clipped."""
    spectrum = torch.fft.rfft(audio.double())
    count = len(audio) * JUDGE_RATE_HZ // SAMPLE_RATE_HZ
    resampled = torch.fft.irfft(spectrum[: count // 2 + 1], count) * (JUDGE_RATE_HZ / SAMPLE_RATE_HZ)
    samples: Samples = resampled.clamp(-1, 1).float().numpy()
    return samples


def judges() -> dict[str, Judge]:
    """DNSMOS and PLCMOS. Each takes samples at 16 kHz."""
    import onnxruntime  # only judges need it

    found = importlib.util.find_spec("speechmos")
    if found is None or found.origin is None:
        raise SystemExit("speechmos is missing")
    session = onnxruntime.InferenceSession(Path(found.origin).parent / "dnsmos_models" / "sig_bak_ovr.onnx")
    from speechmos import plcmos

    def ovrl(samples: Samples) -> float:
        padded = np.pad(samples, SILENCE_SAMPLES)
        window = np.resize(padded, max(len(padded), DNSMOS_SAMPLES))
        starts = range(0, len(window) - DNSMOS_SAMPLES + 1, JUDGE_RATE_HZ)
        pieces = [window[start : start + DNSMOS_SAMPLES][None] for start in starts]
        raw = [float(session.run(None, {"input_1": piece})[0][0][2]) for piece in pieces]
        return fmean(float(np.polyval(OVRL_OF_OUTPUT, value)) for value in raw)

    def concealment(samples: Samples) -> float:
        np.random.seed(0)  # it draws its raters
        return float(plcmos.run(samples, JUDGE_RATE_HZ)["plcmos"])

    return {"ovrl": ovrl, "plcmos": concealment}


def spoken(corpus: Corpus, rows: list[int], teacher: Path, codes: Path, device: str) -> list[Sentence]:
    """Let the teacher speak the sentences, all speakers in turn, and encode them."""
    voice, shard, speed = Synthesizer(teacher, device), Shard(), sum(SPEED_RANGE) / 2
    jobs = [Job([row], place % len(SPEAKERS), speed, [0.0]) for place, row in enumerate(rows)]
    with torch.no_grad():
        voice.speak(corpus, jobs, shard)
    parts = (shard.mels, shard.phones, shard.log_f0)
    encoder, speech = load_encoder(codes, device), Speech(None, *(torch.from_numpy(np.concatenate(p)) for p in parts))
    on_device = Speech(None, speech.mels.to(device), speech.phones.to(device), speech.log_f0.to(device))
    codes_of_all = encode(encoder, on_device).cpu().numpy()
    audio = np.concatenate(shard.audio)
    ends = np.cumsum(np.concatenate(shard.frames))[:-1]
    pieces = zip(
        np.concatenate(shard.records).tolist(), np.split(audio, ends), np.split(codes_of_all, ends), strict=True
    )
    return [
        Sentence(row, torch.from_numpy(one[SILENT_FRAMES:].reshape(-1) / np.float32(32767)), torch.from_numpy(some))
        for row, one, some in pieces
    ]


def decoded(decoder: Path, sentences: list[Sentence], device: str) -> list[Tensor]:
    """Audio [S] of every sentence by a decoder."""
    network = loaded_decoder({name: value.float() for name, value in read_decoder(decoder).items()}).to(device).eval()
    with torch.no_grad():
        audio = [network(one.codes[None].long().to(device))[0].clamp(-1, 1).cpu() for one in sentences]
    return [one[SILENT_FRAMES * SAMPLES_PER_FRAME :] for one in audio]


def verdict(name: str, audio: list[Tensor], sentences: list[Sentence], opinions: dict[str, list[float]]) -> Verdict:
    """Verdict over sentences from the opinions of the teacher and of this decoder, under `teacher` and `ovrl`."""
    behind = [a - b for a, b in zip(opinions["teacher"], opinions["ovrl"], strict=True)]
    pairs = [(one.audio[None], fake[None]) for one, fake in zip(sentences, audio, strict=True)]
    mel, harmonic, level = (
        fmean(float(loss(*pair)) for pair in pairs) for loss in (mel_loss, harmonic_loss, level_loss)
    )
    energy = [sum(float(pair[side].pow(2).sum()) for pair in pairs) for side in (0, 1)]
    return Verdict(
        name,
        ovrl=fmean(opinions["ovrl"]),
        behind=fmean(behind),
        error=stdev(behind) / len(behind) ** 0.5 if len(behind) > 1 else float("nan"),
        plcmos=fmean(opinions["plcmos"]),
        mel=mel,
        harmonic=harmonic,
        level=level,
        level_db=10 * float(np.log10(energy[1] / energy[0])),
    )


def judge(args: argparse.Namespace, panel: dict[str, Judge]) -> list[Verdict]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    corpus = Corpus.load(HELD_OUT)
    rows = list(range(0, len(corpus.texts), max(1, len(corpus.texts) // args.limit)))[: args.limit]
    sentences = spoken(corpus, rows, args.teacher, args.codes, device)
    entries = [("teacher", [one.audio for one in sentences])]
    names = [path.stem for path in args.decoders]
    entries += [(name, decoded(path, sentences, device)) for name, path in zip(names, args.decoders, strict=True)]
    verdicts, teacher = [], list[float]()
    for name, audio in entries:
        if args.wavs:
            (args.wavs / name).mkdir(parents=True, exist_ok=True)
            for one, samples in zip(sentences, audio, strict=True):
                write_wav(args.wavs / name / f"{one.row:03d}.wav", samples)
        heard = [at_judge_rate(samples) for samples in audio]
        opinions = {judge: [ask(samples) for samples in heard] for judge, ask in panel.items()}
        teacher = teacher or opinions["ovrl"]
        verdicts.append(verdict(name, audio, sentences, {**opinions, "teacher": teacher}))
        print(as_line(verdicts[-1]), flush=True)
    return verdicts


def as_line(one: Verdict) -> str:
    return (
        f"{one.name:24} OVRL {one.ovrl:.3f} (teacher less {one.behind:.3f} +- {one.error:.3f}), "
        f"PLCMOS {one.plcmos:.2f}, mel {one.mel:.4f}, harmonic {one.harmonic:.3f}, level {one.level:.3f}, "
        f"{one.level_db:+.1f} dB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="only write the sentences and their phonemes")
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--codes", type=Path)
    parser.add_argument("--decoders", type=Path, nargs="*", default=[], help="decoder files, or folders of checkpoints")
    parser.add_argument("--limit", type=int, default=24, help="number of sentences [24]")
    parser.add_argument("--wavs", type=Path, help="write the speech, too")
    parser.add_argument("--out", type=Path, help="write the verdicts as JSON")
    args = parser.parse_args()
    if args.write:
        from voice_recipe.speak_teacher import held_out_corpus  # needs packages that a GPU machine lacks

        held_out_corpus().save(args.write)
        return
    started = time.time()
    content: list[dict[str, Any]] = [asdict(one) for one in judge(args, judges())]
    print(f"judged in {time.time() - started:.0f} s")
    if args.out:
        args.out.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
