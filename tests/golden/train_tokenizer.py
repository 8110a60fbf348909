"""Train the small text tokenizer of the tiny test checkpoints and store its three files.

    python tests/golden/train_tokenizer.py

It is a byte-level BPE with the Qwen2 rules, 560 entries plus the 33 added tokens of Qwen3-TTS. Run it in the
environment of make_golden.py. Another result changes every other golden file, so it was run once.
"""

# ruff: noqa: RUF001 - the texts are meant to hold such characters

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

FOLDER = Path(__file__).parents[2] / "bench/vivavoce_bench/cards/tokenizer"
VOCABULARY = 560
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = [
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
PLAIN = [
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
AUDIO = [
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
]
# (text, weight): the weight decides which merges are learnt first.
CORPUS = (
    ("assistant\n", 400),
    ("user\n", 100),
    ("Hello", 60),
    (" iPhone McDonald", 40),
    ("it's don't we're I've I'm you'll he'd", 40),
    ("the quick brown fox jumps over the lazy dog and then speaks with a calm clear voice to everyone", 30),
    ("The Quick Brown Fox Jumps Over The Lazy Dog. Hello, world! What is this? Yes, that is it.", 30),
    ("Please say this slowly and quietly, as if you were telling a secret to an old friend.", 30),
    ("Numbers such as 2024 are split into digits; warm young female narrator, excited, whispering.", 20),
    ("你好，今天天气很好。我们在一起说话。", 30),
    ("こんにちは 안녕하세요 Привет मानक naïve café", 20),
    ("\n\n", 20),
    ("    ", 20),
    ("...", 20),
)


def train() -> tuple[dict[str, int], list[tuple[str, str]]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator([text for text, weight in CORPUS for _ in range(weight)], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    return vocabulary, [(left, right) for left, right in model["merges"]]


def tokenizer_config(first_added: int) -> dict[str, Any]:
    def entry(text: str) -> dict[str, Any]:
        flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
        return {"content": text, **flags, "special": text not in PLAIN}

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
        "added_tokens_decoder": {
            str(first_added + offset): entry(text) for offset, text in enumerate(SPECIAL + PLAIN + AUDIO)
        },
        # the released files leave <tts_text_eod> out of this list too
        "additional_special_tokens": SPECIAL[1:] + [text for text in AUDIO if text != "<tts_text_eod>"],
        "extra_special_tokens": media,
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


def main() -> None:
    vocabulary, merges = train()
    assert len(vocabulary) == VOCABULARY, len(vocabulary)
    # The reference cuts prompts by fixed token counts, so the role's name has to be one token.
    assert {"assistant", "user", "Hello", "ĠiPhone"} <= vocabulary.keys()
    FOLDER.mkdir(exist_ok=True)
    config = json.dumps(tokenizer_config(len(vocabulary)), indent=2, ensure_ascii=False)
    entries = json.dumps(vocabulary, ensure_ascii=False, separators=(",", ":"))
    (FOLDER / "vocab.json").write_text(entries, encoding="utf-8")
    lines = "".join(f"{left} {right}\n" for left, right in merges)
    (FOLDER / "merges.txt").write_text(lines, encoding="utf-8")
    (FOLDER / "tokenizer_config.json").write_text(config, encoding="utf-8")


if __name__ == "__main__":
    main()
