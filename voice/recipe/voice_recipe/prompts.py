"""Prompt layout of the CustomVoice models, expanded on the device for packed rows of many sentences.

A document begins with role (3 positions), language head (3 or 4), speaker, tts_bos. Then come either the whole text and
after it the frames (mode A, "non-streaming"), or one text token beside every frame (mode B, "streaming").

A part that goes on from the part before it has the layout of one document: both texts as one, the frames of the part
before, its own frames. So documents of several sentences teach going on, too.

Every document has a silent frame before its speech. Only a document in mode B whose first token leaves the first sound
open ("waits") is spoken with it: the frame gives time for the second token. All others begin with the frame after it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_recipe import config as c
from voice_recipe.trim import SILENT_FRAMES

NO_DOCUMENT = 2**30
IntArray = npt.NDArray[np.int64]


@dataclass
class Documents:
    """U documents with V tokenisations each, on one device."""

    text: Tensor  # [all tokens of all variants] int32
    text_start: Tensor  # [V, U]
    text_length: Tensor  # [V, U]
    waits: Tensor  # [V, U] bool
    codes: Tensor  # [N, 8] int16
    code_start: Tensor  # [U], the silent frame
    frames: Tensor  # [U], with the silent frame
    speaker: Tensor  # [U]


@dataclass
class Packing:
    """Places of the documents in a batch: arrays of a fixed length D. Unused entries start at NO_DOCUMENT."""

    start: Tensor  # [D] flat position = row * row_length + column, ascending
    document: Tensor  # [D]
    variant: Tensor  # [D]
    streaming: Tensor  # [D] bool, mode B
    english: Tensor  # [D] bool, else language "auto"

    def to(self, device: str) -> Packing:
        return Packing(**{f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)})


@dataclass
class Expanded:
    """One batch, P = rows * row_length positions."""

    text_id: Tensor  # [P], tts_pad if there is no text
    codec_id: Tensor  # [P], -1 where none
    frame: Tensor  # [P] row of Documents.codes summed into the input here, -1 where none
    target_frame: Tensor  # [P] row of Documents.codes predicted here, -1 where none
    ends: Tensor  # [P] bool: the target is end of speech
    position: Tensor  # [P] place inside the document
    owner: Tensor  # [P] slot of the packing, -1 for padding


@dataclass(frozen=True)
class TextIds:
    """Text token ids that every prompt uses."""

    im_start: int
    assistant: int
    newline: int
    tts_pad: int
    tts_bos: int
    tts_eos: int


def spoken_frames(frames: IntArray, streaming: npt.NDArray[np.bool_], waits: npt.NDArray[np.bool_]) -> IntArray:
    """Frames of each document in its mode: with the silent one if it waits."""
    return np.asarray(frames - np.where(streaming & waits, 0, SILENT_FRAMES))


def document_length(
    text: IntArray, frames: IntArray, streaming: npt.NDArray[np.bool_], english: npt.NDArray[np.bool_]
) -> IntArray:
    """Number of positions of each document, from its spoken frames (`spoken_frames`)."""
    return np.asarray(3 + np.where(english, 4, 3) + 2 + np.where(streaming, 1, text + 2) + frames)


def expand(docs: Documents, pack: Packing, ids: TextIds, positions: int) -> Expanded:
    """Write out every position of a packed batch."""
    at = torch.arange(positions, device=docs.codes.device)
    slot = torch.searchsorted(pack.start, at, right=True) - 1
    held = slot.clamp(min=0)
    doc, variant = pack.document[held], pack.variant[held]
    streaming, english = pack.streaming[held], pack.english[held]
    within = at - pack.start[held]
    text_start, text_length = docs.text_start[variant, doc], docs.text_length[variant, doc]
    skipped = torch.where(streaming & docs.waits[variant, doc], 0, SILENT_FRAMES)
    frames, head = docs.frames[doc] - skipped, 3 + english.long()
    body = within - (head + 5)  # index after role, head, speaker and tts_bos
    frame = body - torch.where(streaming, 1, text_length + 2)  # -1 is the codec_bos position
    inside = (slot >= 0) & (frame < frames)
    # Text side: which token, or the special ones around it.
    token = torch.where(streaming, frame + 1, body)
    spoken = (body >= 0) & (token < text_length) & (streaming | (frame < -1))
    text_id = torch.where(spoken, docs.text[(text_start + token).clamp(0, len(docs.text) - 1)].long(), ids.tts_pad)
    text_id = torch.where((body >= 0) & (token == text_length), ids.tts_eos, text_id)
    for place, value in ((0, ids.im_start), (1, ids.assistant), (2, ids.newline)):
        text_id = torch.where(within == place, value, text_id)
    text_id = torch.where(body == -1, ids.tts_bos, text_id)
    # Codec side of the prompt.
    codec_id = torch.where((body == -1) | ((body >= 0) & (frame < -1)), c.CODEC_PAD, -1)
    codec_id = torch.where(frame == -1, c.CODEC_BOS, codec_id)
    codec_id = torch.where(body == -2, c.CODEC_FIRST_SPEAKER + docs.speaker[doc], codec_id)
    codec_id = torch.where(within == 3, torch.where(english, c.CODEC_THINK, c.CODEC_NOTHINK), codec_id)
    codec_id = torch.where(within == 4, c.CODEC_THINK_BOS, codec_id)
    codec_id = torch.where(english & (within == 5), c.CODEC_ENGLISH, codec_id)
    codec_id = torch.where(body == -3, c.CODEC_THINK_EOS, codec_id)
    row = docs.code_start[doc] + skipped + frame
    predicts = inside & (frame >= -1) & (body >= 0)
    return Expanded(
        text_id=text_id,
        codec_id=torch.where(inside, codec_id, -1),
        frame=torch.where(inside & (frame >= 0) & (body >= 0), row, -1),
        target_frame=torch.where(predicts & (frame + 1 < frames), row + 1, -1),
        ends=predicts & (frame + 1 == frames),
        position=within.clamp(min=0),
        owner=torch.where(inside, slot, -1),
    )
