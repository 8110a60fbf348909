"""Stage 4a: trains the codec's waveform decoder on the finished codes.

    python -m voice_recipe.train_decoder --shards DIR.. --codes codes.pt --out decoder.pt --end-time T

It compiles and captures its steps on random inputs while the codes are still being made. It trains on spectra first and
adds the critics later. A step is a few CUDA graphs (step_parts.py). It can go on from the decoder of an earlier run or
of a checkpoint, from the critics beside it, and with more layers than it had.
"""

# Some of torch's own methods carry no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voice_recipe.audio_features import Speech, cosine_rate, frame_mels, random_windows, wait_for
from voice_recipe.codec_decoder import CodecDecoder
from voice_recipe.config import CODEC, MELS_PER_FRAME, SAMPLES_PER_FRAME
from voice_recipe.decoder_files import grown, read_decoder
from voice_recipe.decoder_losses import harmonic_loss, level_loss, mel_loss
from voice_recipe.discriminators import Discriminators, Judgement, critic_loss, generator_losses
from voice_recipe.speech_codes import MEL_MEAN, MEL_STD, PhoneProbe
from voice_recipe.step_parts import StepParts
from voice_recipe.training import Average, Clock, save_state, training_device

CONTEXT_FRAMES, DECODED_FRAMES, WARMUP_FRAMES = (
    24,
    14,
    2,
)  # context includes the decoded frames; warm-up frames have no loss
JUDGED_SAMPLES = (DECODED_FRAMES - WARMUP_FRAMES) * SAMPLES_PER_FRAME
CRITIC_RATE_SHARE = 0.4
ADVERSARIAL_RATE_SHARE = 0.5  # share of the learning rate without critics
DECODER_NORM, CRITIC_NORM = 5.0, 10.0  # limits of the gradients' norm, the latter of each critic
AVERAGE_EVERY_STEPS = 8
SAVE_EVERY_SECONDS, LOG_EVERY_SECONDS = 60.0, 30.0
LOG_WINDOWS, FINAL_WINDOWS = 16, 64  # of 3.8 s, in which the probe listens
SPECTRAL, JUDGED = ("mel", "harmonic", "level"), ("critic", "adversarial", "matching")
STATISTICS = (*SPECTRAL, *JUDGED, "norm")
BFLOAT16_STEP = 2.0**-7  # relative step of the weights of an earlier run, which are stored in bfloat16


