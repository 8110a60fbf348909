"""Text and voice → the talker's prompt, as token ids. Torch-free: the runner turns ids into embeddings.

Every prefill position is a text id plus a codec id (either may be absent); every frame after that adds one trailing
text id, then tts_pad for ever. Layouts from the reference package (qwen-tts 0.1.1, core/models/modeling_qwen3_tts.py,
`generate`). The reference builds chat strings and slices their ids by fixed counts, so a text that begins with a
newline shifts its slices; here the text is tokenised on its own, where the role's newline cannot merge with it.
"""

from dataclasses import dataclass
from pathlib import Path

from vivavoce_engine.checkpoint import Checkpoint
from vivavoce_engine.errors import CheckpointError, Rejected
from vivavoce_engine.request import AUTO_LANGUAGE, SynthesisRequest

NO_ID = -1
"""Marks a prefill position without a text id or without a codec id."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The talker's input as ids.

    `text_ids` and `codec_ids` have one entry for each prefill position. `trailing_ids[k]` is the text id added to
    the input that follows frame k; after the last one comes tts_pad. `text_tokens` counts the spoken text alone.
    """

    text_ids: tuple[int, ...]
    codec_ids: tuple[int, ...]
    trailing_ids: tuple[int, ...]
    text_tokens: int

    def __post_init__(self) -> None:
        assert len(self.text_ids) == len(self.codec_ids)

    @property
    def prefill_tokens(self) -> int:
        return len(self.text_ids)


class Tokenizer:
    """The checkpoint's byte-level BPE, as transformers' Qwen2Tokenizer.

    Its pre-tokenizer is Qwen2's. The reference, loaded from a local folder with transformers 4.57.3, swaps in
    Mistral's, which splits some camel-case words ("iPhone") otherwise; loaded from the hub it does not.
    """

    def __init__(self, path: Path) -> None:
        from transformers import Qwen2Tokenizer  # it imports torch, which host-only users of this module don't need

        try:
            self._tokenizer = Qwen2Tokenizer.from_pretrained(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path}: the tokenizer files cannot be read: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: names of special tokens inside it are text as any other."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids


class TextFrontend:
    """Builds prompts for one checkpoint. Thread-safe: it holds nothing that changes."""

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        self._checkpoint = checkpoint
        self._tokenizer = tokenizer
        self._newline, *rest = tokenizer.encode("\n")
        assistant = tokenizer.encode("assistant")
        if rest or assistant != [checkpoint.assistant_token_id]:
            raise CheckpointError(f"{checkpoint.path}: vocab.json does not belong to config.json's assistant_token_id")
        self._speakers = {name.lower(): codec_id for name, codec_id in checkpoint.talker.spk_id.items()}

    @property
    def speakers(self) -> tuple[str, ...]:
        return tuple(self._speakers)

    @property
    def languages(self) -> tuple[str, ...]:
        """Names that a request may give; a dialect is reached through its speaker, as in the reference."""
        names = (name for name in self._checkpoint.talker.codec_language_id if "dialect" not in name)
        return (AUTO_LANGUAGE, *names)

    def prompt(self, request: SynthesisRequest) -> Prompt:
        """Raises Rejected, naming the request's field, if this checkpoint cannot speak it."""
        checkpoint, talker = self._checkpoint, self._checkpoint.talker
        text = self._tokenizer.encode(request.text)
        if not request.text.strip() or not text:
            raise Rejected("text", "the text is blank")
        pad, bos, eos = checkpoint.tts_pad_token_id, checkpoint.tts_bos_token_id, checkpoint.tts_eos_token_id
        instruct = self._instruct(request)
        role = [checkpoint.im_start_token_id, checkpoint.assistant_token_id, self._newline]
        head = [*self._language_head(request), *self._speaker(request), talker.codec_pad_id]
        positions = [(text_id, NO_ID) for text_id in [*instruct, *role]]
        positions += zip([pad] * (len(head) - 1) + [bos], head, strict=True)
        if request.streaming_text:
            positions.append((text[0], talker.codec_bos_id))
            trailing = [*text[1:], eos]
        else:
            positions += [(text_id, talker.codec_pad_id) for text_id in [*text, eos]]
            positions.append((pad, talker.codec_bos_id))
            trailing = []
        text_ids, codec_ids = zip(*positions, strict=True)
        return Prompt(text_ids, codec_ids, tuple(trailing), len(text))

    def _instruct(self, request: SynthesisRequest) -> list[int]:
        if not request.instructions.strip():
            if self._checkpoint.task == "voice_design":
                raise Rejected("instructions", "this model designs the voice from `instructions`, which are missing")
            return []
        if not self._checkpoint.takes_instructions:
            raise Rejected("instructions", "this model was not trained to follow instructions")
        start, end = self._checkpoint.im_start_token_id, self._checkpoint.im_end_token_id
        encode = self._tokenizer.encode
        return [start, *encode(f"user\n{request.instructions}"), end, self._newline]

    def _speaker(self, request: SynthesisRequest) -> list[int]:
        name = request.speaker.lower()
        if self._checkpoint.task == "voice_design":
            if name:
                raise Rejected("speaker", "this model has no preset speakers; describe the voice in `instructions`")
            return []
        if name not in self._speakers:
            raise Rejected("speaker", f"there is no speaker {request.speaker!r}; there are {', '.join(self._speakers)}")
        return [self._speakers[name]]

    def _language_head(self, request: SynthesisRequest) -> list[int]:
        talker = self._checkpoint.talker
        language = request.language.lower()
        if language not in self.languages:
            raise Rejected(
                "language", f"there is no language {request.language!r}; there are {', '.join(self.languages)}"
            )
        dialect = talker.spk_is_dialect.get(request.speaker.lower(), False)
        if dialect and language in ("chinese", AUTO_LANGUAGE):
            language = str(dialect)
        if language == AUTO_LANGUAGE:
            return [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id]
        language_id = talker.codec_language_id[language]
        return [talker.codec_think_id, talker.codec_think_bos_id, language_id, talker.codec_think_eos_id]
