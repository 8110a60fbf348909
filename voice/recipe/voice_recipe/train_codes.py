"""Stage 2: learns the codes from the first shards, in about a minute and a half on one GPU.

python -m voice_recipe.train_codes --shards DIR.. --out codes.pt --seconds 90
"""

# Some of torch's own methods carry no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from voice_recipe.audio_features import Speech, cosine_rate, random_windows, wait_for
from voice_recipe.codes_file import small_form
from voice_recipe.config import CODEC, MEL_BINS
from voice_recipe.speech_codes import PhoneProbe, Quantized, SpeechCodes, features

CONTINUOUS_SHARE = 0.25  # share of the time that trains without the quantiser
LAST_REVIVAL = 0.8
WINDOW_FRAMES = 48
PEAK_RATE = 1e-3


def phone_loss(logits: Tensor, phones: Tensor) -> Tensor:
    """Loss of logits [..., symbols] against phones of the same leading shape, in flat order."""
    return F.cross_entropy(logits.flatten(0, -2).float(), phones.flatten().long())


def reconstruction(output: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Losses: L1 of mels (natural log), L1 of pitch in voiced parts, and the voicing decision."""
    mel = (output[..., :MEL_BINS] - target[..., :MEL_BINS]).abs().mean()
    voiced = target[..., MEL_BINS + 1]
    pitch = ((output[..., MEL_BINS] - target[..., MEL_BINS]).abs() * voiced).sum() / voiced.sum().clamp(min=1)
    voicing = F.binary_cross_entropy_with_logits(output[..., MEL_BINS + 1].float(), voiced)
    return {"mel": mel, "pitch": pitch, "voicing": voicing}


class CodesTrainer:
    """Model, probe and data of the stage."""

    def __init__(self, speech: Speech, device: str, batch: int) -> None:
        self.speech, self.device, self.batch = speech, device, batch
        self.model, self.probe = SpeechCodes(CODEC).to(device), PhoneProbe().to(device)
        parameters = [*self.model.parameters(), *self.probe.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
        self.parameters, self.quantize = parameters, False

    def draw(self) -> tuple[Tensor, Tensor]:
        """-> phones [B, n, 8], features [B, 8 n, 82] of random windows."""
        index = random_windows(len(self.speech.mels), WINDOW_FRAMES, self.batch, self.device)
        return self.speech.phones[index], features(self.speech.mels[index], self.speech.log_f0[index])

    def step(self, progress: float, revive: bool) -> dict[str, Tensor]:
        """Make one update -> detached losses."""
        phones, target = self.draw()
        with torch.autocast(self.device.split(":")[0], torch.bfloat16):
            semantic, acoustic = self.model.latents(phones, target)
        semantic, acoustic = semantic.float(), acoustic.float()
        if self.quantize and revive:
            self.model.semantic.revive(semantic.detach())
            self.model.acoustic.revive(acoustic.detach())
        first = self.model.semantic(semantic, learn=True) if self.quantize else self._noisy(semantic)
        rest = self.model.acoustic(acoustic, learn=True) if self.quantize else self._noisy(acoustic)
        with torch.autocast(self.device.split(":")[0], torch.bfloat16):
            output = self.model.decode(first.vectors, rest.vectors).float()
            heard = self.model.phone_head(first.vectors)
            probed = self.probe(target[..., :MEL_BINS])
        losses = reconstruction(output, target)
        losses["phones"] = phone_loss(heard.view(*phones.shape, -1), phones)
        losses["commitment"] = first.commitment + rest.commitment
        losses["probe"] = phone_loss(probed.view(*phones.shape, -1), phones)
        loss = (
            losses["mel"]
            + 0.3 * losses["pitch"]
            + 0.1 * losses["voicing"]
            + 0.5 * losses["phones"]
            + 0.1 * losses["commitment"]
            + 0.1 * losses["probe"]
        )
        for group in self.optimizer.param_groups:
            group["lr"] = PEAK_RATE * cosine_rate(progress)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return {name: value.detach() for name, value in losses.items()}

    @staticmethod
    def _noisy(latents: Tensor) -> Quantized:
        """Stand-in for the quantiser: adds a little noise, and a pull towards unit size."""
        noisy = latents + 0.1 * torch.randn_like(latents)
        return Quantized(noisy, latents.new_zeros(*latents.shape[:2], 0), 0.1 * (latents.pow(2).mean() - 1).relu())

    @torch.no_grad()
    def start_quantizer(self) -> None:
        drawn = [self.draw() for _ in range(8 if self.device != "cpu" else 1)]
        latents = [self.model.latents(*pair) for pair in drawn]
        self.model.semantic.initialise(torch.cat([semantic for semantic, _ in latents]))
        self.model.acoustic.initialise(torch.cat([acoustic for _, acoustic in latents]))
        self.quantize = True

    @torch.no_grad()
    def report(self) -> dict[str, float]:
        """Share of 10 ms whose phoneme the probe recognises, in true and in decoded mels, and the use of the codes."""
        phones, target = self.draw()
        semantic, acoustic = self.model.latents(phones, target)
        first, rest = self.model.semantic(semantic), self.model.acoustic(acoustic)
        output = self.model.decode(first.vectors, rest.vectors)
        truth = phones.flatten()
        result = {"mel": float(reconstruction(output, target)["mel"])}
        for name, mels in (("true", target), ("decoded", output)):
            heard = self.probe(mels[..., :MEL_BINS]).argmax(-1).flatten()
            result[f"probe_{name}"] = float((heard == truth).float().mean())
        heard = self.model.phone_head(first.vectors).view(*phones.shape, -1).argmax(-1).flatten()
        result["code0_phones"] = float((heard == truth).float().mean())
        codes = torch.cat([first.codes, rest.codes], -1).flatten(0, 1)
        for book in (0, 1, codes.shape[1] - 1):
            share = torch.bincount(codes[:, book], minlength=CODEC.codebook_size).float() / len(codes)
            result[f"perplexity{book}"] = float(torch.exp(-(share * (share + 1e-9).log()).sum()))
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--batch", type=int, default=96)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for shard in args.shards:
        wait_for(shard / "done", 600)
    torch.manual_seed(0)
    trainer = CodesTrainer(Speech.load(args.shards, device), device, args.batch)
    started, number, progress = time.time(), 0, 0.0
    while progress < 1:
        progress = (time.time() - started) / args.seconds
        if not trainer.quantize and progress > CONTINUOUS_SHARE:
            trainer.start_quantizer()
        losses = trainer.step(min(progress, 1.0), revive=number % 50 == 0 and progress < LAST_REVIVAL)
        if number % 500 == 0:
            text = " ".join(f"{name} {float(value):.3f}" for name, value in losses.items())
            print(f"{time.time() - started:.0f} s, step {number}: {text}", flush=True)
        number += 1
    for module in (trainer.model, trainer.probe):  # so that the stored form is exact
        module.bfloat16().float()
    report = trainer.report()
    print(f"codes: {number} steps, " + ", ".join(f"{name} {value:.3f}" for name, value in report.items()), flush=True)
    stored = {"model": trainer.model.state_dict(), "probe": trainer.probe.state_dict(), "report": report}
    torch.save(small_form(stored), args.out)


if __name__ == "__main__":
    main()