@dataclass(frozen=True)
class Settings:
    """Settings that differ between trials."""

    batch: int = 32
    critic_batch: int = 16  # samples of a batch that pass the critics
    rate: float = 8e-4
    mel_weight: float = 100.0
    mel_end: float = 1.0  # share of it at the end of the run; it falls in a line
    matching_weight: float = 1.0
    harmonic_weight: float = 0.0
    level_weight: float = 0.0
    layers: int = CODEC.num_layers  # of the transformer
    inner: int = CODEC.intermediate_size  # of its gated MLPs


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, limit: float, gradient: Tensor | None = None) -> Tensor:
    """Update the weights of an optimiser by the gradient of a loss -> its norm before it is clipped."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for weight, found in zip(weights, torch.autograd.grad(loss, weights, gradient), strict=True):
        weight.grad = found
    norm = torch.nn.utils.clip_grad_norm_(weights, limit, foreach=True)
    optimizer.step()
    return norm


class DecoderTrainer:
    """Decoder, critics and optimisers. All parts of a step exchange data in fixed buffers."""

    def __init__(self, settings: Settings, eager: bool = False) -> None:
        self.device, self.settings = training_device(), settings
        self.sizes = replace(CODEC, num_layers=settings.layers, intermediate_size=settings.inner)
        self.decoder, self.critics = CodecDecoder(self.sizes).to(self.device), Discriminators().to(self.device)
        self.rate, self.critic_rate = (torch.tensor(settings.rate, device=self.device) for _ in range(2))
        self.optimizer = self._optimizer(self.decoder.parameters(), self.rate)
        self.critic_optimizers = [
            self._optimizer(self.critics.critic(number).parameters(), self.critic_rate)
            for number in range(len(self.critics))
        ]
        torch._inductor.config.max_pointwise_cat_inputs = (
            2  # otherwise each tap of a convolution recomputes all of its inputs
        )
        # Only the decoder is compiled. Critics and spectra gain little from it inside a graph and take minutes.
        self.decode: Callable[..., Tensor] = self.decoder if eager else torch.compile(self.decoder, dynamic=False)
        self.codes = torch.zeros(settings.batch, CONTEXT_FRAMES, CODEC.codebooks, dtype=torch.long, device=self.device)
        self.audio, self.fake = (torch.zeros(settings.batch, JUDGED_SAMPLES, device=self.device) for _ in range(2))
        self.mel_share = torch.ones((), device=self.device)
        self.decoded = self.fake  # with its autograd graph, between first and last part
        self.gradients = torch.zeros(1 + len(self.critics), *self.fake.shape, device=self.device)  # of fake
        self.spectral = torch.zeros(len(SPECTRAL), device=self.device)
        self.judged = torch.zeros(len(self.critics), len(JUDGED), device=self.device)
        self.statistics = torch.zeros(len(STATISTICS), device=self.device)
        critics = [partial(self._critic_part, number) for number in range(len(self.critics))]
        self.parts = StepParts(self._first_part, [self._spectral_part, *critics], self._last_part)
        self.average = Average(self.decoder, 0.99)

    def _optimizer(self, weights: Iterable[torch.nn.Parameter], rate: Tensor) -> torch.optim.Optimizer:
        options: dict[str, Any] = {"betas": (0.8, 0.95), "weight_decay": 0.01}
        if self.device == "cuda":
            options |= {"fused": True, "capturable": True}
        return torch.optim.AdamW(weights, rate, **options)

    def _half(self, cache_enabled: bool = True) -> torch.autocast:
        """Products in bfloat16 on a GPU. A CPU would be slower with them."""
        return torch.autocast(self.device, torch.bfloat16, self.device == "cuda", cache_enabled)

    # The parts of a step ---------------------------------------------------------------------------------------------

    def _first_part(self) -> None:
        """Decode the codes [B, 24, 8] into the audio of their last 12 frames."""
        with self._half():
            decoded = self.decode(self.codes, DECODED_FRAMES)
        self.decoded = decoded.float()[:, WARMUP_FRAMES * SAMPLES_PER_FRAME :].contiguous()
        self.fake.copy_(self.decoded.detach())

    def _spectral_part(self) -> None:
        """Gradient of the losses that compare spectra."""
        fake = self.fake.detach().requires_grad_()
        weights = (self.settings.mel_weight, self.settings.harmonic_weight, self.settings.level_weight)
        losses = [
            loss(self.audio, fake) if weight else fake.new_zeros(())
            for loss, weight in zip((mel_loss, harmonic_loss, level_loss), weights, strict=True)
        ]
        mel, *others = (weight * loss for weight, loss in zip(weights, losses, strict=True))
        total = torch.stack([self.mel_share * mel, *others]).sum()
        self.gradients[0].copy_(torch.autograd.grad(total, fake)[0])
        self.spectral.copy_(torch.stack(losses).detach())

    def judge(self, number: int, audio: Tensor) -> Judgement:
        with self._half(cache_enabled=False):
            return self.critics.judge(number, audio)

    def _critic_part(self, number: int) -> None:
        """Update one critic, then take the gradient of what it thinks of the decoded audio."""
        count = self.settings.critic_batch
        real, fake = self.audio[:count], self.fake[:count].detach().requires_grad_()
        score, maps = self.judge(number, torch.cat([real, fake.detach()]))
        loss = critic_loss(score[:count], score[count:])
        descend(self.critic_optimizers[number], loss, CRITIC_NORM)
        real_maps = [one[:count].detach() for one in maps]
        adversary, matching = generator_losses(real_maps, self.judge(number, fake))
        total = adversary + self.settings.matching_weight * matching
        self.gradients[1 + number, :count].copy_(torch.autograd.grad(total, fake)[0])
        self.judged[number].copy_(torch.stack([loss, adversary, matching]).detach())

    def _last_part(self) -> None:
        """Update the decoder by the sum of all gradients."""
        norm = descend(self.optimizer, self.decoded, DECODER_NORM, self.gradients.sum(0))
        self.statistics.copy_(torch.cat([self.spectral, self.judged.sum(0), norm.float()[None]]))

    def step(self, rate_factor: float, adversarial: bool, progress: float = 0.0) -> None:
        """Make one step on the buffers: codes [B, 24, 8] and the audio of their last 12 frames."""
        if adversarial:
            rate_factor *= ADVERSARIAL_RATE_SHARE
        else:
            self.gradients[1:].zero_()
            self.judged.zero_()
        self.rate.fill_(self.settings.rate * rate_factor)
        self.critic_rate.fill_(self.settings.rate * CRITIC_RATE_SHARE * rate_factor / ADVERSARIAL_RATE_SHARE)
        self.mel_share.fill_(1 - (1 - self.settings.mel_end) * progress)
        self.parts.run(len(self.parts.beside) if adversarial else 1)

    # Preparation ----------------------------------------------------------------------------------------------------

    def reset(self, states: list[dict[str, Tensor]]) -> None:
        """Reset weights to `states` and optimisers to their start, in place, because graphs hold the addresses."""
        for module, state in zip((self.decoder, self.critics), states, strict=True):
            module.load_state_dict(state)
        for optimizer in (self.optimizer, *self.critic_optimizers):
            for held in optimizer.state.values():
                for value in held.values():
                    value.zero_()

    def prepare(self) -> None:
        """Compile on noise, then capture the parts of a step."""
        started = time.time()
        states = [copy.deepcopy(m.state_dict()) for m in (self.decoder, self.critics)]
        self.codes.random_(CODEC.codebook_size)
        self.audio.normal_(std=0.1)
        for adversarial in (False, True):
            self.step(0.0, adversarial)
        torch.cuda.synchronize()
        print(f"compiled in {time.time() - started:.0f} s", flush=True)
        self._capture(states, self._trial(states))
        self.reset(states)
        self.average = Average(self.decoder, 0.99)

    def _capture(self, states: list[dict[str, Tensor]], expected: list[float]) -> None:
        """Capture the parts. Keep them, side by side or in a row, only if they repeat the plain steps."""
        try:
            self.parts.capture()
        except Exception as error:  # plain steps work even if a capture fails
            print(f"no graphs: {error}", flush=True)
            return
        for streams in (self.parts.streams, []):
            self.parts.streams = streams
            found = self._trial(states)
            kept = all(abs(a - b) <= 0.1 * abs(b) + 0.01 for a, b in zip(found, expected, strict=True))
            how = f"graphs {'side by side' if streams else 'in a row'} {'kept' if kept else 'DROPPED'}"
            print(f"{how}: plain {expected} captured {found}", flush=True)
            if kept:
                first, last, spectral, *critics, whole = self.parts.milliseconds()
                alone = " ".join(f"{one:.1f}" for one in critics)
                print(f"step {whole:.1f} ms; decode {first:.1f}, spectra {spectral:.1f}, update {last:.1f}", flush=True)
                print(f"critics {alone} ms", flush=True)
                return
        self.parts.graphs = []

    def _trial(self, states: list[dict[str, Tensor]]) -> list[float]:
        """Losses after three steps of each kind, from the given state."""
        self.reset(states)
        losses = []
        for adversarial in (False, True):
            for _ in range(3):
                self.step(0.3, adversarial)
            losses += self.statistics[:-1].tolist()
        return losses

    def go_on(self, start: Path) -> None:
        """Load an earlier decoder, smaller ones too, and the critics beside it if they were kept."""
        self.decoder.load_state_dict(grown(read_decoder(start), self.sizes))
        critics = critics_of(start)
        if critics.exists():
            self.critics.load_state_dict(torch.load(critics, map_location=self.device))
        print(f"going on from {start.name}{' and its critics' if critics.exists() else ''}", flush=True)

    def save(self, out: Path, result: dict[str, Any]) -> None:
        """Write the averaged decoder, its result and the critics."""
        save_state(self.average, out, {**result, "layers": self.settings.layers})
        state = {name: value.bfloat16() for name, value in self.critics.state_dict().items()}
        torch.save(state, critics_of(out))

    def load_codebooks(self, state: dict[str, Tensor]) -> None:
        """Load the codebooks of the finished SpeechCodes. If they are new, load its projections too."""
        for side, target in (("semantic", self.decoder.rvq_first), ("acoustic", self.decoder.rvq_rest)):
            books = torch.stack([state[f"{side}.books.{i}.vectors"] for i in range(len(target.codebooks))])
            if not torch.allclose(books, target.codebooks, rtol=BFLOAT16_STEP, atol=1e-6):
                target.output_proj.weight.data.copy_(state[f"{side}.output_proj.weight"][..., None])
            target.codebooks.copy_(books)
        self.average = Average(self.decoder, 0.99)


def critics_of(decoder: Path) -> Path:
    """File of the critics beside a decoder's."""
    return decoder.with_suffix(".critics")


