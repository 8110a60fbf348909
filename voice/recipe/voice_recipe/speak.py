"""Speaks with an exported checkpoint by the recipe's own modules, on the CPU, to score it during a run.

    python -m voice_recipe.speak --checkpoint DIR --out WAVS [--limit 20] [--streaming]

It needs neither the engine nor the reference package.
"""

from __future__ import annotations

import argparse
import json
import time
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from voice_recipe import config as c
from voice_recipe.decoder_files import loaded_decoder, stored_decoder
from voice_recipe.sentences import held_out
from voice_recipe.talker import Talker
from voice_recipe.talker_data import text_ids
from voice_recipe.text_tokenizer import TextTokenizer

MAX_FRAMES = 300
"""Frames of an utterance after which speech is cut off: 24 s."""


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters, as in generation_config.json."""

    temperature: float = 0.9
    top_k: int = 50
    repetition_penalty: float = 1.05
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50

    @staticmethod
    def load(checkpoint: Path) -> Sampling:
        stored = json.loads((checkpoint / "generation_config.json").read_text())
        return Sampling(**{name: stored[name] for name in Sampling.__dataclass_fields__})


def sample(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """Draw an id from logits [V]. Temperature 0 takes the most likely one."""
    if temperature == 0:
        return int(logits.argmax())
    scaled = logits.float() / temperature
    if top_k:
        scaled = scaled.masked_fill(scaled < scaled.topk(min(top_k, len(scaled))).values[-1], -torch.inf)
    return int(torch.multinomial(scaled.softmax(-1), 1, generator=generator))


class Voice:
    def __init__(self, checkpoint: Path) -> None:
        self.talker, self.decoder = Talker(c.TALKER).eval(), loaded_decoder(stored_decoder(checkpoint)).eval()
        state = load_file(checkpoint / "model.safetensors")
        self.talker.load_state_dict({name.removeprefix("talker."): value.float() for name, value in state.items()})
        self.tokenizer = TextTokenizer(checkpoint)
        self.ids = text_ids(self.tokenizer)

    def prompt(self, text: str, speaker: int, english: bool, streaming: bool) -> tuple[Tensor, Tensor]:
        """-> prefill embeddings [1, T, H], trailing text embeddings [1, K, H]."""
        words, i = self.tokenizer.encode([text])[0].tolist(), self.ids
        head = [c.CODEC_THINK, c.CODEC_THINK_BOS, c.CODEC_ENGLISH, c.CODEC_THINK_EOS]
        head = head if english else [c.CODEC_NOTHINK, c.CODEC_THINK_BOS, c.CODEC_THINK_EOS]
        codec = [*head, c.speaker_codec_id(speaker), c.CODEC_PAD]
        texts = [i.im_start, i.assistant, i.newline, *[i.tts_pad] * (len(codec) - 1), i.tts_bos]
        if streaming:
            texts, codec, trailing = [*texts, words[0]], [*codec, c.CODEC_BOS], [*words[1:], i.tts_eos]
        else:
            texts = [*texts, *words, i.tts_eos, i.tts_pad]
            codec, trailing = [*codec, *[c.CODEC_PAD] * (len(words) + 1), c.CODEC_BOS], [i.tts_pad]
        x = self.talker.text(torch.tensor(texts))
        x[3:] += self.talker.model.codec_embedding(torch.tensor(codec))
        return x[None], self.talker.text(torch.tensor(trailing))[None]

    def frame_codes(self, hidden: Tensor, first: int, sampling: Sampling, generator: torch.Generator) -> Tensor:
        """The 8 codes of a frame from the talker's hidden state [1, 1, H]."""
        predictor, codes = self.talker.code_predictor, [first]
        x = torch.cat([hidden, self.talker.model.codec_embedding(torch.tensor([[first]]))], 1)
        past = None
        for i, head in enumerate(predictor.lm_head):
            states, past = predictor.run(x, 0 if i == 0 else i + 1, past)
            logits = head(states[0, -1])
            codes.append(sample(logits, sampling.subtalker_temperature, sampling.subtalker_top_k, generator))
            if i + 1 < len(predictor.lm_head):
                x = predictor.model.codec_embedding[i](torch.tensor([[codes[-1]]]))
        return torch.tensor(codes)[None, None]

    @torch.no_grad()
    def codes(
        self, text: str, speaker: int, streaming: bool, sampling: Sampling, seed: int, english: bool = True
    ) -> tuple[Tensor, bool]:
        """-> codes [1, F, 8] and whether the talker stopped by itself."""
        generator = torch.Generator().manual_seed(seed)
        x, trailing = self.prompt(text, speaker, english, streaming)
        pad = self.talker.text(torch.tensor([[self.ids.tts_pad]]))
        seen: list[int] = []
        frames: list[Tensor] = []
        hidden, past = self.talker.trunk(x, torch.arange(x.shape[1]), None)
        place = x.shape[1]
        while len(frames) < MAX_FRAMES:
            logits = self.talker.codec_head(hidden[0, -1]).float()
            if seen:
                index = torch.tensor(sorted(set(seen)))
                chosen = logits[index]
                penalty = sampling.repetition_penalty
                logits[index] = torch.where(chosen < 0, chosen * penalty, chosen / penalty)
            end = logits[c.CODEC_EOS].clone()
            logits[c.TALKER.codec_vocab_size - 1024 :] = -torch.inf
            if len(seen) >= 2:
                logits[c.CODEC_EOS] = end
            first = sample(logits, sampling.temperature, sampling.top_k, generator)
            if first == c.CODEC_EOS:
                break
            seen.append(first)
            frames.append(self.frame_codes(hidden[:, -1:], first, sampling, generator))
            beside = trailing[:, len(frames) - 1 : len(frames)] if len(frames) <= trailing.shape[1] else pad
            step = self.talker.frame_embedding(frames[-1]) + beside
            hidden, past = self.talker.trunk(step, torch.tensor([place]), None, past)
            place += 1
        made = torch.cat(frames, 1) if frames else torch.zeros(1, 0, c.TALKER.code_groups, dtype=torch.long)
        return made, len(frames) < MAX_FRAMES

    @torch.no_grad()
    def audio(self, codes: Tensor) -> Tensor:
        """codes [1, F, 8] -> samples [1920 F]."""
        samples: Tensor = self.decoder(codes)
        return samples[0].clamp(-1, 1)


