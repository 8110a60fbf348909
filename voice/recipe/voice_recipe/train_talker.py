"""Stage 4b: trains the talker and its code predictor.

    python -m voice_recipe.train_talker --shards DIR.. --corpus corpus.xz --tokenizer DIR --out talker.pt --end-time T

With --state, a later command goes on where this one ended: weights, their average, optimiser and place in the schedule.
"""

# Some of torch's own methods carry no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from voice_recipe.audio_features import cosine_rate, wait_for
from voice_recipe.config import CODEC_EOS, TALKER
from voice_recipe.corpus import Corpus
from voice_recipe.prompts import Documents, Expanded, Packing, TextIds, expand
from voice_recipe.talker import Talker
from voice_recipe.talker_data import Packer, load_documents, text_ids
from voice_recipe.text_tokenizer import TextTokenizer
from voice_recipe.training import Average, Clock, save_state, training_device

ROW_LENGTH = 1024
"""Positions of a row: 60 s of speech and their text."""
CHECK_ROWS = 8
AVERAGE_DECAY = 0.9995
TRAINED_CODEC_ROWS = 1152  # code 0 and EOS lie below; higher ids are never sampled
NOISY_SHARE, MOST_NOISE = 0.6, 0.10  # share of documents with disturbed history codes, and largest share of their codes
HELD_OUT_DOCUMENTS = 480
SAVE_EVERY_SECONDS, LOG_EVERY_SECONDS = 60.0, 20.0


class TalkerLoss(torch.nn.Module):
    """The talker and everything between a packed batch and its losses, so that it compiles as one piece."""

    def __init__(self, talker: Talker, predictor_frames: int, rows: int, dropout: float) -> None:
        super().__init__()
        self.talker, self.predictor_frames, self.rows, self.dropout = talker, predictor_frames, rows, dropout

    def disturbed(self, codes: Tensor, owner: Tensor) -> Tensor:
        """History codes [P, 8] with random ones mixed in. The rate differs between documents."""
        slots = torch.rand(4096, 2, device=codes.device)[owner.clamp(min=0) % 4096]
        rate = slots[:, :1] * MOST_NOISE * (slots[:, 1:] < NOISY_SHARE)
        other = torch.randint_like(codes, TALKER.codebook_size)
        return torch.where(torch.rand(codes.shape, device=codes.device) < rate, other, codes)

    def forward(self, batch: Expanded, codes: Tensor) -> dict[str, Tensor]:
        """codes: Documents.codes.  -> losses and accuracies (scalars)."""
        talker, rows = self.talker, self.rows
        texts = talker.text(torch.arange(TALKER.text_vocab_size, device=codes.device))
        x = F.embedding(batch.text_id, texts)
        x = x + talker.model.codec_embedding(batch.codec_id.clamp(min=0)) * (batch.codec_id >= 0)[:, None]
        history = codes[batch.frame.clamp(min=0)].long()
        if self.training:
            history = self.disturbed(history, batch.owner)
        x = x + talker.frame_embedding(history) * (batch.frame >= 0)[:, None]
        owner = batch.owner.view(rows, -1)
        length = owner.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=codes.device).tril()
        mask = ((owner[:, :, None] == owner[:, None]) & causal)[:, None]
        x = F.dropout(x, self.dropout, self.training)
        hidden, _ = talker.trunk(x.view(rows, length, -1), batch.position.view(rows, length), mask)
        hidden = hidden.flatten(0, 1)
        return self.losses(hidden, batch, codes)

    def losses(self, hidden: Tensor, batch: Expanded, codes: Tensor) -> dict[str, Tensor]:
        truth = codes[batch.target_frame.clamp(min=0)].long()
        label = torch.where(batch.target_frame >= 0, truth[:, 0], torch.where(batch.ends, CODEC_EOS, -100))
        logits = F.linear(hidden, self.talker.codec_head.weight[:TRAINED_CODEC_ROWS]).float()
        each = F.cross_entropy(logits, label, ignore_index=-100, reduction="none")
        counted = (label >= 0).sum()
        order = torch.where(batch.target_frame >= 0, torch.rand(label.shape, device=label.device), -1.0)
        kept, chosen = order.topk(self.predictor_frames)
        weight = (kept >= 0).float()
        predictor = self.talker.predictor_logits(hidden[chosen], truth[chosen])
        books = [
            (F.cross_entropy(out.float(), truth[chosen, i + 1], reduction="none") * weight).sum() / weight.sum()
            for i, out in enumerate(predictor)
        ]
        hits = (logits.argmax(-1) == label) & (label >= 0)
        return {
            "code0": each.sum() / counted,
            "rest": torch.stack(books).mean(),
            "code1": books[0],
            "end": (each * batch.ends).sum() / batch.ends.sum().clamp(min=1),
            "accuracy": hits.sum() / counted,
        }


class TalkerTrainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, training_device()
        self.talker = Talker(TALKER, args.dropout, args.dropout / 2).to(self.device)
        self.model = TalkerLoss(self.talker, args.predictor_frames, args.rows, args.dropout / 2)
        self.compiled = self.model if args.eager else torch.compile(self.model)
        decayed = [p for n, p in self.talker.named_parameters() if p.dim() > 1 and "embedding" not in n]
        others = [p for n, p in self.talker.named_parameters() if p.dim() < 2 or "embedding" in n]
        groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        self.parameters = [*decayed, *others]
        self.optimizer = torch.optim.AdamW(groups, args.rate, (0.9, 0.98), fused=self.device == "cuda")
        self.average = Average(self.talker, AVERAGE_DECAY)
        self.spent_s, self.steps = 0.0, 0
        """Training of all commands."""

    def step(self, batch: Expanded, codes: Tensor, rate_factor: float) -> dict[str, Tensor]:
        with torch.autocast(self.device, torch.bfloat16):
            losses: dict[str, Tensor] = self.compiled(batch, codes)
        loss = losses["code0"] + self.args.predictor_weight * losses["rest"]
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.rate * rate_factor
        self.optimizer.step()
        self.average.update()
        self.steps += 1
        return losses

    def load_weights(self, path: Path) -> None:
        """Begin with the weights of an earlier run, and a new optimiser."""
        self.talker.load_state_dict(torch.load(path, map_location=self.device))
        self.average = Average(self.talker, AVERAGE_DECAY)

    def save_state(self, path: Path) -> None:
        """Write everything that a later command needs to go on. Replaces the file atomically."""
        state = {
            "talker": self.talker.state_dict(),
            "average": self.average.values,
            "updates": self.average.updates,
            "optimizer": self.optimizer.state_dict(),
            "spent_s": self.spent_s,
            "steps": self.steps,
        }
        torch.save(state, path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path)

    def load_state(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device)
        self.talker.load_state_dict(state["talker"])
        self.average = Average(self.talker, AVERAGE_DECAY)
        self.average.values, self.average.updates = state["average"], state["updates"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.spent_s, self.steps = state["spent_s"], state["steps"]

    def warm_up(self) -> None:
        """Compile on one invented batch while the codes are still being made."""
        started, device, rows = time.time(), self.device, self.args.rows
        positions = rows * ROW_LENGTH
        integers = torch.randint(1, 1000, (positions,), device=device)
        batch = Expanded(integers, integers, integers, integers, integers == 1, integers % ROW_LENGTH, integers * 0)
        codes = torch.randint(TALKER.codebook_size, (5000, TALKER.code_groups), device=device, dtype=torch.int16)
        torch._dynamo.mark_dynamic(codes, 0)
        kept = {name: value.clone() for name, value in self.talker.state_dict().items()}
        for _ in range(2):
            self.step(batch, codes, 0.01)
        self.talker.load_state_dict(kept)
        self.optimizer.state.clear()
        self.average, self.steps = Average(self.talker, AVERAGE_DECAY), 0
        if device == "cuda":
            torch.cuda.synchronize()
        print(f"compiled in {time.time() - started:.0f} s", flush=True)

    @torch.no_grad()
    def validate(self, docs: Documents, batches: list[Expanded], rows: int) -> dict[str, float]:
        """Averaged weights on the held-out documents, without dropout and uncompiled."""
        if not batches:
            return {}
        live = [p.detach().clone() for p in self.talker.parameters()]
        torch._foreach_copy_(list(self.talker.parameters()), self.average.values)
        self.model.eval()
        self.model.rows = rows
        with torch.autocast(self.device, torch.bfloat16):
            results = [self.model(batch, docs.codes) for batch in batches]
        self.model.train()
        self.model.rows = self.args.rows
        torch._foreach_copy_(list(self.talker.parameters()), live)
        return {name: float(torch.stack([r[name] for r in results]).mean()) for name in results[0]}


def describe(losses: dict[str, Tensor] | dict[str, float]) -> str:
    return " ".join(f"{name} {torch.as_tensor(value).item():.3f}" for name, value in losses.items())


def batches(packings: Iterator[Packing], docs: Documents, ids: TextIds, positions: int) -> Iterator[Expanded]:
    device = str(docs.codes.device)
    for packing in packings:
        yield expand(docs, packing.to(device), ids, positions)


def train(trainer: TalkerTrainer, docs: Documents, ids: TextIds) -> None:
    """Train until the command's end or the end of the schedule, whichever is first."""
    args = trainer.args
    order = np.random.default_rng(5).permutation(len(docs.frames))
    held = min(HELD_OUT_DOCUMENTS, len(order) // 20)
    packer = Packer.of(docs, order[held:], args.rows, ROW_LENGTH)
    check_rows = min(args.rows, CHECK_ROWS)
    check = Packer.of(docs, order[:held], check_rows, ROW_LENGTH).epoch(np.random.default_rng(1))
    checks = list(batches(check, docs, ids, check_rows * ROW_LENGTH))
    clock, before = Clock(args.end_time), trainer.spent_s
    total = args.total_seconds or before + clock.seconds
    saved, entry, reached = 0.0, 0.0, dict[str, float]()
    for batch in batches(packer.endless(1000 + args.seed + trainer.steps), docs, ids, args.rows * ROW_LENGTH):
        trainer.spent_s = before + clock.elapsed()
        if clock.tick() >= 1 or trainer.spent_s >= total:
            break
        losses = trainer.step(batch, docs.codes, cosine_rate(trainer.spent_s / total))
        now = clock.elapsed()
        if now - entry > LOG_EVERY_SECONDS or clock.steps == 20:
            entry = now
            print(f"{trainer.spent_s:.0f} s, step {trainer.steps}: {describe(losses)}", flush=True)
        if now - saved > SAVE_EVERY_SECONDS:
            saved = now
            reached = trainer.validate(docs, checks, check_rows)
            print(f"{trainer.spent_s:.0f} s, held out: {describe(reached)}", flush=True)
            save_state(trainer.average, args.out, reached)
    reached = trainer.validate(docs, checks, check_rows)
    save_state(trainer.average, args.out, {**reached, "steps": trainer.steps, "seconds": trainer.spent_s})
    if args.state:
        trainer.save_state(args.state)
    print(f"talker: {trainer.steps} steps in {trainer.spent_s:.0f} s, held out: {describe(reached)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, nargs="*", required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--end-time", type=float, required=True, help="when this command ends, seconds since 1970")
    parser.add_argument("--total-seconds", type=float, help="training of all commands together [until --end-time]")
    parser.add_argument("--state", type=Path, help="goes on from this file if it exists, and writes it at the end")
    parser.add_argument("--start", type=Path, help="weights of an earlier run to begin with, if the file exists")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--predictor-frames", type=int, default=8192)
    parser.add_argument("--predictor-weight", type=float, default=0.5, help="of codes 1.. against code 0")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--compile-only", action="store_true", help="fill the compiler's cache and end")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    trainer = TalkerTrainer(args)
    if not args.eager:
        trainer.warm_up()
    if args.compile_only:
        return
    corpus = Corpus.load(args.corpus)
    for shard in args.shards:
        wait_for(shard / "codes.npy", 1800)
    docs = load_documents(args.shards, corpus, args.tokenizer, trainer.device)
    if args.state is not None and args.state.exists():
        trainer.load_state(args.state)
        print(f"going on after {trainer.spent_s:.0f} s, {trainer.steps} steps", flush=True)
    elif args.start is not None and args.start.exists():
        trainer.load_weights(args.start)
        print(f"beginning with {args.start.name}", flush=True)
    print(f"{len(docs.frames)} documents, {int(docs.frames.sum()) * 0.08 / 3600:.1f} h", flush=True)
    train(trainer, docs, text_ids(TextTokenizer(args.tokenizer)))


if __name__ == "__main__":
    main()