@torch.no_grad()
def heard_share(trainer: DecoderTrainer, probe: PhoneProbe, speech: Speech, codes: Tensor, count: int) -> float:
    """Share of 10 ms whose phoneme the probe recognises in decoded speech (see PhoneProbe)."""
    index = random_windows(len(codes), 48, count, trainer.device)
    audio = trainer.decoder(codes[index].long()).float()
    mels = (frame_mels(audio) - MEL_MEAN) / MEL_STD
    truth, skip = speech.phones[index].flatten(1), 8 * MELS_PER_FRAME
    return float((probe(mels).argmax(-1)[:, skip:] == truth[:, skip:]).float().mean())


def train(trainer: DecoderTrainer, probe: PhoneProbe, speech: Speech, codes: Tensor, args: argparse.Namespace) -> None:
    clock, saved, logged = Clock(args.end_time), 0.0, 0.0
    recent = torch.zeros_like(trainer.statistics)
    while (progress := clock.tick()) < 1:
        index = random_windows(len(codes), CONTEXT_FRAMES, len(trainer.codes), trainer.device)
        trainer.codes.copy_(codes[index])
        trainer.audio.copy_(speech.waveform(index[:, WARMUP_FRAMES - DECODED_FRAMES :]))
        trainer.step(cosine_rate(progress), progress > args.critics_from, progress)
        recent.lerp_(trainer.statistics, 0.02)
        if clock.steps % AVERAGE_EVERY_STEPS == 0:
            trainer.average.update()
        if clock.elapsed() - logged > LOG_EVERY_SECONDS or clock.steps == 100:
            logged = clock.elapsed()
            text = " ".join(f"{name} {v:.3f}" for name, v in zip(STATISTICS, recent.tolist(), strict=True))
            heard = heard_share(trainer, probe, speech, codes, LOG_WINDOWS)
            print(f"{logged:.0f} s, step {clock.steps}: {text} heard {heard:.3f}", flush=True)
        if clock.elapsed() - saved > SAVE_EVERY_SECONDS:
            saved = clock.elapsed()
            trainer.save(args.out, {"mel": float(recent[0])})
    heard = heard_share(trainer, probe, speech, codes, FINAL_WINDOWS)
    trainer.save(args.out, {"mel": float(recent[0]), "heard": heard, "steps": clock.steps})
    print(f"decoder: {clock.steps} steps, mel {float(recent[0]):.4f}, heard {heard:.3f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, nargs="+", required=True)
    parser.add_argument("--codes", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--end-time", type=float, required=True)
    for setting in fields(Settings):
        name, kind = setting.name.replace("_", "-"), type(setting.default)
        parser.add_argument(f"--{name}", type=kind, default=setting.default)
    parser.add_argument("--critics-from", type=float, default=0.3, help="share of the time without critics")
    parser.add_argument("--start", type=Path, help="decoder.pt of an earlier run, or a checkpoint, if it exists")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile-only", action="store_true", help="compile, time a step and its parts, and end")
    parser.add_argument("--eager", action="store_true", help="do not compile or capture graphs")
    args = parser.parse_args(arguments)
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # a queue for every critic's stream
    torch.manual_seed(args.seed)
    settings = Settings(**{setting.name: getattr(args, setting.name) for setting in fields(Settings)})
    trainer = DecoderTrainer(settings, args.eager)
    if not args.eager:
        trainer.prepare()
    if args.compile_only:
        return
    for shard in args.shards:
        wait_for(shard / "codes.npy", 900)
    stored = torch.load(args.codes, map_location=trainer.device)
    if args.start is not None and args.start.exists():
        trainer.go_on(args.start)
    trainer.load_codebooks(stored["model"])
    probe = PhoneProbe().to(trainer.device)
    probe.load_state_dict(stored["probe"])
    speech = Speech.load(args.shards, trainer.device, with_audio=True)
    codes = torch.cat([torch.from_numpy(np.load(shard / "codes.npy")) for shard in args.shards]).to(trainer.device)
    train(trainer, probe, speech, codes, args)


if __name__ == "__main__":
    main()
