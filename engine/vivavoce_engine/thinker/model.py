"""The thinker in transformers, on the device: many conversations, each with its own cache, one token at a time.

A token of one conversation is a step of its own, so that an answer does not depend on the others. transformers keeps
the positions of one conversation in its module; here each has its own, which are given at every step.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    AutoConfig,
    DynamicCache,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)
from transformers.utils import logging as transformers_logging

from vivavoce_engine.checkpoint.json_file import JsonFile
from vivavoce_engine.device import resolve_dtype, use_device
from vivavoce_engine.errors import CheckpointError, NoRoom, Rejected
from vivavoce_engine.request import ThinkerMedia, ThinkerPrompt, draw_seed
from vivavoce_engine.thinker.interface import ChatMessage, Picture, Sound, ThinkOptions
from vivavoce_engine.thinker.text import Content, MediaTokens, ThinkerText
from vivavoce_engine.thinker.wire import ThinkerConfig
from vivavoce_engine.voices.media import SOUND_RATE

log = logging.getLogger(__name__)

GIGABYTE = 10**9
CHUNK_MELS, CHUNK_TOKENS, TOKEN_MELS = 100, 13, 8
"""A chunk of a second has 100 mel frames and 13 tokens; a shorter one has a token for each 8 mel frames it begins."""
MIN_TEMPERATURE = 0.01
"""Below it the likeliest token is taken. Logits divided by less could overflow."""
MERGE = 2
"""Rows and columns of patches that become one token."""


class ThinkerModel:
    """A loaded thinker."""

    def __init__(self, path: Path, config: ThinkerConfig) -> None:
        """Loads the thinker's part of a checkpoint. Raises CheckpointError, also if the device has no room for it."""
        # Its report would name each tensor of the talker as unexpected.
        transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        first = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(first if config.device == "auto" else config.device)
        use_device(self.device)
        dtype = resolve_dtype(config.dtype, self.device)
        _check_room(path, self.device, dtype)
        whole = AutoConfig.from_pretrained(path)
        try:
            model: Any = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(
                path, config=whole.thinker_config, dtype=dtype, local_files_only=True
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{path}: transformers cannot load the thinker: {error}") from error
        self._model = model.to(self.device).eval()
        self._accepted_layer = int(whole.talker_config.accept_hidden_layer)
        self._path = path
        self.text = ThinkerText(path)
        self.max_context = min(config.max_context, int(whole.thinker_config.text_config.max_position_embeddings))

    def prompt(self, messages: Sequence[ChatMessage]) -> "ReadPrompt":
        """A conversation as the model's inputs. Raises Rejected if it is too long."""
        inputs, turns, pictures = self._inputs(messages)
        ids = self.text.prompt(turns)
        if len(ids) >= self.max_context:
            raise Rejected("messages", f"the conversation has {len(ids)} tokens; the most is {self.max_context - 1}")
        return ReadPrompt(ids, inputs, pictures)

    @torch.inference_mode()
    def begin(self, read: "ReadPrompt", options: ThinkOptions) -> tuple["Conversation", ThinkerPrompt]:
        """Runs the model over a conversation."""
        cache = DynamicCache(config=self._model.config.text_config)
        tokens = torch.tensor([read.ids], device=self.device)
        out = self._model(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            past_key_values=cache,
            use_cache=True,
            output_hidden_states=read.has_media,
            **read.inputs,
        )
        media = None
        if read.has_media:
            media = self._media(read.ids, out.hidden_states[self._accepted_layer][0], read.pictures)
        following = len(read.ids) + int(self._model.rope_deltas[0, 0])
        limit = min(options.max_tokens, self.max_context - len(read.ids))
        conversation = Conversation(cache, following, limit, options, out.logits[0, -1])
        return conversation, ThinkerPrompt(tuple(read.ids), media)

    @torch.inference_mode()
    def go_on(self, conversation: "Conversation", token: int) -> None:
        """Reads a token of the answer."""
        at = torch.full((3, 1, 1), conversation.position, device=self.device)
        tokens = torch.tensor([[token]], device=self.device)
        out = self._model(input_ids=tokens, position_ids=at, past_key_values=conversation.cache, use_cache=True)
        conversation.position += 1
        conversation.logits = out.logits[0, -1]

    def _media(self, ids: Sequence[int], hidden: Tensor, pictures: Sequence[tuple[int, int]]) -> ThinkerMedia:
        control = self.text.control
        at = np.flatnonzero(np.isin(ids, (control.audio, control.image))).astype(np.int64)
        rows = hidden[torch.from_numpy(at).to(hidden.device)].float().cpu().numpy()
        return ThinkerMedia(at, rows, tuple(pictures))

    def _inputs(
        self, messages: Sequence[ChatMessage]
    ) -> tuple[dict[str, Tensor], list[tuple[str, Content]], list[tuple[int, int]]]:
        """The model's inputs for sounds and pictures, the turns with their places, and rows and columns of pictures."""
        parts = [part for message in messages for part in message.parts]
        sounds = [part.samples for part in parts if isinstance(part, Sound)]
        pictures = [part.pixels for part in parts if isinstance(part, Picture)]
        inputs: dict[str, Tensor] = {}
        sound_tokens: list[int] = []
        grids: list[tuple[int, int]] = []
        if sounds:
            features, mask = self._features(sounds)
            inputs |= {"input_features": features, "feature_attention_mask": mask}
            sound_tokens = [tokens_of_sound(int(mels)) for mels in mask.sum(-1).tolist()]
        if pictures:
            pixels, grid = self._pixels(pictures)
            inputs |= {"pixel_values": pixels, "image_grid_thw": grid}
            grids = [(rows // MERGE, columns // MERGE) for _, rows, columns in grid.tolist()]
        left, seen = iter(sound_tokens), iter(grids)
        turns: list[tuple[str, Content]] = []
        for message in messages:
            content: list[str | MediaTokens] = []
            for part in message.parts:
                match part:
                    case Sound():
                        content.append(MediaTokens("sound", next(left)))
                    case Picture():
                        rows, columns = next(seen)
                        content.append(MediaTokens("picture", rows * columns))
                    case _:
                        content.append(part)
            turns.append((message.role, content))
        return inputs, turns, grids

    def _features(self, sounds: Sequence[NDArray[np.float32]]) -> tuple[Tensor, Tensor]:
        """Log-mel features [sounds, mels, frames], and their mask."""
        extract: Any = WhisperFeatureExtractor.from_pretrained(self._path)
        out = extract(
            list(sounds),
            sampling_rate=SOUND_RATE,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return out["input_features"].to(self.device), out["attention_mask"].to(self.device)

    def _pixels(self, pictures: Sequence[NDArray[np.uint8]]) -> tuple[Tensor, Tensor]:
        """Patches [patches, 1536], and the grid [pictures, 3] of each picture: frames, rows, columns."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        out = Qwen2VLImageProcessorPil.from_pretrained(self._path)(images=list(pictures), return_tensors="pt")
        return out["pixel_values"].to(self.device), out["image_grid_thw"].to(self.device)


@dataclass(frozen=True, slots=True, eq=False)
class ReadPrompt:
    """A conversation as inputs: its ids, those of its sounds and pictures, and rows and columns of its pictures."""

    ids: list[int]
    inputs: dict[str, Tensor]
    pictures: list[tuple[int, int]]

    @property
    def has_media(self) -> bool:
        return bool(self.inputs)


class Conversation:
    """An answer that is being written."""

    def __init__(self, cache: DynamicCache, position: int, limit: int, options: ThinkOptions, logits: Tensor) -> None:
        """`limit` is the largest number of tokens, without the one that ends it."""
        self.cache = cache
        self.position = position
        self.left = limit
        """Tokens that may still be written."""
        self.written: int | None = None
        """The last token that was drawn, which the model has not read yet."""
        self.logits = logits
        self._options = options
        self._generator = torch.Generator()
        self._generator.manual_seed(draw_seed() if options.seed is None else options.seed)

    def draw(self) -> int:
        """The next token of the answer, or the token that ends it."""
        temperature, top_p = self._options.temperature or 0.0, self._options.top_p
        if temperature < MIN_TEMPERATURE:
            return int(self.logits.argmax())
        odds = torch.softmax(self.logits.float().cpu() / temperature, -1)
        if top_p is not None and top_p < 1:
            ranked, order = odds.sort(descending=True)
            ranked[ranked.cumsum(-1) - ranked >= top_p] = 0.0
            odds = torch.zeros_like(odds).scatter(0, order, ranked)
        return int(torch.multinomial(odds, 1, generator=self._generator))


def tokens_of_sound(mels: int) -> int:
    """Tokens of a sound with this many mel frames."""
    return CHUNK_TOKENS * (mels // CHUNK_MELS) + -(-(mels % CHUNK_MELS) // TOKEN_MELS)


def _check_room(path: Path, device: torch.device, dtype: torch.dtype) -> None:
    """Says how much memory the thinker takes. Raises NoRoom if a card has less."""
    weights = JsonFile(path / "model.safetensors.index.json").value("weight_map", dict)
    files = {name for tensor, name in weights.items() if tensor.startswith("thinker.")}
    if not files:
        raise CheckpointError(f"{path} has no thinker: none of its tensors is named thinker.*")
    taken = sum(_bytes_of_file(path / name) for name in files) * dtype.itemsize // 2
    log.info("the thinker takes about %.1f GB on %s", taken / GIGABYTE, device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if free < taken:
            raise NoRoom(f"the thinker takes {taken / GIGABYTE:.1f} GB, and {device} has {free / GIGABYTE:.1f} GB free")


def _bytes_of_file(file: Path) -> int:
    """Bytes of the thinker's tensors in a file of safetensors, whose header tells them."""
    try:
        with file.open("rb") as opened:
            header = opened.read(int.from_bytes(opened.read(8), "little"))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    tensors = JsonFile(file, content=json.loads(header))
    return sum(
        end - begin
        for name in json.loads(header)
        if name.startswith("thinker.")
        for begin, end in [tensors.section(name).value("data_offsets", list)]
    )
