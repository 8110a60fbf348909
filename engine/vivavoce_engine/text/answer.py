"""Builds the talker's prompt from what a thinker has read, and tells where its answer ends: token ids, torch-free.

The talker reads the user's turns and the opening of the assistant's, then one id of the answer with each frame. System
turns and earlier answers are left out. Text comes in as ids, sound and pictures as the thinker's hidden states. Layout:
transformers 5.17.0, models/qwen3_omni_moe, Qwen3OmniMoeForConditionalGeneration.generate.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.checkpoint.json_file import JsonFile
from vivavoce_engine.checkpoint.omni import ChatConfig
from vivavoce_engine.errors import CheckpointError, Rejected
from vivavoce_engine.request import AUTO_LANGUAGE, ThinkerMedia, ThinkerPrompt, UtteranceOptions
from vivavoce_engine.text.prompt import NO_ID, Prompt, PromptMedia, TextFrontend, Tokenizer

ROLE_IDS = 3
"""Ids in front of an answer: <|im_start|>, assistant, and a newline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTokens:
    """Ids of a thinker's tokens and of its talker's codes, as config.json has them.

    `newline` is the text token of a line's end, and `ends` are the ids that end an answer, none of which is spoken.
    `codec_open` are the codec ids nothink, think_bos and think_eos, behind which the speaker comes.
    """

    im_start: int
    user: int
    assistant: int
    newline: int
    audio: int
    image: int
    video: int
    vision_start: int
    tts_pad: int
    tts_bos: int
    tts_eos: int
    ends: tuple[int, ...]
    vocab_size: int
    codec_open: tuple[int, int, int]
    codec_pad: int
    codec_bos: int


def answer_tokens(checkpoint: Checkpoint, chat: ChatConfig, newline: int) -> AnswerTokens:
    """The ids of a chat checkpoint. An answer ends with <|im_end|>, or <|endoftext|> if the tokenizer has it."""
    talker = checkpoint.talker
    tokenizer = JsonFile(checkpoint.path / "tokenizer_config.json").value("added_tokens_decoder", dict)
    end_of_text = (int(number) for number, token in tokenizer.items() if token.get("content") == "<|endoftext|>")
    return AnswerTokens(
        im_start=checkpoint.im_start_token_id,
        user=chat.user_token_id,
        assistant=checkpoint.assistant_token_id,
        newline=newline,
        audio=chat.audio_token_id,
        image=chat.image_token_id,
        video=chat.video_token_id,
        vision_start=chat.vision_start_token_id,
        tts_pad=checkpoint.tts_pad_token_id,
        tts_bos=checkpoint.tts_bos_token_id,
        tts_eos=checkpoint.tts_eos_token_id,
        ends=(checkpoint.im_end_token_id, *end_of_text),
        vocab_size=talker.text_vocab_size,
        codec_open=(talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id),
        codec_pad=talker.codec_pad_id,
        codec_bos=talker.codec_bos_id,
    )


def frontend_of(checkpoint: Checkpoint) -> "TextFrontend | AnswerFrontend":
    """The frontend of a checkpoint: of texts, or of a thinker's answers. Raises CheckpointError for broken files."""
    tokenizer = Tokenizer(checkpoint.path)
    if checkpoint.chat is None:
        return TextFrontend(checkpoint, tokenizer)
    newline, *rest = tokenizer.encode("\n")
    if rest or tokenizer.encode("user") != [checkpoint.chat.user_token_id]:
        raise CheckpointError(f"{checkpoint.path}: vocab.json does not belong to config.json's user_token_id")
    tokens = answer_tokens(checkpoint, checkpoint.chat, newline)
    return AnswerFrontend(tokens, checkpoint.talker.spk_id, checkpoint.chat.thinker_hidden_size)


