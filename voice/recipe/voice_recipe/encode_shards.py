"""Stage 3: computes the codes of every shard and writes them next to its audio.

python -m voice_recipe.encode_shards --shards DIR.. --codes codes.pt
"""

# Some of torch's own methods carry no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch

from voice_recipe.audio_features import Speech, wait_for
from voice_recipe.codes_file import load_encoder
from voice_recipe.speech_codes import SpeechCodes, features

PIECE_FRAMES, MARGIN_FRAMES = 512, 16


@torch.no_grad()
def encode(model: SpeechCodes, speech: Speech) -> torch.Tensor:
    """Encode speech in windows that overlap by a margin on both sides -> int16 codes [N, 8]."""
    count, device = len(speech.phones), speech.phones.device
    starts = torch.arange(0, count, PIECE_FRAMES, device=device)
    offsets = torch.arange(-MARGIN_FRAMES, PIECE_FRAMES + MARGIN_FRAMES, device=device)
    out = []
    for some in starts.split(32):
        index = (some[:, None] + offsets).clamp(0, count - 1)
        codes = model.encode(speech.phones[index], features(speech.mels[index], speech.log_f0[index]))
        out.append(codes[:, MARGIN_FRAMES:-MARGIN_FRAMES].flatten(0, 1).short())
    return torch.cat(out)[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, nargs="+", required=True)
    parser.add_argument("--codes", type=Path, required=True)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    wait_for(args.codes, 900)
    model = load_encoder(args.codes, device)
    for shard in args.shards:
        wait_for(shard / "done", 900)
        codes = encode(model, Speech.load([shard], device)).cpu().numpy()
        np.save(shard / "codes.tmp.npy", codes)
        os.replace(shard / "codes.tmp.npy", shard / "codes.npy")
        print(f"{shard.name}: {len(codes)} frames encoded", flush=True)


if __name__ == "__main__":
    main()
