"""Stage 4a: trains the codec's waveform decoder on the finished codes.

    python -m voice_recipe.train_decoder --shards DIR.. --codes codes.pt --out decoder.pt --end-time T

It compiles and captures its steps on random inputs while the codes are still being made. It trains on spectra first and
adds the critics later. A whole step (decoder, losses, critics, both optimisers) is one CUDA graph, because a step has
about two thousand small kernels, and launching them one by one costs more than running them.
"""

# Some of torch's own methods carry no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voice_recipe.audio_features import Speech, cosine_rate, frame_mels, hann, mel_filters, random_windows, wait_for
from voice_recipe.codec_decoder import CodecDecoder
from voice_recipe.config import CODEC, MELS_PER_FRAME, SAMPLES_PER_FRAME
from voice_recipe.discriminators import Discriminators, Judgement, critic_loss, generator_losses
from voice_recipe.speech_codes import MEL_MEAN, MEL_STD, PhoneProbe
from voice_recipe.training import Average, Clock, save_state, training_device

MEL_RESOLUTIONS = ((2048, 128), (1024, 80), (512, 48), (256, 24), (128, 12))
CONTEXT_FRAMES, DECODED_FRAMES, WARMUP_FRAMES = (
    24,
    14,
    2,
)  # context includes the decoded frames; warm-up frames have no loss
JUDGED_SAMPLES = (DECODED_FRAMES - WARMUP_FRAMES) * SAMPLES_PER_FRAME
CRITIC_RATE_SHARE = 0.4
ADVERSARIAL_RATE_SHARE = 0.5  # share of the learning rate without critics
AVERAGE_EVERY_STEPS = 8
SAVE_EVERY_SECONDS, LOG_EVERY_SECONDS = 60.0, 30.0
STATISTICS = ("mel", "critic", "adversarial", "matching", "norm")
BFLOAT16_STEP = 2.0**-7  # relative step of the weights of an earlier run, which are stored in bfloat16


def mel_distance(real_parts: Tensor, fake_parts: Tensor, filters: Tensor) -> Tensor:
    """L1 of log10 mels from spectra [B, F, T, 2] (real and imaginary)."""
    mels = []
    for parts in (real_parts, fake_parts):
        magnitude = parts.pow(2).sum(-1).add(1e-10).sqrt().transpose(1, 2)
        mels.append((magnitude @ filters).clamp(min=1e-5).log10())
    return (mels[0] - mels[1]).abs().mean()


