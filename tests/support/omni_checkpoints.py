"""A small random Qwen3-Omni checkpoint in the released layout, the same bytes on every machine with one PyTorch.

    omni_checkpoint(folder)

config.json is in the released key style. generation_config.json and preprocessor_config.json are the released bytes.
The tensors are bfloat16, one an expert, in shards with an index. Codec ids, the sizes of codebooks, the rates of
upsampling and the window are the released ones; widths and depths are small. Text ids are small too, and are those of
config.json: a byte-level vocabulary is trained on the spot, in which 'Be' and 'ijing' are tokens. No tensor is trivial.
tests/golden/omni_tiny.* were made from this checkpoint, and hold its digest.
"""

import copy
import hashlib
import json
import math
import re
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

SPECIAL_TRUE = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
SPECIAL_FALSE = [
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
AUDIO_TRUE = [
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
]
ADDED = SPECIAL_TRUE + SPECIAL_FALSE + AUDIO_TRUE


def tokenizer_config(first_added_id: int) -> dict[str, Any]:
    def entry(text: str, special: bool) -> dict[str, Any]:
        return {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": special,
        }

    decoder = {str(first_added_id + i): entry(text, text not in SPECIAL_FALSE) for i, text in enumerate(ADDED)}
    media = {
        "image_token": "<|image_pad|>",
        "audio_token": "<|audio_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        # the released file really leaves <tts_text_eod> out of this list
        "additional_special_tokens": SPECIAL_TRUE[1:] + [t for t in AUDIO_TRUE if t != "<tts_text_eod>"],
        "extra_special_tokens": dict(media),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
        **media,
    }


GENERATION_CONFIG = {  # the released bytes: sha256 7fa40989...
    "talker_max_new_tokens": 4096,
    "talker_repetition_penalty": 1.05,
    "talker_temperature": 0.9,
    "talker_top_k": 50,
    "talker_top_p": 1.0,
}
PREPROCESSOR_CONFIG = {  # the released bytes: sha256 b10e27fd...
    "dither": 0.0,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "hop_length": 160,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "max_pixels": 12845056,
    "merge_size": 2,
    "min_pixels": 3136,
    "n_fft": 400,
    "n_samples": 4800000,
    "nb_max_frames": 30000,
    "padding_side": "right",
    "padding_value": 0.0,
    "patch_size": 16,
    "processor_class": "Qwen3OmniMoeProcessor",
    "return_attention_mask": True,
    "sampling_rate": 16000,
    "temporal_patch_size": 2,
}
RELEASED_SHA256 = {
    "generation_config.json": "7fa40989be8e43c078907810c41c25d33747523afce3d5a34d5850f930c886cb",
    "preprocessor_config.json": "b10e27fd4542cf89ec7145942b87f3e65408d4e9f9d031a29acdd293c15fb3fc",
}
# Our own template with the released one's behaviour for plain chats (no tools): ChatML, media in place, no default
# system prompt, and an empty think block only if enable_thinking is false.
CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' or 'video' in part %}
{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif part.type == 'audio' or 'audio' in part or 'audio_url' in part %}
{{- '<|audio_start|><|audio_pad|><|audio_end|>' }}
{%- elif 'text' in part %}
{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""

THINKER_HIDDEN, TALKER_HIDDEN = 64, 32
SHARDS = 2


def small_vocab(size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A byte-level BPE with the roles, 'Be' and 'ijing' as single tokens."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words = "what is the capital of china? reply with exactly one word. who speaks in this picture and this sound"
    corpus = ["assistant\n", "system\n", "user\n", "ijing", "Be"] * 300 + [words, words.title()] * 20
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    bpe.train_from_iterator(corpus, trainer)
    model = json.loads(bpe.to_str())["model"]
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    merges = [(first, second) for first, second in pairs]
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    for word in ("assistant", "system", "user", "Be", "ijing"):
        assert bpe.encode(word).ids == [vocab[word]], word
    assert bpe.encode("Beijing").ids == [vocab["Be"], vocab["ijing"]]
    return vocab, merges


def config_json(vocab: dict[str, int], text_only: bool) -> dict[str, Any]:
    """config.json in the released key style (rope_scaling and rope_theta, num_experts in the talker too)."""
    first = len(vocab)
    token = {text: first + i for i, text in enumerate(ADDED)}
    media = {
        "audio_token_id": token["<|audio_pad|>"],
        "image_token_id": token["<|image_pad|>"],
        "video_token_id": token["<|video_pad|>"],
        "audio_start_token_id": token["<|audio_start|>"],
        "audio_end_token_id": token["<|audio_end|>"],
        "vision_start_token_id": token["<|vision_start|>"],
    }
    text_vocab = -(-(first + len(ADDED)) // 64) * 64
    mrope = {"interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default", "type": "default"}
    attention = {
        "attention_bias": False,
        "attention_dropout": 0,
        "head_dim": 16,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
    }
    moe = {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "num_experts": 8,
        "router_aux_loss_coef": 0.001,
    }
    thinker_text = {
        **attention,
        **moe,
        "hidden_size": THINKER_HIDDEN,
        "intermediate_size": 32,
        "max_position_embeddings": 65536,
        "model_type": "qwen3_omni_moe_text",
        "moe_intermediate_size": 32,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 6,
        "output_router_logits": False,
        "rope_scaling": {**mrope, "mrope_interleaved": True},
        "shared_expert_intermediate_size": 0,
        "tie_word_embeddings": False,
        "use_qk_norm": True,
        "vocab_size": text_vocab,
    }
    thinker = {
        "audio_config": {
            "activation_dropout": 0,
            "activation_function": "gelu",
            "attention_dropout": 0,
            "conv_chunksize": 500,
            "d_model": 32,
            "downsample_hidden_size": 8,
            "dropout": 0,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 48,
            "encoder_layers": 2,
            "initializer_range": 0.02,
            "max_source_positions": 1500,
            "model_type": "qwen3_omni_moe_audio_encoder",
            "n_window": 50,
            "n_window_infer": 800,
            "num_hidden_layers": 2,
            "num_mel_bins": 128,
            "output_dim": THINKER_HIDDEN,
            "scale_embedding": False,
        },
        **media,
        "dtype": "bfloat16",
        "initializer_range": 0.02,
        "model_type": "qwen3_omni_moe_thinker",
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
        "text_config": thinker_text,
        "user_token_id": vocab["user"],
        "vision_end_token_id": token["<|vision_end|>"],
        "vision_config": {
            "apply_vit_abs_pos_embed": True,
            "deepstack_visual_indexes": [0, 1, 2],
            "depth": 4,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 32,
            "image_size": 768,
            "in_channels": 3,
            "in_chans": 3,
            "initializer_range": 0.02,
            "intermediate_size": 40,
            "model_type": "qwen3_omni_moe_vision_encoder",
            "num_heads": 2,
            "num_position_embeddings": 64,
            "out_hidden_size": THINKER_HIDDEN,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "spatial_patch_size": 16,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
        },
    }
    talker = {
        "text_config": {
            **attention,
            **moe,
            "hidden_size": TALKER_HIDDEN,
            "intermediate_size": 56,
            "max_position_embeddings": 65536,
            "moe_intermediate_size": 16,
            "num_experts_per_tok": 3,
            "num_hidden_layers": 3,
            "rope_scaling": mrope,
            "shared_expert_intermediate_size": 24,
            "vocab_size": 3072,
        },
        "accept_hidden_layer": 4,
        **media,
        "code_predictor_config": {
            **attention,
            "hidden_size": TALKER_HIDDEN,
            "intermediate_size": 48,
            "layer_types": ["full_attention"] * 2,
            "max_position_embeddings": 32768,
            "max_window_layers": 28,
            "num_hidden_layers": 2,
            "num_code_groups": 16,
            "model_type": "qwen3_omni_moe_talker_code_predictor",
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "vocab_size": 2048,
        },
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_nothink_id": 2155,
        "codec_pad_id": 2148,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "model_type": "qwen3_omni_moe_talker",
        "num_code_groups": 16,
        "output_router_logits": False,
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
        "spatial_merge_size": 2,
        "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        "thinker_hidden_size": THINKER_HIDDEN,
    }
    code2wav = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "codebook_dim": 512,
        "codebook_size": 2048,
        "decoder_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 48,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "model_type": "",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_quantizers": 16,
        "num_semantic_quantizers": 1,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "semantic_codebook_size": 4096,
        "sliding_window": 72,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": 512,
    }
    top = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "assistant_token_id": vocab["assistant"],
        "dtype": "bfloat16",
        "enable_audio_output": not text_only,
        "im_end_token_id": token["<|im_end|>"],
        "im_start_token_id": token["<|im_start|>"],
        "model_type": "qwen3_omni_moe",
        "system_token_id": vocab["system"],
        "thinker_config": thinker,
        "transformers_version": "4.57.0.dev0",
        "tts_bos_token_id": token["<tts_text_bos>"],
        "tts_eos_token_id": token["<tts_text_eod>"],
        "tts_pad_token_id": token["<tts_pad>"],
        "user_token_id": vocab["user"],
    }
    return top if text_only else {**top, "talker_config": talker, "code2wav_config": code2wav}


class Filler:
    """A tensor's value from its name, shape and the seed alone."""

    def __init__(self, seed: int, codec_eos: int, eos_boost: float, text_end: int, text_end_boost: float) -> None:
        self.seed = seed
        self.boost = {
            "talker.codec_head.weight": (codec_eos, eos_boost),
            "thinker.lm_head.weight": (text_end, text_end_boost),
        }

    def normal(self, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> Tensor:
        seed = (zlib.crc32(name.encode()) ^ (self.seed * 2654435761)) & 0x7FFFFFFF
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * std + mean

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        parts = name.split(".")
        last = parts[-1]
        if last in ("alpha", "beta"):
            return self.normal(name, shape, 0.2)
        if last in ("scale", "gamma"):
            return self.normal(name, shape, 0.1, 0.3)
        if last == "bias":
            return self.normal(name, shape, 0.05)
        if last == "weight" and len(shape) == 1:
            return self.normal(name, shape, 0.15, 1.0).clamp(min=0.3)
        if name == "thinker.model.embed_tokens.weight" or "pos_embed" in parts:
            return self.normal(name, shape, 1.0)
        if "codec_embedding" in parts:
            return self.normal(name, shape, 0.25)
        if "code_embedding" in parts:
            return self.normal(name, shape, 2.0)
        if "codec_head" in parts or "lm_head" in parts:
            out = self.normal(name, shape, 2.5 / math.sqrt(shape[1]))
            if name in self.boost:
                row, factor = self.boost[name]
                out[row] *= factor
            return out
        if parts[-2] == "gate":  # routers: decided, not close to ties
            return self.normal(name, shape, 2.0 / math.sqrt(shape[1]))
        fan_in, gain = math.prod(shape[1:]), 1.0
        if name.startswith("code2wav."):
            if re.match(r"code2wav\.upsample\.\d\.0\.", name):
                fan_in = shape[0]
            elif re.match(r"code2wav\.decoder\.\d\.block\.1\.", name):
                fan_in = shape[0] * 2
            if re.search(r"block\.[234]\.conv2\.", name):
                gain = 0.4
        if parts[-2] in ("o_proj", "down_proj", "out_proj", "fc2"):
            gain = 0.6
        return self.normal(name, shape, gain / math.sqrt(fan_in))


def split_experts(state: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """transformers 5 keeps experts packed; the files have one tensor an expert. Names with shapes, as released."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in state.items():
        match = re.fullmatch(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)", name)
        if not match:
            shapes[name] = tuple(tensor.shape)
            continue
        prefix, kind = match.groups()
        for expert in range(tensor.shape[0]):
            if kind == "down_proj":
                shapes[f"{prefix}.{expert}.down_proj.weight"] = tuple(tensor.shape[1:])
            else:
                for half in ("gate_proj", "up_proj"):
                    shapes[f"{prefix}.{expert}.{half}.weight"] = (tensor.shape[1] // 2, tensor.shape[2])
    return shapes


def write_weights(out: Path, state: dict[str, Tensor]) -> None:
    """Shards in the released order of parts, with an index."""
    names = sorted(state, key=lambda name: (("thinker", "talker", "code2wav").index(name.split(".")[0]), name))
    total = sum(state[name].numel() * state[name].element_size() for name in names)
    weight_map: dict[str, str] = {}
    shard, size = 1, 0
    shards: dict[int, dict[str, Tensor]] = {1: {}}
    for name in names:
        if shard < SHARDS and size > total * shard / SHARDS:
            shard += 1
            shards[shard] = {}
        shards[shard][name] = state[name]
        size += state[name].numel() * state[name].element_size()
    for number, tensors in shards.items():
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(tensors, out / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def folder_digest(folder: Path) -> str:
    """One SHA-256 over the names and contents of all weights, so that golden files know their checkpoint."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("model-*.safetensors")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def omni_checkpoint(out: Path, seed: int = 0, text_only: bool = False) -> Path:
    """Writes a checkpoint, without talker and Code2Wav if `text_only`, as the variants are that answer in text alone.

    The rows of the two ends are enlarged, so that answers and speech end by themselves. Returns the folder.
    """
    out.mkdir(parents=True, exist_ok=True)
    vocab, merges = small_vocab(384)
    (out / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    (out / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(len(vocab)), indent=2, ensure_ascii=False))
    (out / "chat_template.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}, indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps(GENERATION_CONFIG, indent=2))
    (out / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR_CONFIG, indent=2))
    for name, want in RELEASED_SHA256.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == want, name
    config = config_json(vocab, text_only)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    parsed = Qwen3OmniMoeConfig(**copy.deepcopy(config))
    with torch.device("meta"):
        meta = Qwen3OmniMoeForConditionalGeneration(parsed)
    fill = Filler(seed, 2150, 1.5, config["im_end_token_id"], 2.0)
    state = {name: fill(name, shape).to(torch.bfloat16) for name, shape in split_experts(meta.state_dict()).items()}
    if not text_only:
        set_level(parsed, state, 0.2, seed)
    write_weights(out, state)
    return out


def set_level(config: Any, state: dict[str, Tensor], level: float, seed: int) -> None:
    """Scales the last convolution so that random codes give a wave of this RMS, around zero."""
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

    code2wav: Any = Qwen3OmniMoeCode2Wav
    model = code2wav._from_config(config.code2wav_config, dtype=torch.float32)
    part = {name[len("code2wav.") :]: t.float() for name, t in state.items() if name.startswith("code2wav.")}
    model.load_state_dict(part, strict=True)
    seen: dict[str, Tensor] = {}
    model.decoder[-1].register_forward_hook(lambda module, args, output: seen.update(out=output))
    codes = torch.randint(0, 2048, (1, 16, 24), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.eval()(codes)
    wave, last = seen["out"], f"code2wav.decoder.{len(model.decoder) - 1}.conv."
    factor = level / wave.std()
    state[last + "bias"] = ((state[last + "bias"].float() - wave.mean()) * factor).to(torch.bfloat16)
    state[last + "weight"] = (state[last + "weight"].float() * factor).to(torch.bfloat16)
