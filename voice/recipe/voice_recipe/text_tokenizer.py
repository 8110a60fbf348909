"""The text tokenizer: a small byte-level BPE in the layout of Qwen2's, followed by 33 special tokens.

python -m voice_recipe.text_tokenizer --corpus corpus.xz --out DIR
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from voice_recipe.config import TEXT_BPE_SIZE
from voice_recipe.corpus import Corpus

# The split pattern of Qwen2's tokenizer.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DROPOUT = 0.1


def tokenizer(model: models.Model) -> Tokenizer:
    made = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return made


def train(texts: list[str], folder: Path) -> None:
    """Write vocab.json and merges.txt. "assistant", which every prompt contains, becomes one token."""
    bpe = tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_BPE_SIZE,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    bpe.train_from_iterator([*texts, *["assistant\n"] * max(len(texts) // 10, 50)], trainer)
    model = json.loads(bpe.to_str())["model"]
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    assert len(vocab) == TEXT_BPE_SIZE
    assert "assistant" in vocab
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False, separators=(",", ":")))
    (folder / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in model["merges"]))


class TextTokenizer:
    """The trained tokenizer. `dropout` gives random splits for training."""

    def __init__(self, folder: Path, dropout: float | None = None) -> None:
        self.vocab: dict[str, int] = json.loads((folder / "vocab.json").read_text())
        lines = (folder / "merges.txt").read_text().splitlines()
        merges = [(left, right) for left, right in (line.split(" ") for line in lines)]
        self.bpe = tokenizer(models.BPE(vocab=self.vocab, merges=merges, dropout=dropout))

    @property
    def assistant(self) -> int:
        return self.vocab["assistant"]

    @property
    def newline(self) -> int:
        return self.vocab["\u010a"]

    def special(self, offset: int) -> int:
        """Id of a special token from its place among the 33."""
        return len(self.vocab) + offset

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Encode texts -> ids of all texts in a row, offsets [len + 1]."""
        rows = [encoding.ids for encoding in self.bpe.encode_batch(texts)]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        return np.fromiter((i for row in rows for i in row), np.int32, int(offsets[-1])), offsets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    corpus = Corpus.load(args.corpus)
    texts = [*corpus.texts, *(text for text in corpus.spoken if text is not None)]
    train(texts, args.out)
    ids, _ = TextTokenizer(args.out).encode(texts)
    print(f"{TEXT_BPE_SIZE} entries, {sum(map(len, texts)) / len(ids):.2f} characters a token")


if __name__ == "__main__":
    main()
