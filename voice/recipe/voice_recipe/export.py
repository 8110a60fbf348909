"""Stage 5: writes the checkpoint folder, in the layout of Qwen3-TTS CustomVoice.

python -m voice_recipe.export --run DIR --out CHECKPOINT      (reads codes.pt, decoder.pt, talker.pt, tokenizer/)
python -m voice_recipe.export --decoder decoder.pt --out CHECKPOINT      (replaces the decoder of a finished checkpoint)
python -m voice_recipe.export --apart bella heart 0.15 --out CHECKPOINT      (moves bella's embedding away from heart's)
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from voice_recipe import config as c
from voice_recipe.decoder_files import sizes_of
from voice_recipe.mimi_encoder import ENCODER, MimiEncoder
from voice_recipe.text_tokenizer import TextTokenizer

LAYOUT_DIR = Path(__file__).resolve().parent.parent / "layout"


def _speaker(sex: str, accent: str, description: str) -> dict[str, str]:
    return {"sex": sex, "accent": accent, "language": "english", "description": description}


# The pitches are medians of the finished voice (vivavoce_voice/quality/streaming_text.json).
SPEAKER_INFOS = {
    "heart": _speaker("female", "American", "Medium pitch, about 190 Hz"),
    "bella": _speaker("female", "American", "Medium pitch, about 190 Hz; near to heart"),
    "michael": _speaker("male", "American", "Deep, about 110 Hz"),
    "fenrir": _speaker("male", "American", "Medium pitch, about 130 Hz"),
    "emma": _speaker("female", "British", "A little lower, about 180 Hz"),
    "george": _speaker("male", "British", "Light, about 145 Hz"),
}
# Code 0 is a phoneme at its place in time. It has to repeat, so there is no repetition penalty, and its most likely
# value is right, so the temperature is low (README.md, trials).
GENERATION = {
    "do_sample": True,
    "repetition_penalty": 1.0,
    "temperature": 0.2,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.6,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 1024,
    "max_utterance_chars": 180,
    # The head that follows the text in the shipped weights. `vivavoce eval align` finds it for other ones.
    "alignment_heads": [[3, 4]],
    "alignment_offset_ms": -45,
    # Its corpus is words in ASCII. It speaks letters best by their names: "eff bee eye" for FBI.
    "text": {"reads": "words", "alphabet": "ascii", "letters": "names"},
    "speakers": SPEAKER_INFOS,
}
DTYPE = torch.bfloat16
METADATA = {"format": "pt"}  # without it, transformers refuses a model.safetensors


def read_json(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((LAYOUT_DIR / name).read_text())
    return loaded


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def main_config(tokenizer: TextTokenizer) -> dict[str, Any]:
    """config.json, with the released keys and the sizes of this recipe."""
    config, t = read_json("config.json"), c.TALKER
    config.update(
        assistant_token_id=tokenizer.assistant,
        im_start_token_id=tokenizer.special(c.SPECIAL_IM_START),
        im_end_token_id=tokenizer.special(c.SPECIAL_IM_END),
        tts_pad_token_id=tokenizer.special(c.SPECIAL_TTS_PAD),
        tts_bos_token_id=tokenizer.special(c.SPECIAL_TTS_BOS),
        tts_eos_token_id=tokenizer.special(c.SPECIAL_TTS_EOS),
    )
    rotary = t.head_dim // 2
    config["talker_config"].update(
        hidden_size=t.hidden_size,
        intermediate_size=t.intermediate_size,
        num_hidden_layers=t.num_layers,
        num_attention_heads=t.num_heads,
        num_key_value_heads=t.num_kv_heads,
        head_dim=t.head_dim,
        rope_theta=t.rope_theta,
        text_hidden_size=t.text_hidden_size,
        text_vocab_size=t.text_vocab_size,
        num_code_groups=t.code_groups,
        vocab_size=t.codec_vocab_size,
        codec_pad_id=c.CODEC_PAD,
        codec_bos_id=c.CODEC_BOS,
        codec_eos_token_id=c.CODEC_EOS,
        codec_think_id=c.CODEC_THINK,
        codec_nothink_id=c.CODEC_NOTHINK,
        codec_think_bos_id=c.CODEC_THINK_BOS,
        codec_think_eos_id=c.CODEC_THINK_EOS,
        codec_language_id={"english": c.CODEC_ENGLISH},
        spk_id={name: c.speaker_codec_id(i) for i, name in enumerate(c.SPEAKERS)},
        spk_is_dialect=dict.fromkeys(c.SPEAKERS, False),
    )
    config["talker_config"]["rope_scaling"]["mrope_section"] = [rotary - 2 * (rotary // 3), rotary // 3, rotary // 3]
    config["talker_config"]["code_predictor_config"].update(
        hidden_size=t.predictor_hidden_size,
        intermediate_size=t.predictor_intermediate_size,
        num_hidden_layers=t.predictor_layers,
        layer_types=["full_attention"] * t.predictor_layers,
        num_attention_heads=t.predictor_heads,
        num_key_value_heads=t.predictor_kv_heads,
        head_dim=t.head_dim,
        vocab_size=t.codebook_size,
        num_code_groups=t.code_groups,
        rope_theta=t.rope_theta,
    )
    return config


def codec_config(sizes: c.CodecSizes) -> dict[str, Any]:
    """speech_tokenizer/config.json."""
    config, d, e = read_json("speech_tokenizer/config.json"), sizes, ENCODER
    config["encoder_valid_num_quantizers"] = d.codebooks
    config["decoder_config"].update(
        latent_dim=d.latent_dim,
        codebook_dim=d.quantizer_dim,
        codebook_size=d.codebook_size,
        semantic_codebook_size=d.codebook_size,
        decoder_dim=d.decoder_dim,
        hidden_size=d.hidden_size,
        intermediate_size=d.intermediate_size,
        head_dim=d.head_dim,
        num_attention_heads=d.num_heads,
        num_key_value_heads=d.num_heads,
        num_hidden_layers=d.num_layers,
        num_quantizers=d.codebooks,
        sliding_window=d.sliding_window,
        upsample_rates=list(d.upsample_rates),
        upsampling_ratios=list(d.upsampling_ratios),
        vector_quantization_hidden_dimension=d.quantizer_dim,
    )
    config["encoder_config"].update(
        codebook_dim=d.codebook_dim,
        vector_quantization_hidden_dimension=d.codebook_dim,
        codebook_size=d.codebook_size,
        num_quantizers=d.codebooks,
        head_dim=e.head_dim,
        hidden_size=e.hidden_size,
        intermediate_size=e.intermediate_size,
        num_attention_heads=e.num_heads,
        num_key_value_heads=e.num_heads,
        num_filters=e.filters,
        num_hidden_layers=e.num_layers,
        sliding_window=e.sliding_window,
        upsample_groups=e.hidden_size,
    )
    return config


def codec_state(decoder: dict[str, Tensor], encoder: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of speech_tokenizer/model.safetensors.

    Codebooks are stored as sums with a usage of one. Encoder and decoder have their own copies, as in released files.
    """
    state: dict[str, Tensor] = {}
    for name, value in decoder.items():
        if not name.startswith("rvq_"):
            state[f"decoder.{name}"] = value
    for side, books in (("rvq_first", 1), ("rvq_rest", c.CODEC.codebooks - 1)):
        base = f"decoder.quantizer.{side}"
        state[f"{base}.output_proj.weight"] = decoder[f"{side}.output_proj.weight"]
        # decoder_config: the quantiser works on half the width of its codebook_dim; unused when decoding
        state[f"{base}.input_proj.weight"] = torch.zeros(c.CODEC.quantizer_dim // 2, c.CODEC.quantizer_dim, 1)
        for i in range(books):
            vectors = decoder[f"{side}.codebooks"][i]
            state[f"{base}.vq.layers.{i}._codebook.embedding_sum"] = vectors
            state[f"{base}.vq.layers.{i}._codebook.cluster_usage"] = torch.ones(len(vectors))
            mimi = "semantic" if side == "rvq_first" else "acoustic"
            book = f"encoder.quantizer.{mimi}_residual_vector_quantizer.layers.{i}.codebook"
            state[f"{book}.embed_sum"] = vectors.clone()
            state[f"{book}.cluster_usage"] = torch.ones(len(vectors))
            state[f"{book}.initialized"] = torch.ones(1)
    state.update({f"encoder.{name}": value for name, value in encoder.items()})
    return {name: value.to(DTYPE).contiguous() for name, value in state.items()}


def export(run: Path, out: Path) -> None:
    codec_dir = out / "speech_tokenizer"
    codec_dir.mkdir(parents=True, exist_ok=True)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(run / "tokenizer" / name, out / name)
    for name in (
        "tokenizer_config.json",
        "preprocessor_config.json",
        "speech_tokenizer/configuration.json",
        "speech_tokenizer/preprocessor_config.json",
    ):
        shutil.copy(LAYOUT_DIR / name, out / name)
    tokenizer = TextTokenizer(run / "tokenizer")
    added = read_json("tokenizer_config.json")
    tokens = list(added["added_tokens_decoder"].values())
    added["added_tokens_decoder"] = {str(tokenizer.special(i)): token for i, token in enumerate(tokens)}
    write_json(out / "tokenizer_config.json", added)
    write_json(out / "config.json", main_config(tokenizer))
    write_json(out / "generation_config.json", GENERATION)
    decoder = torch.load(run / "decoder.pt", map_location="cpu")
    write_json(codec_dir / "config.json", codec_config(sizes_of(decoder)))
    talker = torch.load(run / "talker.pt", map_location="cpu")
    save_file(
        {f"talker.{name}": value.to(DTYPE).contiguous() for name, value in talker.items()},
        out / "model.safetensors",
        METADATA,
    )
    encoder_file = run / "encoder.pt"
    torch.manual_seed(0)
    encoder = MimiEncoder(ENCODER).state_dict()  # untrained if the run has not trained one
    if encoder_file.exists():
        encoder = torch.load(encoder_file, map_location="cpu")
    save_file(codec_state(decoder, encoder), codec_dir / "model.safetensors")
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    print(f"{out}: {size / 1e6:.2f} MB")


def replace_decoder(decoder: dict[str, Tensor], checkpoint: Path) -> None:
    """Replaces the decoder of a finished checkpoint by another one for the same codes.

    The audio encoder becomes a new, untrained one in the sizes of this recipe. Nothing else changes.
    """
    folder = checkpoint / "speech_tokenizer"
    stored = load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    state = codec_state(decoder, MimiEncoder(ENCODER).state_dict())
    books = [name for name in state if name.endswith(("embedding_sum", "cluster_usage"))]
    if not all(torch.equal(state[name], stored[name]) for name in books):
        raise ValueError(f"the decoder speaks other codes than {checkpoint}")
    save_file(state, folder / "model.safetensors")
    write_json(folder / "config.json", codec_config(sizes_of(decoder)))


def move_apart(speaker: str, other: str, share: float, checkpoint: Path) -> None:
    """Moves a speaker's embedding away from another's by a share of their distance. Nothing else changes."""
    speakers = json.loads((checkpoint / "config.json").read_text())["talker_config"]["spk_id"]
    file = checkpoint / "model.safetensors"
    state = load_file(file)
    table = state["talker.model.codec_embedding.weight"]
    moved, still = table[speakers[speaker]].float(), table[speakers[other]].float()
    table[speakers[speaker]] = (moved + share * (moved - still)).to(table.dtype)
    save_file(state, file, METADATA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path)
    source.add_argument("--decoder", type=Path)
    source.add_argument("--apart", nargs=3, metavar=("SPEAKER", "OTHER", "SHARE"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.decoder:
        replace_decoder(torch.load(args.decoder, map_location="cpu"), args.out)
    elif args.apart:
        move_apart(args.apart[0], args.apart[1], float(args.apart[2]), args.out)
    else:
        export(args.run, args.out)


if __name__ == "__main__":
    main()
