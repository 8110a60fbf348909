"""The file of the finished codes (codes.pt), and a small form of it that can be kept beside a voice.

    python -m voice_recipe.codes_file --codes codes.pt --out small.pt

Without this file nobody can go on with a voice's decoder: its codebooks are in the checkpoint, its encoder is not.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from voice_recipe.config import CODEC
from voice_recipe.speech_codes import SpeechCodes

TRAINING_ONLY = ("decoder", "phone_head")  # parts that turn codes into mels and phonemes again
STATISTICS = (".usage", ".sums")  # of a codebook that still learns


def small_form(stored: dict[str, Any]) -> dict[str, Any]:
    """Content of codes.pt with encoder, codebooks, their projections, probe and report alone, in bfloat16."""
    small: dict[str, Any] = {"report": stored["report"]}
    for part in ("model", "probe"):
        kept = {name: value for name, value in stored[part].items() if not name.endswith(STATISTICS)}
        small[part] = {name: value.bfloat16() for name, value in kept.items() if not name.startswith(TRAINING_ONLY)}
    return small


def load_encoder(path: Path, device: str) -> SpeechCodes:
    """Load a codes.pt of either form, to encode.

    Raises:
        ValueError: a part of the encoder is missing.
    """
    model = SpeechCodes(CODEC).to(device)
    missing, _ = model.load_state_dict(torch.load(path, map_location=device)["model"], strict=False)
    lacking = [name for name in missing if not name.startswith(TRAINING_ONLY) and not name.endswith(STATISTICS)]
    if lacking:
        raise ValueError(f"{path} lacks {lacking}")
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codes", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.save(small_form(torch.load(args.codes, map_location="cpu")), args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
