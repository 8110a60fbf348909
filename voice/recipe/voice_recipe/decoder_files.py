"""Weights of the waveform decoder: where they come from, how large they are, and how they grow.

python -m voice_recipe.decoder_files      (size and work of the shapes that a trial may choose)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from voice_recipe.codec_decoder import CodecDecoder
from voice_recipe.config import CODEC, CodecSizes

CODES_PER_2_SECONDS = 25
STORED_BYTES = 2  # of a bfloat16 number
SILENT_OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")  # of a new layer, so that it changes nothing yet


def stored_decoder(checkpoint: Path) -> dict[str, Tensor]:
    """speech_tokenizer/model.safetensors -> the state of CodecDecoder in float32."""
    stored = load_file(checkpoint / "speech_tokenizer" / "model.safetensors")
    state = {
        name.removeprefix("decoder."): value.float()
        for name, value in stored.items()
        if name.startswith("decoder.") and ".quantizer." not in name
    }
    for side, books in (("rvq_first", 1), ("rvq_rest", CODEC.codebooks - 1)):
        base = f"decoder.quantizer.{side}"
        sums = [stored[f"{base}.vq.layers.{i}._codebook.embedding_sum"].float() for i in range(books)]
        state[f"{side}.codebooks"] = torch.stack(sums)  # the usage is 1 everywhere
        state[f"{side}.output_proj.weight"] = stored[f"{base}.output_proj.weight"].float()
    return state


def read_decoder(path: Path) -> dict[str, Tensor]:
    """State of a decoder from a file of a training, or from the folder of a checkpoint."""
    if path.is_dir():
        return stored_decoder(path)
    state: dict[str, Tensor] = torch.load(path, map_location="cpu")
    return state


def sizes_of(state: dict[str, Tensor]) -> CodecSizes:
    """Sizes of a decoder from its state. Only layers and inner width of the transformer may differ from CODEC."""
    layers = {int(name.split(".")[2]) for name in state if name.startswith("pre_transformer.layers.")}
    inner = len(state["pre_transformer.layers.0.mlp.gate_proj.weight"])
    return replace(CODEC, num_layers=len(layers), intermediate_size=inner)


def loaded_decoder(state: dict[str, Tensor]) -> CodecDecoder:
    """Decoder with a state, in the sizes of that state."""
    decoder = CodecDecoder(sizes_of(state))
    decoder.load_state_dict(state)
    return decoder


@torch.no_grad()
def grown(state: dict[str, Tensor], sizes: CodecSizes) -> dict[str, Tensor]:
    """State of a larger decoder that gives the same audio.

    New layers and new inner channels of the transformer start with random inputs and an output of zero, so training
    can use them from its second step on.

    Raises:
        ValueError: the decoder has more layers or inner channels than asked for.
    """
    old = sizes_of(state)
    if old.num_layers > sizes.num_layers or old.intermediate_size > sizes.intermediate_size:
        raise ValueError(f"a decoder with {old.num_layers} layers of {old.intermediate_size} cannot shrink to {sizes}")
    target = CodecDecoder(sizes).state_dict()
    for name, value in target.items():
        if name not in state:
            if name.endswith(SILENT_OUTPUTS):
                value.zero_()
        elif value.shape == state[name].shape:
            value.copy_(state[name])
        else:  # inner channels of the gated MLP: rows of gate_proj and up_proj, columns of down_proj
            rows, columns = state[name].shape
            if name.endswith(SILENT_OUTPUTS):
                value.zero_()
            value[:rows, :columns] = state[name]
    return target


def stored_bytes(sizes: CodecSizes) -> int:
    """Bytes of the trained weights in the checkpoint, without the codebooks."""
    return STORED_BYTES * sum(p.numel() for p in CodecDecoder(sizes).parameters())


def multiplications(sizes: CodecSizes) -> float:
    """Multiplications of matrix products for one second of audio, as the mean over 4 s."""
    frames = 2 * CODES_PER_2_SECONDS
    codes = torch.zeros(1, frames, sizes.codebooks, dtype=torch.long)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        CodecDecoder(sizes)(codes)
    return float(counter.get_total_flops()) / 2 / 4


def main() -> None:
    print("layers  inner  MB     GMAC an audio second")
    for layers, inner in ((3, 512), (4, 512), (3, 768), (4, 768), (6, 512), (6, 1024)):
        sizes = replace(CODEC, num_layers=layers, intermediate_size=inner)
        print(f"{layers:6}  {inner:5}  {stored_bytes(sizes) / 1e6:5.2f}  {multiplications(sizes) / 1e9:.3f}")


if __name__ == "__main__":
    main()
