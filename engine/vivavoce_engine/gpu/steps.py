"""The work that a step gives to the device: the networks as kernel launches, and the list of all graphs.

The graphs serve any plan, because rows, codes and positions are in tables on the device. Each kind of work comes in a
few sizes. A caller pads its work to the next of them.
"""

from collections.abc import Hashable, Iterator
from functools import partial

import torch
from torch import Tensor

from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.checkpoint.networks import TalkerConfig
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.gpu.codec.decoder import GpuCodec
from vivavoce_engine.gpu.frame import FrameModel
from vivavoce_engine.gpu.graphs import Launch, buckets
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.starts import Starts
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.codec_decoder import Code2Wav
from vivavoce_engine.models.talker import Talker

PROMPT_TOKENS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of prompt tokens that have a graph of their own. A longer prompt goes through the largest one in several
parts."""
CODEC_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Networks = tuple[Talker, CodePredictor, Code2Wav]


class Steps:
    """The launches of one model for the limits of `settings`, and the tables that they work on.

    The decoder among `networks` is in float32. Code2Wav computes in the talker's dtype, with weights of its own. Frames
    keep the scores of the `alignment`, if there is one. The talker of a chat model reads first (Prompt).
    """

    def __init__(
        self,
        networks: Networks,
        config: TalkerConfig,
        pad_id: int,
        settings: EngineConfig,
        alignment: Alignment | None,
        launch: Launcher,
    ) -> None:
        talker, predictor, decoder = networks
        rows, self.prompts_at_once = settings.rows, settings.max_prefills_per_step
        self.largest_prompt = min(PROMPT_TOKENS[-1], settings.max_context)
        self.batches = buckets(rows)
        """Numbers of rows of a frame, ascending."""
        self.prompt_sizes = buckets(self.largest_prompt, PROMPT_TOKENS)
        """Numbers of tokens of a call of prompts, ascending."""
        self.codec_batches = buckets(rows, CODEC_BATCHES)
        """Numbers of rows of a call of Code2Wav, ascending."""
        self.pieces = piece_sizes(settings.max_chunk_frames)
        """Numbers of frames of a call of Code2Wav, descending."""
        self.frames = FrameModel(
            talker,
            predictor,
            config,
            rows=rows,
            batch=max(rows, self.prompts_at_once),
            prompt_tokens=self.largest_prompt,
            positions=settings.max_context,
            pages=settings.kv_pages,
            ring=2 * settings.max_chunk_frames,
            pad_id=pad_id,
            deterministic=settings.deterministic,
            alignment=alignment,
            opening_id=config.codec_bos_id if config.reads_hidden_states else None,
            launch=launch,
        )
        self.starts = Starts(self.frames, talker, self.prompts_at_once)
        self.codec = GpuCodec(decoder, rows, self.pieces[0], talker.codec_head.weight.dtype, launch=launch)
        codes = self.frames.tables.codes
        assert codes.shape[1] > self.pieces[0], "a piece is decoded while the next frame is written"
        self.codec_rows = torch.full((rows,), self.frames.tables.dummy_row, device=codes.device)
        """[rows] int64: rows of the next call of Code2Wav."""
        self.codec_first = torch.zeros(rows, dtype=torch.int64, device=codes.device)
        """[rows] int64: number of the first frame that each of them decodes."""
        self.decoded: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        """(rows, frames) of a call → audio [B, samples] float32, and the codes that it is made of, [B, T, groups]."""

    def prefill(self, tokens: int) -> None:
        """Runs the uploaded prompts, in a call of `tokens` tokens."""
        self.frames.prefill(self.prompts_at_once, tokens)

    def decode(self, batch: int, frames: int) -> None:
        """Decodes the next `frames` frames of `codec_rows[:batch]` into `decoded`."""
        rows, ring = self.codec_rows[:batch], self.frames.tables.codes
        at = (self.codec_first[:batch, None] + torch.arange(frames, device=ring.device)) % ring.shape[1]
        codes = ring[rows[:, None], at]
        self.decoded[batch, frames] = (self.codec.decode(rows, codes), codes)

    def frame_graphs(self) -> Iterator[tuple[Hashable, Launch]]:
        """Yields key and launches of each graph of the talker and the code predictor, the largest of a kind first."""
        yield "rows", self.starts.set_rows
        yield "tokens", self.starts.embed_tokens
        for batch in reversed(self.batches):
            yield ("frame", batch), partial(self.frames.frame, batch)
        for tokens in reversed(self.prompt_sizes):
            yield ("prompt", tokens), partial(self.prefill, tokens)

    def codec_graphs(self) -> Iterator[tuple[Hashable, Launch]]:
        """Yields key and launches of each graph of Code2Wav, the largest batch first."""
        for batch in reversed(self.codec_batches):
            for frames in reversed(self.pieces):
                yield (batch, frames), partial(self.decode, batch, frames)


def piece_sizes(largest: int) -> tuple[int, ...]:
    """Returns the powers of two up to `largest`, descending. Any number of frames is a sum of a few of them."""
    return tuple(1 << power for power in reversed(range(largest.bit_length())))
