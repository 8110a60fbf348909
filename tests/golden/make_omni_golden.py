"""Write omni_tiny.*: what the reference, transformers 5.17.0, makes of the tiny Qwen3-Omni checkpoint in float32.

    python tests/golden/make_omni_golden.py --out tests/golden/omni_tiny

The project's own environment is enough (torch 2.13.0, transformers 5.17.0, Pillow). The reference is unchanged but for
one value that its talker looks for in vain; README.md beside this file says what is stored.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer, LogitsProcessor, LogitsProcessorList, WhisperFeatureExtractor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.support.omni_checkpoints import folder_digest, omni_checkpoint  # noqa: E402

SYSTEM, QUESTION = "reply with one word", "What is the capital of china?"
MAX_FRAMES, MAX_TOKENS = 40, 12
IMAGE_SIZE = (96, 64)
"""Height and width of pictures in pixels: multiples of 32, which are not resized."""
END_OF_SPEECH, CODEBOOK = 2150, 2048
CODEC_FRAMES, CHUNK, CONTEXT, LOOKAHEAD, SHOWN = 310, 300, 25, 555, 4000
Part = dict[str, Any]
Message = dict[str, str | list[Part]]


@dataclass(frozen=True)
class Case:
    """A request. `forced` are the tokens that the thinker has to say, `limit` is their most, `sample` a seed."""

    messages: list[Message]
    speaker: str
    forced: list[str] = field(default_factory=list)
    limit: int = MAX_TOKENS
    sample: int | None = None

    def notes(self) -> dict[str, Any]:
        """The fields that are not left at their defaults."""
        told: dict[str, Any] = {"messages": self.messages, "speaker": self.speaker}
        if self.forced:
            told["forced"] = self.forced
        if self.limit != MAX_TOKENS:
            told["limit"] = self.limit
        return told if self.sample is None else {**told, "sample": self.sample}


def user(*content: Part) -> list[Message]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": list(content)}]


def cases() -> dict[str, Case]:
    """The requests, of which all but `sampled` are greedy."""
    text: Part = {"type": "text", "text": QUESTION}
    shown: list[Part] = [
        {"type": "text", "text": "what is in this picture "},
        {"type": "image", "image": 3},
        {"type": "text", "text": " and this sound "},
        {"type": "audio", "audio": 4},
        text,
    ]
    chat: list[Message] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "who speaks?"},
        {"role": "assistant", "content": "this"},
        {"role": "user", "content": shown},
    ]
    return {
        "text": Case(user(text), "Chelsie"),
        "beijing": Case(user(text), "Ethan", ["Be", "ijing", "<|im_end|>"]),
        "one_token": Case(user(text), "Ethan", ["Be", "<|im_end|>"]),
        "cut": Case(user(text), "Ethan", ["Be", "ijing", "ijing"], limit=3),
        "audio": Case(user({"type": "audio", "audio": 1}, text), "Aiden"),
        "image": Case(user({"type": "image", "image": 2}, text), "Aiden"),
        "chat": Case(chat, "Chelsie"),
        "sampled": Case(user(text), "Ethan", sample=1234),
    }


class Forced(LogitsProcessor):
    """Makes the thinker say given tokens, those of its own for each row."""

    def __init__(self, prompt_tokens: int, rows: list[list[int]]) -> None:
        self._prompt_tokens, self._rows = prompt_tokens, rows

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        at = input_ids.shape[1] - self._prompt_tokens
        out = torch.full_like(scores, -torch.inf)
        for row, ids in enumerate(self._rows):
            out[row, ids[min(at, len(ids) - 1)]] = 0.0
        return out


class Inputs:
    """Messages → the model's inputs, by those parts of its processor that need no torchvision."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._template = json.loads((folder / "chat_template.json").read_text())["chat_template"]
        self._extractor: Any = WhisperFeatureExtractor.from_pretrained(folder)
        self._pictures: Any = Qwen2VLImageProcessorPil.from_pretrained(folder)

    def __call__(self, messages: list[Message]) -> dict[str, Tensor]:
        text: str = self.tokenizer.apply_chat_template(
            messages, chat_template=self._template, add_generation_prompt=True, tokenize=False
        )
        parts = [part for message in messages if not isinstance(message["content"], str) for part in message["content"]]
        inputs: dict[str, Tensor] = {}
        # A mark of one character stands for each token of a medium until all of them are in place.
        if sounds := [sound(part["audio"]) for part in parts if part["type"] == "audio"]:
            out = self._extractor(
                sounds,
                sampling_rate=16000,
                padding=True,
                truncation=False,
                return_attention_mask=True,
                return_tensors="pt",
            )
            inputs["input_features"], inputs["feature_attention_mask"] = out["input_features"], out["attention_mask"]
            for mels in out["attention_mask"].sum(-1).tolist():
                text = text.replace("<|audio_pad|>", "\0" * audio_tokens(mels), 1)
        if pictures := [picture(part["image"]) for part in parts if part["type"] == "image"]:
            out = self._pictures(images=pictures, return_tensors="pt")
            inputs["pixel_values"], inputs["image_grid_thw"] = out["pixel_values"], out["image_grid_thw"]
            for grid in out["image_grid_thw"]:
                text = text.replace("<|image_pad|>", "\1" * (int(grid.prod()) // 4), 1)
        text = text.replace("\0", "<|audio_pad|>").replace("\1", "<|image_pad|>")
        inputs["input_ids"] = torch.tensor([self.tokenizer.encode(text, add_special_tokens=False)])
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        return inputs


def audio_tokens(mels: int) -> int:
    """Tokens of a sound: 13 for 100 mel frames, and one for each eight of the rest, rounded up."""
    return 13 * (mels // 100) + -(-(mels % 100) // 8)


def sound(seed: int) -> NDArray[np.float32]:
    """A rising tone of 1.27 s at 16 kHz: 127 mel frames, 17 tokens."""
    t = np.arange(20320) / 16000
    return (0.3 * np.sin(2 * np.pi * (180 + 40 * seed + 60 * t) * t)).astype(np.float32)


def picture(seed: int) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (*IMAGE_SIZE, 3), dtype=np.uint8)
    return Image.fromarray(values)


class Recorder:
    """Wraps the calls between the parts of the reference, and tells what went through them."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._seen: dict[str, tuple[Any, dict[str, Any], Any]] = {}
        self._read: list[tuple[Tensor, Tensor]] = []
        self._wrap(model.thinker, "generate", "thinker")
        self._wrap(model.talker, "generate", "talker")
        self._wrap(model.code2wav, "chunked_decode", "code2wav")
        model.talker.model.register_forward_pre_hook(self._step, with_kwargs=True)

    def _wrap(self, owner: Any, name: str, label: str) -> None:
        call = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            out = call(*args, **kwargs)
            self._seen[label] = (args, kwargs, out)
            return out

        setattr(owner, name, wrapped)

    def _step(self, _module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        self._read.append((kwargs["inputs_embeds"].clone(), kwargs["position_ids"].clone()))

    def run(self, inputs: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
        """Runs one request, or a batch → tensors with a first axis of rows."""
        self._seen, self._read = {}, []
        _, wave = self.model.generate(**inputs, thinker_output_logits=True, **options)
        (_, _, thought), (_, given, spoken) = self._seen["thinker"], self._seen["talker"]
        (codes, *_), _, _ = self._seen["code2wav"]
        prompt = inputs["input_ids"].shape[1]
        later = self._read[1:]
        out = {
            "input_ids": inputs["input_ids"],
            "thinker_ids": thought.sequences[:, prompt:],
            "thinker_logits": torch.stack(thought.logits, dim=1),
            "thinker_embed": torch.cat([step[0] for step in thought.hidden_states], dim=1),
            "thinker_hidden": thought.hidden_states[0][self.model.config.talker_config.accept_hidden_layer],
            "prefill": given["inputs_embeds"],
            "prefill_ids": given["talker_input_ids"],
            "trailing": given["trailing_text_hidden"],
            "tts_pad": given["tts_pad_embed"][:, 0],
            "positions": self._read[0][1].transpose(0, 1),
            "steps": torch.cat([x for x, _ in later], dim=1),
            "step_positions": torch.cat([places for _, places in later], dim=2).permute(1, 2, 0),
            "hidden": torch.stack([step[0][-1][:, -1] for step in spoken.hidden_states], dim=1),
            "code_0": spoken.sequences,
            "codes": codes.to(torch.int16),
        }
        if not isinstance(wave, list):
            out["wave"] = wave[:, 0]
        if "input_features" in inputs:
            out["features"] = inputs["input_features"]
        if "pixel_values" in inputs:
            out |= {"pixels": inputs["pixel_values"][None], "image_grid": inputs["image_grid_thw"][None]}
        return {name: value.float() if value.is_floating_point() else value for name, value in out.items()}


class Maker:
    """Collects tensors and notes of all cases."""

    def __init__(self, folder: Path) -> None:
        made: Any = transformers.Qwen3OmniMoeForConditionalGeneration
        self.model = made.from_pretrained(folder, dtype=torch.float32).eval()
        # The talker looks for the sound encoder's n_window in its own configuration, where no checkpoint has it, and
        # fails whenever a picture comes with a sound.
        self.model.config.talker_config.audio_config = self.model.config.thinker_config.audio_config
        self._build, self._recorder = Inputs(folder), Recorder(self.model)
        self._vocab: dict[str, int] = self._build.tokenizer.get_vocab()
        self.tensors: dict[str, Tensor] = {}
        self.notes: dict[str, dict[str, Any]] = {}

    def _forced(self, prompt_tokens: int, rows: list[list[str]]) -> LogitsProcessorList:
        ids = [[self._vocab[token] for token in row] for row in rows]
        return LogitsProcessorList([Forced(prompt_tokens, ids)])

    def add(self, name: str, case: Case) -> None:
        inputs = self._build(case.messages)
        options: dict[str, Any] = {"thinker_max_new_tokens": case.limit, "speaker": case.speaker}
        if case.forced:
            options["thinker_logits_processor"] = self._forced(inputs["input_ids"].shape[1], [case.forced])
        if case.sample is None:
            options["talker_do_sample"] = False
        else:
            torch.manual_seed(case.sample)
        end = self.model.config.im_end_token_id
        out = self._recorder.run(inputs, thinker_eos_token_id=end, talker_max_new_tokens=MAX_FRAMES + 1, **options)
        self.tensors |= {f"{name}.{key}": value[0].contiguous().clone() for key, value in out.items()}
        self.notes[name] = {
            **case.notes(),
            "thinker_tokens": self._build.tokenizer.convert_ids_to_tokens(out["thinker_ids"][0].tolist()),
            "frames": out["codes"].shape[-1],
            "ended": int(out["code_0"][0, -1]) == END_OF_SPEECH,
            "prefill": out["prefill"].shape[1],
            "trailing": out["trailing"].shape[1],
            "samples": out["wave"].shape[-1],
        }

    def add_two_rows(self) -> None:
        """The case `beijing` beside a longer answer in one batch, of which only the talker's inputs are kept."""
        inputs = self._build(cases()["beijing"].messages)
        longer = ["Be", "ijing", "ijing", "Be", "ijing", "<|im_end|>"]
        rows = [["Be", "ijing", "<|im_end|>"], longer]
        out = self._recorder.run(
            {key: value.repeat(2, 1) for key, value in inputs.items()},
            speaker="Ethan",
            thinker_eos_token_id=self.model.config.im_end_token_id,
            thinker_max_new_tokens=MAX_TOKENS,
            thinker_pad_token_id=self._vocab["<|endoftext|>"],
            thinker_logits_processor=self._forced(inputs["input_ids"].shape[1], rows),
            talker_max_new_tokens=MAX_FRAMES + 1,
            talker_do_sample=False,
        )
        self.notes["two_rows"] = {"rows": rows, "trailing": out["trailing"].shape[1]}
        kept = ("prefill", "trailing", "tts_pad", "code_0")
        self.tensors |= {f"two_rows.{key}": out[key].contiguous().clone() for key in kept}

    def add_codec(self) -> None:
        """Code2Wav alone, on more frames than one of the reference's chunks has."""
        codes = torch.randint(0, CODEBOOK, (1, 16, CODEC_FRAMES), generator=torch.Generator().manual_seed(7))
        with torch.no_grad():
            chunked = self.model.code2wav.chunked_decode(codes, chunk_size=CHUNK, left_context_size=CONTEXT)[0, 0]
            whole = self.model.code2wav(codes)[0, 0]
        seam = CHUNK * 1920 - LOOKAHEAD
        self.notes["codec"] = {
            "frames": CODEC_FRAMES,
            "samples_chunked": len(chunked),
            "samples_whole": len(whole),
            "seam": seam,
        }
        parts = {
            "start": chunked[:SHOWN],
            "before_seam": chunked[seam - SHOWN : seam],
            "after_seam": chunked[seam : seam + SHOWN],
            "end": chunked[-SHOWN:],
            "whole_after_seam": whole[seam : seam + 2 * SHOWN],
            "whole_end": whole[-SHOWN:],
        }
        self.tensors["codec.codes"] = codes[0].to(torch.int16)
        self.tensors |= {f"codec.{name}": part.clone() for name, part in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "omni_tiny", help="path without suffix")
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)  # the order of sums does not depend on the machine's cores
    with tempfile.TemporaryDirectory() as place:
        folder = omni_checkpoint(Path(place))
        maker = Maker(folder)
        for name, case in cases().items():
            maker.add(name, case)
        maker.add_two_rows()
        maker.add_codec()
        versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        about = {"checkpoint_sha256": folder_digest(folder), **versions}
    save_file(maker.tensors, args.out.with_suffix(".safetensors"), metadata={**about, "format": "pt"})
    told = {**about, "max_frames": MAX_FRAMES, "cases": maker.notes}
    args.out.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