class AnswerFrontend:
    """Turns a thinker's prompt into its talker's. `speakers` maps each voice's name to its codec id.

    `thinker_hidden` is the width of the hidden states of sound and pictures.
    """

    def __init__(self, tokens: AnswerTokens, speakers: Mapping[str, int], thinker_hidden: int) -> None:
        self.tokens = tokens
        self._speakers = {name.lower(): codec_id for name, codec_id in speakers.items()}
        self._thinker_hidden = thinker_hidden

    @property
    def speakers(self) -> tuple[str, ...]:
        return tuple(self._speakers)

    @property
    def languages(self) -> tuple[str, ...]:
        """The talker is told no language: it hears it from the answer."""
        return (AUTO_LANGUAGE,)

    @property
    def end_of_text_id(self) -> int:
        return self.tokens.tts_eos

    def prompt(self, options: UtteranceOptions, thinker: ThinkerPrompt) -> Prompt:
        """The talker's prompt up to the position that the answer's first id opens.

        Raises:
            Rejected: names the option that this model does not have, or `prompt`.
        """
        speaker = self._check(options)
        tokens, ids = self.tokens, np.array(thinker.ids, np.int64)
        self._check_ids("prompt", thinker.ids)
        media_at = self._media_positions(ids, thinker.media)
        begin = self._answer_at(thinker.ids)
        kept = [at for span in self._user_turns(thinker.ids[:begin]) for at in span]
        text_ids = [NO_ID if at in media_at else thinker.ids[at] for at in kept]
        codec_ids = [NO_ID] * (len(kept) + ROLE_IDS)
        text_ids += [*thinker.ids[begin : begin + ROLE_IDS], *[tokens.tts_pad] * 4, tokens.tts_bos]
        codec_ids += [*tokens.codec_open, speaker, tokens.codec_pad]
        said = thinker.ids[begin + ROLE_IDS :]
        if any(each in tokens.ends for each in said):
            raise Rejected("prompt", "the answer that the prompt begins has ended already")
        media, axes = None, None
        if media_at and thinker.media is not None:
            places = [place for place, at in enumerate(kept) if at in media_at]
            hidden = thinker.media.hidden[[media_at[kept[place]] for place in places]]
            if places:
                media = PromptMedia(np.array(places, np.int64), hidden)
            axes = self._axes([thinker.ids[at] for at in kept], self._pictures(thinker, kept), len(text_ids))
        shift = 0 if axes is None else int(axes.max()) + 1 - len(text_ids)
        return Prompt(
            tuple(text_ids),
            tuple(codec_ids),
            said,
            len(said),
            opening_codec_id=tokens.codec_bos,
            min_frames=0,
            media=media,
            axes=axes,
            shift=shift,
        )

    def shortest(self) -> ThinkerPrompt:
        """The shortest conversation that has begun to be answered, to warm a model up."""
        each = self.tokens
        user = (each.im_start, each.user, each.newline)
        return ThinkerPrompt((*user, each.im_start, each.assistant, each.newline, each.newline))

    def split(self, ids: Sequence[int]) -> tuple[tuple[int, ...], bool]:
        """The ids of an answer before the one that ends it, and True if one does.

        Raises:
            Rejected: an id is unknown, or follows the end.
        """
        self._check_ids("answer", ids)
        end = next((at for at, each in enumerate(ids) if each in self.tokens.ends), None)
        if end is None:
            return tuple(ids), False
        if end + 1 < len(ids):
            raise Rejected("answer", "nothing follows the end of an answer")
        return tuple(ids[:end]), True

    def _check(self, options: UtteranceOptions) -> int:
        """The codec id of the voice. Raises Rejected for a voice or an option that this model does not have."""
        speaker = self._speakers.get(options.speaker.lower())
        for name in ("reference", "context"):
            if getattr(options, name) is not None:
                raise Rejected(name, "this model speaks with its preset voices alone, and goes on from no other speech")
        if speaker is None:
            raise Rejected("speaker", f"there is no speaker {options.speaker!r}; there are {', '.join(self._speakers)}")
        if options.language.lower() != AUTO_LANGUAGE:
            raise Rejected("language", "this model speaks the language that its answer is in")
        if options.instructions.strip():
            raise Rejected("instructions", "this model takes its instructions in the conversation")
        if options.end_after_text:
            raise Rejected("end_after_text", "this model ends its speech by itself, be the answer at its end or not")
        return speaker

    def _check_ids(self, field: str, ids: Sequence[int]) -> None:
        if not all(0 <= each < self.tokens.vocab_size for each in ids):
            raise Rejected(field, f"token ids are from 0 to {self.tokens.vocab_size - 1}")

    def _answer_at(self, ids: Sequence[int]) -> int:
        """The position at which the last turn begins, which is the assistant's."""
        tokens = self.tokens
        begin = max((at for at, each in enumerate(ids) if each == tokens.im_start), default=-1)
        if begin < 0 or tuple(ids[begin + 1 : begin + ROLE_IDS]) != (tokens.assistant, tokens.newline):
            raise Rejected("prompt", "the prompt must end with the tokens that ask the assistant for an answer")
        return begin

    def _user_turns(self, ids: Sequence[int]) -> Iterator[range]:
        """Positions of the user's turns, each from its <|im_start|> to the next one."""
        starts = [at for at, each in enumerate(ids) if each == self.tokens.im_start]
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            if start + 1 < len(ids) and ids[start + 1] == self.tokens.user:
                yield range(start, end)

    def _media_positions(self, ids: NDArray[np.int64], media: ThinkerMedia | None) -> dict[int, int]:
        """Position of each token of sound or picture → its number among them."""
        if (ids == self.tokens.video).any():
            raise Rejected("prompt", "this model's speech about a video is not supported")
        found = np.flatnonzero((ids == self.tokens.audio) | (ids == self.tokens.image))
        given = np.zeros(0, np.int64) if media is None else media.at
        if not np.array_equal(found, given):
            raise Rejected("prompt", "the prompt's tokens of sound and pictures are not those that came with vectors")
        if media is not None and media.hidden.shape != (len(found), self._thinker_hidden):
            size = f"[{len(found)}, {self._thinker_hidden}]"
            raise Rejected("prompt", f"the vectors of sound and pictures must be {size}, not {media.hidden.shape}")
        return {int(at): number for number, at in enumerate(found)}

    def _pictures(self, thinker: ThinkerPrompt, kept: Sequence[int]) -> list[tuple[int, int]]:
        """Rows and columns of the pictures in the user's turns. Raises Rejected unless they fit the prompt's tokens."""
        assert thinker.media is not None
        tokens, ids, inside = self.tokens, thinker.ids, set(kept)
        found = []
        starts = [each for each in range(len(ids)) if self._is_picture(ids, each)]
        if len(starts) != len(thinker.media.pictures):
            raise Rejected("prompt", f"there are {len(starts)} pictures, not {len(thinker.media.pictures)}")
        for start, (rows, columns) in zip(starts, thinker.media.pictures, strict=True):
            at = start + 1
            while at < len(ids) and ids[at] == tokens.image:
                at += 1
            if rows < 1 or columns < 1 or at - start - 1 != rows * columns:
                raise Rejected("prompt", f"a picture of {rows} x {columns} tokens has {at - start - 1}")
            if start in inside:
                found.append((rows, columns))
        return found

    def _is_picture(self, ids: Sequence[int], at: int) -> bool:
        """True if a picture's tokens begin behind this position."""
        return ids[at] == self.tokens.vision_start and at + 1 < len(ids) and ids[at + 1] == self.tokens.image

    def _axes(self, ids: Sequence[int], pictures: Sequence[tuple[int, int]], length: int) -> NDArray[np.int32]:
        """Positions on the axes time, height and width [3, length] of the user's turns `ids` and of text behind them.

        Text and sound count up on all axes. A picture's tokens share one time, and what follows goes on behind the
        largest of their positions.
        """
        axes, at, following = np.zeros((3, length), np.int32), 0, 0
        sizes = iter(pictures)
        while at < length:
            axes[:, at] = following
            picture = at < len(ids) and self._is_picture(ids, at)
            at, following = at + 1, following + 1
            if picture:
                rows, columns = next(sizes)
                grid = np.mgrid[0:1, 0:rows, 0:columns].reshape(3, -1)
                axes[:, at : at + rows * columns] = following + grid
                at, following = at + rows * columns, following + max(rows, columns)
        return axes