def spectrum(audio: Tensor, fft_size: int) -> Tensor:
    window = hann(fft_size, str(audio.device)) / (fft_size / 2)
    return torch.view_as_real(torch.stft(audio, fft_size, fft_size // 4, fft_size, window, return_complex=True))


@dataclass(frozen=True)
class Settings:
    """Settings that differ between trials."""

    batch: int = 32
    critic_batch: int = 16  # samples of a batch that pass the critics
    rate: float = 8e-4
    mel_weight: float = 100.0
    matching_weight: float = 1.0


class DecoderTrainer:
    """Decoder, critics and optimisers. Inputs and statistics are in fixed buffers, so a step can be a CUDA graph."""

    def __init__(self, settings: Settings, eager: bool = False) -> None:
        self.device, self.settings = training_device(), settings
        self.cuda = self.device == "cuda"
        self.decoder, self.critics = CodecDecoder(CODEC).to(self.device), Discriminators().to(self.device)
        self.rate, self.critic_rate = (torch.tensor(settings.rate, device=self.device) for _ in range(2))
        options: dict[str, Any] = {"betas": (0.8, 0.95), "weight_decay": 0.01}
        if self.cuda:
            options |= {"fused": True, "capturable": True}
        self.decoder_parameters = list(self.decoder.parameters())
        self.critic_parameters = list(self.critics.parameters())
        self.optimizer = torch.optim.AdamW(self.decoder_parameters, self.rate, **options)
        self.critic_optimizer = torch.optim.AdamW(self.critic_parameters, self.critic_rate, **options)
        torch._inductor.config.max_pointwise_cat_inputs = (
            2  # otherwise each tap of a convolution recomputes all of its inputs
        )
        # Only the decoder is compiled. Critics and spectra gain little from it inside a graph and take minutes.
        self.decode: Callable[..., Tensor] = self.decoder if eager else torch.compile(self.decoder, dynamic=False)
        self.codes = torch.zeros(settings.batch, CONTEXT_FRAMES, CODEC.codebooks, dtype=torch.long, device=self.device)
        self.audio = torch.zeros(settings.batch, JUDGED_SAMPLES, device=self.device)
        self.statistics = torch.zeros(len(STATISTICS), device=self.device)
        self.graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self.average = Average(self.decoder, 0.99)

    def mel_loss(self, real: Tensor, fake: Tensor) -> Tensor:
        total = real.new_zeros(())
        for fft_size, bins in MEL_RESOLUTIONS:
            filters = mel_filters(fft_size, bins, self.device)
            total = total + mel_distance(spectrum(real, fft_size), spectrum(fake, fft_size), filters)
        return total / len(MEL_RESOLUTIONS)

    def judge(self, number: int, audio: Tensor) -> Judgement:
        with torch.autocast(self.device, torch.bfloat16, cache_enabled=False):
            return self.critics.judge(number, audio)

    def critic_step(self, real: Tensor, fake: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
        """Update the critics -> loss, and each critic's features of the real audio."""
        for p in self.critic_parameters:
            p.requires_grad_(True)
        both, count = torch.cat([real, fake]), len(real)

        def task(number: int) -> tuple[Tensor, list[Tensor]]:
            score, maps = self.judge(number, both)
            return critic_loss(score[:count], score[count:]), [m[:count].detach() for m in maps]

        found = [task(number) for number in range(len(self.critics))]
        loss = torch.stack([loss for loss, _ in found]).sum()
        self.critic_optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.critic_parameters, 10.0, foreach=True)
        self.critic_optimizer.step()
        for p in self.critic_parameters:
            p.requires_grad_(False)
        return loss.detach(), [maps for _, maps in found]

    def update(self, adversarial: bool) -> None:
        """Make one step on the buffers: codes [B, 24, 8] and the audio of their last 12 frames."""
        with torch.autocast(self.device, torch.bfloat16):
            decoded = self.decode(self.codes, DECODED_FRAMES)
        fake = decoded.float()[:, WARMUP_FRAMES * SAMPLES_PER_FRAME :].contiguous()
        zero = torch.zeros((), device=self.device)
        mel, critic, adversary, matching = self.mel_loss(self.audio, fake), zero, zero, zero
        loss = self.settings.mel_weight * mel
        if adversarial:
            count = self.settings.critic_batch
            few = fake[:count]
            critic, real_maps = self.critic_step(self.audio[:count], few.detach())
            found = [generator_losses(maps, self.judge(number, few)) for number, maps in enumerate(real_maps)]
            adversary, matching = (torch.stack(values).sum() for values in zip(*found, strict=True))
            loss = loss + adversary + self.settings.matching_weight * matching
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.decoder_parameters, 5.0, foreach=True)
        self.optimizer.step()
        self.statistics.copy_(torch.stack([v.detach().float() for v in (mel, critic, adversary, matching, norm)]))

    def step(self, rate_factor: float, adversarial: bool) -> None:
        if adversarial:
            rate_factor *= ADVERSARIAL_RATE_SHARE
        self.rate.fill_(self.settings.rate * rate_factor)
        self.critic_rate.fill_(self.settings.rate * CRITIC_RATE_SHARE * rate_factor / ADVERSARIAL_RATE_SHARE)
        if adversarial in self.graphs:
            self.graphs[adversarial].replay()
        else:
            self.update(adversarial)

    # Preparation ----------------------------------------------------------------------------------------------------

    def reset(self, states: list[dict[str, Tensor]]) -> None:
        """Reset weights to `states` and optimisers to their start, in place, because graphs hold the addresses."""
        for module, state in zip((self.decoder, self.critics), states, strict=True):
            module.load_state_dict(state)
        for optimizer in (self.optimizer, self.critic_optimizer):
            for held in optimizer.state.values():
                for value in held.values():
                    value.zero_()

    def prepare(self) -> None:
        """Compile on noise, then capture both kinds of step."""
        started = time.time()
        states = [copy.deepcopy(m.state_dict()) for m in (self.decoder, self.critics)]
        self.codes.random_(CODEC.codebook_size)
        self.audio.normal_(std=0.1)
        self._warm_up((False, False, True, True))
        print(f"compiled in {time.time() - started:.0f} s", flush=True)
        self._capture(states, self._trial(states))
        self.reset(states)
        self.average = Average(self.decoder, 0.99)

    def _warm_up(self, kinds: tuple[bool, ...]) -> None:
        """Run plain steps in a side stream, which a capture requires."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for adversarial in kinds:
                self.update(adversarial)
        torch.cuda.current_stream().wait_stream(side)

    def _capture(self, states: list[dict[str, Tensor]], expected: list[float]) -> None:
        """Capture graphs of both steps. Keep them only if they repeat the plain steps."""
        home = torch.cuda.current_stream()
        try:
            self._warm_up((True, True))
            for adversarial in (False, True):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self.update(adversarial)
                self.graphs[adversarial] = graph
            found = self._trial(states)
        except Exception as error:  # plain steps work even if a capture fails
            torch.cuda.set_stream(home)
            print(f"no graphs: {error}", flush=True)
            self.graphs = {}
            return
        kept = all(abs(a - b) <= 0.1 * abs(b) + 0.01 for a, b in zip(found, expected, strict=True))
        print(
            f"graphs {'kept' if kept else 'DROPPED'}, {self._step_ms():.1f} ms: plain {expected} captured {found}",
            flush=True,
        )
        if not kept:
            self.graphs = {}

    def _trial(self, states: list[dict[str, Tensor]]) -> list[float]:
        """Losses after three steps of each kind, from the given state."""
        self.reset(states)
        losses = []
        for adversarial in (False, True):
            for _ in range(3):
                self.step(0.3, adversarial)
            losses += self.statistics[:4].tolist()
        return losses

    def _step_ms(self) -> float:
        """Time of a step with critics in ms, the best of several, because other stages may share the card."""
        best = float("inf")
        for _ in range(3):
            torch.cuda.synchronize()
            started = time.time()
            for _ in range(5):
                self.step(0.01, True)
            torch.cuda.synchronize()
            best = min(best, 200 * (time.time() - started))
        return best

    def load_codebooks(self, state: dict[str, Tensor]) -> None:
        """Load the codebooks of the finished SpeechCodes. If they are new, load its projections too."""
        for side, target in (("semantic", self.decoder.rvq_first), ("acoustic", self.decoder.rvq_rest)):
            books = torch.stack([state[f"{side}.books.{i}.vectors"] for i in range(len(target.codebooks))])
            if not torch.allclose(books, target.codebooks, rtol=BFLOAT16_STEP, atol=1e-6):
                target.output_proj.weight.data.copy_(state[f"{side}.output_proj.weight"][..., None])
            target.codebooks.copy_(books)
        self.average = Average(self.decoder, 0.99)


@torch.no_grad()
def heard_share(trainer: DecoderTrainer, probe: PhoneProbe, speech: Speech, codes: Tensor, count: int = 16) -> float:
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
        trainer.step(cosine_rate(progress), progress > args.critics_from)
        recent.lerp_(trainer.statistics, 0.02)
        if clock.steps % AVERAGE_EVERY_STEPS == 0:
            trainer.average.update()
        if clock.elapsed() - logged > LOG_EVERY_SECONDS or clock.steps == 100:
            logged = clock.elapsed()
            text = " ".join(f"{name} {v:.3f}" for name, v in zip(STATISTICS, recent.tolist(), strict=True))
            print(
                f"{logged:.0f} s, step {clock.steps}: {text} heard {heard_share(trainer, probe, speech, codes):.3f}",
                flush=True,
            )
        if clock.elapsed() - saved > SAVE_EVERY_SECONDS:
            saved = clock.elapsed()
            save_state(trainer.average, args.out, {"mel": float(recent[0])})
    heard = heard_share(trainer, probe, speech, codes, 64)
    save_state(trainer.average, args.out, {"mel": float(recent[0]), "heard": heard, "steps": clock.steps})
    print(f"decoder: {clock.steps} steps, mel {float(recent[0]):.4f}, heard {heard:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, nargs="+", required=True)
    parser.add_argument("--codes", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--end-time", type=float, required=True)
    for setting in fields(Settings):
        name, kind = setting.name.replace("_", "-"), type(setting.default)
        parser.add_argument(f"--{name}", type=kind, default=setting.default)
    parser.add_argument("--critics-from", type=float, default=0.3, help="share of the time without critics")
    parser.add_argument("--start", type=Path, help="weights of an earlier run to continue from, if the file exists")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true", help="do not compile or capture graphs")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    settings = Settings(**{setting.name: getattr(args, setting.name) for setting in fields(Settings)})
    trainer = DecoderTrainer(settings, args.eager)
    if not args.eager:
        trainer.prepare()
    for shard in args.shards:
        wait_for(shard / "codes.npy", 900)
    stored = torch.load(args.codes, map_location=trainer.device)
    if args.start is not None and args.start.exists():
        trainer.decoder.load_state_dict(torch.load(args.start, map_location=trainer.device))
        print(f"going on from {args.start.name}", flush=True)
    trainer.load_codebooks(stored["model"])
    probe = PhoneProbe().to(trainer.device)
    probe.load_state_dict(stored["probe"])
    speech = Speech.load(args.shards, trainer.device, with_audio=True)
    codes = torch.cat([torch.from_numpy(np.load(shard / "codes.npy")) for shard in args.shards]).to(trainer.device)
    train(trainer, probe, speech, codes, args)


if __name__ == "__main__":
    main()
