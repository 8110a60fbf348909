"""Weights of a finished voice as the beginning of another training, whose tokenizer and codes may differ.

    python -m voice_recipe.start_talker --checkpoint DIR --tokenizer DIR --out talker.pt

Text embeddings move to the ids of the same tokens. A token that the checkpoint does not know keeps a row of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from voice_recipe.text_tokenizer import TextTokenizer

TEXT_EMBEDDING = "model.text_embedding.weight"


def moved(rows: Tensor, known: dict[str, int], wanted: dict[str, int]) -> Tensor:
    """Rows [vocabulary, width] of the tokens `known`, in the order of `wanted`. Special tokens follow in both."""
    if len(known) != len(wanted):
        raise ValueError(f"the tokenizers have {len(known)} and {len(wanted)} tokens")
    out = rows.clone()
    free = iter(sorted(known[token] for token in known.keys() - wanted.keys()))
    for token, place in wanted.items():
        out[place] = rows[known[token] if token in known else next(free)]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    stored = load_file(args.checkpoint / "model.safetensors")
    state = {name.removeprefix("talker."): value for name, value in stored.items()}
    known, wanted = TextTokenizer(args.checkpoint).vocab, TextTokenizer(args.tokenizer).vocab
    state[TEXT_EMBEDDING] = moved(state[TEXT_EMBEDDING], known, wanted)
    torch.save(state, args.out)
    print(f"{len(known.keys() & wanted.keys())} of {len(wanted)} tokens are known")


if __name__ == "__main__":
    main()
