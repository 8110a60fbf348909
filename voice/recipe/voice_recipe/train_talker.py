"""Stage 4b: trains the talker and its code predictor.

python -m voice_recipe.train_talker --shards DIR.. --corpus corpus.xz --tokenizer DIR --out talker.pt --end-time T
"""

# Some of torch's own methods carry no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from voice_recipe.audio_features import cosine_rate, wait_for
from voice_recipe.config import CODEC_EOS, TALKER
from voice_recipe.corpus import Corpus
from voice_recipe.prompts import Documents, Expanded, TextIds, expand
from voice_recipe.talker import Talker
from voice_recipe.talker_data import Packer, Tokens, load_documents, text_ids
from voice_recipe.text_tokenizer import TextTokenizer
from voice_recipe.training import Average, Clock, save_state, training_device

ROW_LENGTH = 512
TRAINED_CODEC_ROWS = 1152  # code 0 and EOS lie below; higher ids are never sampled
NOISY_SHARE, MOST_NOISE = 0.6, 0.10  # share of documents with disturbed history codes, and largest share of their codes
HELD_OUT_DOCUMENTS = 480
SAVE_EVERY_SECONDS, LOG_EVERY_SECONDS = 60.0, 20.0
PREDICTOR_WEIGHT = 0.7


class TalkerLoss(torch.nn.Module):
    """The talker and everything between a packed batch and its losses, so that it compiles as one piece."""

    def __init__(self, talker: Talker, predictor_frames: int, rows: int) -> None:
        super().__init__()
        self.talker, self.predictor_frames, self.rows = talker, predictor_frames, rows

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
        x = F.dropout(x, 0.05, self.training)
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


def expand_on(docs: Documents, packer: Packer, ids: TextIds, device: str) -> Expanded:
    return expand(docs, packer.queue.get().to(device), ids, packer.rows * packer.row_length)


class TalkerTrainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, training_device()
        self.talker = Talker(TALKER, args.dropout, args.dropout / 2).to(self.device)
        self.model = TalkerLoss(self.talker, args.predictor_frames, args.rows)
        self.compiled = self.model if args.eager else torch.compile(self.model)
        decayed = [p for n, p in self.talker.named_parameters() if p.dim() > 1 and "embedding" not in n]
        others = [p for n, p in self.talker.named_parameters() if p.dim() < 2 or "embedding" in n]
        groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        self.parameters = [*decayed, *others]
        self.optimizer = torch.optim.AdamW(groups, args.rate, (0.9, 0.98), fused=self.device == "cuda")
        self.average = Average(self.talker, 0.9995)

    def step(self, batch: Expanded, codes: Tensor, rate_factor: float) -> dict[str, Tensor]:
        with torch.autocast(self.device, torch.bfloat16):
            losses: dict[str, Tensor] = self.compiled(batch, codes)
        loss = losses["code0"] + PREDICTOR_WEIGHT * losses["rest"]
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.rate * rate_factor
        self.optimizer.step()
        self.average.update()
        return losses

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
        self.average = Average(self.talker, 0.9995)
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
    return " ".join(f"{name} {float(value):.3f}" for name, value in losses.items())


def train(trainer: TalkerTrainer, docs: Documents, ids: TextIds) -> None:
    args, device = trainer.args, trainer.device
    order = np.random.default_rng(5).permutation(len(docs.frames))
    held = min(HELD_OUT_DOCUMENTS, len(order) // 20)
    packer = Packer(docs, order[held:], args.rows, ROW_LENGTH, 1000 + args.seed)
    packer.start()
    check = Packer(docs, order[:held], min(args.rows, 16), ROW_LENGTH, 1)
    checks = [expand(docs, p.to(device), ids, check.rows * ROW_LENGTH) for p in check.epoch()][:4]
    clock, saved, entry, reached = Clock(args.end_time), 0.0, 0.0, {}
    while (progress := clock.tick()) < 1:
        losses = trainer.step(expand_on(docs, packer, ids, device), docs.codes, cosine_rate(progress))
        now = clock.elapsed()
        if now - entry > LOG_EVERY_SECONDS or clock.steps == 20:
            entry = now
            print(f"{now:.0f} s, step {clock.steps}: {describe(losses)}", flush=True)
        if now - saved > SAVE_EVERY_SECONDS:
            saved = now
            reached = trainer.validate(docs, checks, check.rows)
            print(f"{now:.0f} s, held out: {describe(reached)}", flush=True)
            save_state(trainer.average, args.out, reached)
    reached = trainer.validate(docs, checks, check.rows)
    save_state(trainer.average, args.out, {**reached, "steps": clock.steps})
    print(f"talker: {clock.steps} steps, held out: {describe(reached)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, nargs="+", required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--end-time", type=float, required=True)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--predictor-frames", type=int, default=6144)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--start", type=Path, help="weights of an earlier run to continue from, if the file exists")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    trainer = TalkerTrainer(args)
    tokens = Tokens.of(Corpus.load(args.corpus).texts, args.tokenizer)
    if not args.eager:
        trainer.warm_up()
    for shard in args.shards:
        wait_for(shard / "codes.npy", 900)
    docs = load_documents(args.shards, tokens, trainer.device)
    if args.start is not None and args.start.exists():
        trainer.talker.load_state_dict(torch.load(args.start, map_location=trainer.device))
        trainer.average = Average(trainer.talker, 0.9995)
        print(f"going on from {args.start.name}", flush=True)
    print(f"{len(docs.frames)} documents, {int(docs.frames.sum()) * 0.08 / 3600:.1f} h", flush=True)
    train(trainer, docs, text_ids(TextTokenizer(args.tokenizer)))


if __name__ == "__main__":
    main()