def write_wav(path: Path, samples: Tensor) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(c.SAMPLE_RATE_HZ)
        file.writeframes((samples.numpy() * 32767).astype(np.int16).tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--streaming", action="store_true")
    parser.add_argument("--auto", action="store_true", help="language auto instead of English")
    parser.add_argument("--seed", type=int, default=0)
    for name in ("temperature", "subtalker-temperature", "repetition-penalty"):
        parser.add_argument(f"--{name}", type=float)
    for name in ("top-k", "subtalker-top-k"):
        parser.add_argument(f"--{name}", type=int)
    args = parser.parse_args()
    voice, sampling = Voice(args.checkpoint), Sampling.load(args.checkpoint)
    given = {name: getattr(args, name) for name in Sampling.__dataclass_fields__ if getattr(args, name) is not None}
    sampling = Sampling(**{**sampling.__dict__, **given})
    args.out.mkdir(parents=True, exist_ok=True)
    started, seconds, stopped = time.time(), 0.0, 0
    rows = held_out()
    picked = list(range(0, len(rows), max(1, len(rows) // args.limit)))[: args.limit]
    for i in picked:
        codes, ended = voice.codes(
            rows[i][1], i % len(c.SPEAKERS), args.streaming, sampling, args.seed + i, not args.auto
        )
        write_wav(args.out / f"{i:03d}.wav", voice.audio(codes))
        seconds += codes.shape[1] * c.SAMPLES_PER_FRAME / c.SAMPLE_RATE_HZ
        stopped += ended
    spent = time.time() - started
    print(
        f"{len(picked)} sentences, {stopped} stopped by themselves, {seconds:.0f} s of audio, "
        f"real-time factor {spent / seconds:.2f}"
    )


if __name__ == "__main__":
    main()
