"""Embeds prompts for the talker. Reference: qwen-tts 0.1.1, `generate` and `generate_icl_prompt`."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from vivavoce_engine.device import to_device
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.talker import Talker
from vivavoce_engine.text.prompt import Prompt


def embed_prompt(prompt: Prompt, talker: Talker, predictor: CodePredictor) -> Tensor:
    """Returns the embeddings of a prompt [1, prefill_tokens, hidden]: text plus codec side."""
    ids = torch.tensor([[prompt.text_ids], [prompt.codec_ids]])
    text_ids, codec_ids = to_device(ids, talker.codec_head.weight.device)
    x = talker.embed(text_ids, codec_ids)
    for at, given in embed_conditioning(prompt, talker, predictor):
        assert at + len(given) <= prompt.prefill_tokens, "what is added belongs to positions of the prompt"
        x[0, at : at + len(given)] += given
    return x


def axes_of(prompt: Prompt, device: torch.device) -> Tensor | None:
    """Positions of a prompt on the axes of RoPE [3, 1, prefill_tokens]; None if they count up from 0 on all axes."""
    return None if prompt.axes is None else to_device(torch.tensor(prompt.axes).long()[:, None], device)


def embed_conditioning(prompt: Prompt, talker: Talker, predictor: CodePredictor) -> Iterator[tuple[int, Tensor]]:
    """Yields embeddings that no id names: (first position, [positions, hidden] to add from there on)."""
    given, media, like = prompt.conditioning, prompt.media, talker.codec_head.weight
    if media is not None:
        hidden = talker.project_hidden(to_device(torch.tensor(media.hidden), like.device).to(like))
        for run in np.split(np.arange(len(media.at)), np.flatnonzero(np.diff(media.at) > 1) + 1):
            yield int(media.at[run[0]]), hidden[run[0] : run[-1] + 1]
    if given is None:
        return
    if given.embedding is not None:
        yield given.embedding_at, to_device(torch.tensor(given.embedding)[None], like.device).to(like)
    if given.codes is not None:
        codes = to_device(torch.tensor(given.codes, dtype=torch.int64), like.device)
        yield given.codes_at, predictor.embed_frame(codes, talker.codec_embedding(codes[:, 0]))
