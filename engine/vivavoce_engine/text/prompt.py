"""Builds the talker's prompt, as token ids, from text and voice. Torch-free: the runner looks up the embeddings.

Each prefill position has a text id, a codec id, or both. Each frame after that adds one trailing text id; when those
are used up, it adds tts_pad. The layout is that of the reference package (qwen-tts 0.1.1,
core/models/modeling_qwen3_tts.py, `generate`). The reference builds a chat string and slices its ids by fixed counts,
so a text that begins with a newline shifts the slices. Here the text is tokenised on its own, and its newline cannot
merge with the role's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import PreTokenizedString, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BytePairEncoder
from tokenizers.models import BPE

from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.embeddings import check_embedding
from vivavoce_engine.errors import CheckpointError, Rejected
from vivavoce_engine.request import AUTO_LANGUAGE, SynthesisRequest, UtteranceOptions, VoiceReference
from vivavoce_engine.text.stable import StableText
from vivavoce_engine.text.words import Span, TextWord, words_of

NO_ID = -1
"""Marks a prefill position without a text id or without a codec id."""
MIN_FRAMES = 2
"""Qwen3-TTS's reference draws no end of speech before two codes exist (min_new_tokens=2)."""
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Pattern by which Qwen2's tokenizer splits text into pieces before it merges bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Conditioning:
    """Inputs of the prefill's codec side that are not ids.

    `embedding` [hidden] float32 is the input at position `embedding_at`. From `codes_at` on, the inputs are the frames
    of `codes` [frames, code groups], each the sum of its code embeddings. The utterance's audio continues from these
    frames. The last `own_frames` of them are the model's own speech, whose codes count for the repetition penalty.
    """

    embedding: NDArray[np.float32] | None = None
    embedding_at: int = 0
    codes: NDArray[np.int16] | None = None
    codes_at: int = 0
    own_frames: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PromptMedia:
    """Sound and pictures of a prompt: `hidden` [tokens, thinker hidden] float32, at positions `at` [tokens] int64.

    They stand where a text id would, through a projection of their own.
    """

    at: NDArray[np.int64]
    hidden: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The talker's input as ids.

    `text_ids` and `codec_ids` have one entry for each prefill position. `trailing_ids[k]` is the text id added to
    the input after frame k. After the last one, tts_pad is added. `text_tokens` counts the tokens of the spoken text
    alone. Token j of the spoken text, counted from 0, is at the talker's position `text_at + j`, and tts_eos is behind
    the last one, in both layouts. A reference's text and that of a context are in front of it. `words` are those of a
    complete text, if the request asked for their times.

    `opening_codec_id` is set if the prompt has one position more, whose text is the first trailing id and whose codec
    id is this one: the prompt of an answer of which nothing is known. Trailing id k is then read before frame k is
    made: id 0 with this codec id, and each later one with the frame before.
    `min_frames` is the index of the first frame in whose place the speech may end. `axes` [3, positions] int32 are the
    positions of rotary embedding on the axes time, height and width, and None if all count up from 0. Behind the prompt
    position p has p + `shift` on all of them.
    """

    text_ids: tuple[int, ...]
    codec_ids: tuple[int, ...]
    trailing_ids: tuple[int, ...]
    text_tokens: int
    conditioning: Conditioning | None = None
    text_at: int = 0
    words: tuple[TextWord, ...] = ()
    opening_codec_id: int = NO_ID
    min_frames: int = MIN_FRAMES
    media: PromptMedia | None = None
    axes: NDArray[np.int32] | None = None
    shift: int = 0

    def __post_init__(self) -> None:
        assert len(self.text_ids) == len(self.codec_ids)

    @property
    def prefill_tokens(self) -> int:
        """Positions that run before the first id that trails."""
        return len(self.text_ids)

    @property
    def reads_first(self) -> bool:
        """True if the talker reads a frame's text id before the frame is made, and not after it."""
        return self.opening_codec_id != NO_ID


class Tokenizer:
    """The checkpoint's byte-level BPE, equal to transformers' Qwen2Tokenizer.

    Its pre-tokenizer is Qwen2's. The reference does the same when it loads from the hub. When it loads from a local
    folder with transformers 4.57.3, it uses Mistral's pre-tokenizer, which splits some camel-case words ("iPhone")
    differently.
    """

    def __init__(self, path: Path) -> None:
        # Built by hand, because transformers would import torch, which a process without a model does not need. The
        # added tokens are left out, so that the name of a control token inside a text is ordinary text.
        try:
            model = BPE.from_file(str(path / "vocab.json"), str(path / "merges.txt"))
        except Exception as error:  # the tokenizers package raises no narrower type
            raise CheckpointError(f"{path}: the tokenizer files cannot be read: {error}") from error
        self._encoder = BytePairEncoder(model)
        self._encoder.normalizer = normalizers.NFC()
        self._splitter = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
        self._encoder.pre_tokenizer = pre_tokenizers.Sequence(
            [self._splitter, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a text, never those of control tokens."""
        ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        return ids

    def encode_spans(self, text: str) -> tuple[list[int], list[Span]]:
        """Ids of a text as `encode` gives them, and the characters of `text` that each of them stands for.

        The tokens of a part of a character have all of it. Of a letter with marks that normalisation joins, the span
        has the letter alone.
        """
        encoding = self._encoder.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def pieces(self, text: str) -> list[tuple[int, str]]:
        """Splits a text into pieces → each one's first character in `text`, and its normalised text (Unicode NFC).

        Bytes merge only within a piece.
        """
        split = PreTokenizedString(text)
        split.normalize(lambda part: part.nfc())
        self._splitter.pre_tokenize(split)
        return [(start, piece) for piece, (start, _), _ in split.get_splits("original", "char")]


class TextFrontend:
    """Builds prompts for one checkpoint. Thread-safe, because it never changes."""

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
        """Languages that a request may name. A dialect is chosen by its speaker, as in the reference."""
        names = (name for name in self._checkpoint.talker.codec_language_id if "dialect" not in name)
        return (AUTO_LANGUAGE, *names)

    def prompt(self, request: SynthesisRequest) -> Prompt:
        """Builds the prompt of a complete request. Raises Rejected, which names the field that is at fault."""
        if not request.text.strip():
            raise Rejected("text", "the text is blank")
        check_characters("text", request.text)
        context = request.context
        if context is None:
            ids, spans = self._tokenizer.encode_spans(request.text)
            words = words_of(request.text, spans) if request.word_times else ()
            return replace(self.build(request, ids, complete=True), words=words)
        check_characters("context", context.text)
        check_codes("context", context.codes, self._checkpoint)
        # Tokenised as one text, so that words and punctuation at the seam get the tokens that they have inside a text.
        ids, spans = self._tokenizer.encode_spans(context.text + request.text)
        whole, seam = self.build(request, ids, complete=True), len(context.text)
        own = [(start - seam, end - seam) for start, end in spans if end > seam]
        words = words_of(request.text, own) if request.word_times else ()
        return replace(whole, text_tokens=len(own), text_at=whole.text_at + len(ids) - len(own), words=words)

    @property
    def end_of_text_id(self) -> int:
        return self._checkpoint.tts_eos_token_id

    def live_text(self, word_times: bool = False) -> StableText:
        """Creates a tokenizer for one text that arrives in fragments, which also tells its words if it is asked to."""
        return StableText(self._tokenizer, word_times)

    def tokens_to_start(self, options: UtteranceOptions) -> int:
        """Number of text tokens that `build` needs while a text is incomplete."""
        reference = options.reference
        frames = 0 if reference is None or reference.codes is None else len(reference.codes)
        return max(1, 1 + frames - len(self._reference_text(reference)))

    def build(self, options: UtteranceOptions, text: Sequence[int], complete: bool) -> Prompt:
        """Builds the prompt for the ids of a text, which begin with those of the options' context.

        Unless `complete`, more ids follow later, as trailing ids. The frames of the context stand where the model
        would have made them.

        Raises:
            Rejected: as `prompt`.
        """
        assert complete or (options.streaming_text and len(text) >= self.tokens_to_start(options))
        checkpoint, talker = self._checkpoint, self._checkpoint.talker
        pad, bos, eos = checkpoint.tts_pad_token_id, checkpoint.tts_bos_token_id, checkpoint.tts_eos_token_id
        language, speaker = self._language_head(options), self._speaker(options)
        role = [*self._instruct(options), checkpoint.im_start_token_id, checkpoint.assistant_token_id, self._newline]
        head = [*language, *speaker, talker.codec_pad_id]
        positions = [(text_id, NO_ID) for text_id in role]
        positions += zip([pad] * (len(head) - 1) + [bos], head, strict=True)
        # Two tracks. Text: the reference's, then the request's. Speech: its start token, then the known frames.
        reference, context = options.reference, options.context
        known = [given.codes for given in (reference, context) if given is not None and given.codes is not None]
        codes = np.concatenate(known) if known else None
        before = self._reference_text(reference)
        text_at = len(positions) + len(before)
        text_track = [*before, *text, *([eos] if complete else [])]
        speech_track = [talker.codec_bos_id] + [NO_ID] * (0 if codes is None else len(codes))
        if not options.streaming_text:  # one track after the other, otherwise side by side
            positions += [(text_id, talker.codec_pad_id) for text_id in text_track]
            text_track = []
        spoken_at = len(positions)
        positions += zip_longest(text_track[: len(speech_track)], speech_track, fillvalue=pad)
        text_ids, codec_ids = zip(*positions, strict=True)
        conditioning = None
        if reference is not None or context is not None:
            embedding = None if reference is None else reference.embedding
            own_frames = 0 if context is None else len(context.codes)
            conditioning = Conditioning(embedding, len(role) + len(language), codes, spoken_at + 1, own_frames)
        return Prompt(text_ids, codec_ids, tuple(text_track[len(speech_track) :]), len(text), conditioning, text_at)

    def _reference_text(self, reference: VoiceReference | None) -> list[int]:
        if reference is None or reference.codes is None:
            return []
        if not reference.text.strip():
            raise Rejected("reference", "going on from a recording takes the text that is spoken in it")
        check_characters("reference", reference.text)
        return self._tokenizer.encode(reference.text)

    def _instruct(self, options: UtteranceOptions) -> list[int]:
        check_characters("instructions", options.instructions)
        if not options.instructions.strip():
            if self._checkpoint.task == "voice_design":
                raise Rejected("instructions", "this model designs the voice from `instructions`, which are missing")
            return []
        if not self._checkpoint.takes_instructions:
            raise Rejected("instructions", "this model was not trained to follow instructions")
        start, end = self._checkpoint.im_start_token_id, self._checkpoint.im_end_token_id
        encode = self._tokenizer.encode
        return [start, *encode(f"user\n{options.instructions}"), end, self._newline]

    def _speaker(self, options: UtteranceOptions) -> list[int]:
        name = options.speaker.lower()
        if options.reference is not None:
            if name:
                raise Rejected("reference", "a voice is named or given by example, not both")
            check_reference(options.reference, self._checkpoint)
            return [NO_ID]
        if self._checkpoint.task == "voice_design":
            if name:
                raise Rejected("speaker", "this model has no preset speakers; describe the voice in `instructions`")
            return []
        if self._checkpoint.task == "base" and not name and not self._speakers:
            raise Rejected("speaker", "this model has no preset speakers; give it a voice to clone")
        if name not in self._speakers:
            raise Rejected("speaker", f"there is no speaker {options.speaker!r}; there are {', '.join(self._speakers)}")
        return [self._speakers[name]]

    def _language_head(self, options: UtteranceOptions) -> list[int]:
        talker = self._checkpoint.talker
        language = options.language.lower()
        if language not in self.languages:
            raise Rejected(
                "language", f"there is no language {options.language!r}; there are {', '.join(self.languages)}"
            )
        dialect = talker.spk_is_dialect.get(options.speaker.lower(), False)
        if dialect and language in ("chinese", AUTO_LANGUAGE):
            language = str(dialect)
        if language == AUTO_LANGUAGE:
            return [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id]
        language_id = talker.codec_language_id[language]
        assert talker.codec_think_id is not None, "a model that knows languages has an id that names them"
        return [talker.codec_think_id, talker.codec_think_bos_id, language_id, talker.codec_think_eos_id]


def check_characters(field: str, text: str) -> None:
    """Raises Rejected for half of a surrogate pair, which JSON can spell but no tokenizer can read."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise Rejected(field, "half of a surrogate pair is no character")


def check_reference(reference: VoiceReference, checkpoint: Checkpoint) -> None:
    """Raises Rejected unless the checkpoint can speak with the voice.

    Preset speakers are embeddings too, so every checkpoint with speakers takes an embedding. Only a Base model can
    continue from a recording.
    """
    if checkpoint.task == "voice_design":
        raise Rejected("reference", "this model designs voices from `instructions`; a Base model clones them")
    check_embedding(reference.embedding, checkpoint.talker.transformer.hidden_size)
    if reference.codes is None:
        return
    if checkpoint.task != "base":
        raise Rejected("reference", "this model cannot go on from a recording; a Base model can")
    check_codes("reference", reference.codes, checkpoint)


def check_codes(field: str, codes: NDArray[np.int16], checkpoint: Checkpoint) -> None:
    """Raises Rejected unless `codes` holds at least one frame and fits the checkpoint's codec."""
    groups, size = checkpoint.talker.num_code_groups, checkpoint.talker.predictor_vocab_size
    if codes.ndim != 2 or codes.shape[1] != groups or not len(codes):
        raise Rejected(field, f"this model's frames have {groups} codes; the size of these is {codes.shape}")
    if codes.min() < 0 or codes.max() >= size:
        raise Rejected(field, f"this model's codes are below {size}")
