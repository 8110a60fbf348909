"""One frame of many rows as a fixed list of kernel launches, which a CUDA graph replays.

A frame: code predictor → sum of the frame's embeddings + text → talker step → code 0 of the next frame, or the end of
speech. A prompt ends with its row's first code 0. A chat model's frame begins with the talker's step, and its prompt
draws nothing: the first text id, which opens the speech, may come long after it.

Nothing here synchronises with the device or reads from it. Everything that a step depends on is in tables on the
device.
"""

from functools import partial
from typing import cast

import torch
import triton
from torch import Tensor, nn

from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.checkpoint.networks import TalkerConfig
from vivavoce_engine.gpu import sampler
from vivavoce_engine.gpu.attention import CHUNK, SPLIT_TOKENS, PagedCache, Places, attend, attend_prompt
from vivavoce_engine.gpu.frame_attention import attend_in_frame
from vivavoce_engine.gpu.heads import AXES
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.linear import BIAS, norm
from vivavoce_engine.gpu.sampler import (
    PARAMS,
    RowTables,
    draw_code_0,
    draw_code_kernel,
    frame_start_kernel,
    read_text_kernel,
)
from vivavoce_engine.gpu.scores import Scores
from vivavoce_engine.gpu.stack import Attend, Residual, Stack, build_cache
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.talker import CONTROL_CODES, Talker
from vivavoce_engine.pages import pages_of


class FrameModel:
    """Talker and code predictor over tables of `rows` rows, for steps of at most `batch` rows.

    The cache has `pages` pages for the keys and values of all rows. The table `cache.pages` says which pages are whose.
    An entry must be written before its row reaches the page. Without `pages` each row has pages of its own for all
    `positions`. The dummy row has one more page, the last.

    `rows` [batch] int32 selects the rows of the next step. A batch is padded with the dummy row, number
    `tables.dummy_row`. After the step, `ended` [batch] int32 is 1 for the rows that have ended their speech.

    With an `opening_id`, the talker reads a frame's text id before the frame is made, and the first beside this code.

    With an `alignment`, `frame` keeps the scores of its head, and takes each row's window of them: `scores`.
    """

    def __init__(
        self,
        talker: Talker,
        predictor: CodePredictor,
        config: TalkerConfig,
        *,
        rows: int,
        batch: int,
        prompt_tokens: int,
        positions: int,
        pages: int | None = None,
        ring: int,
        pad_id: int,
        deterministic: bool = False,
        alignment: Alignment | None = None,
        opening_id: int | None = None,
        launch: Launcher,
    ) -> None:
        assert 0 <= pad_id < len(talker.text_embedding.weight)
        assert predictor.groups == config.num_code_groups
        assert pages is None or pages >= pages_of(positions), "one row must be able to reach its last position"
        assert opening_id is None or 0 <= opening_id < config.vocab_size
        self._config, self._pad_id, self._opening_id, self.launch = config, pad_id, opening_id, launch
        self._talker, self._predictor = talker, predictor
        self._heads = [cast(nn.Linear, head).weight for head in predictor.lm_head]
        self._projection = predictor.projection if isinstance(predictor.projection, nn.Linear) else None
        like = talker.codec_head.weight.detach()
        heads = config.transformer
        several_axes = heads.rope.sections is not None
        sizes = (rows, positions, config.vocab_size, heads.hidden_size, ring, config.num_code_groups)
        self.tables = RowTables.allocate(*sizes, like, shifted=several_axes, keeps=opening_id is not None)
        tokens = max(batch, prompt_tokens)
        self.talker = Stack(talker.transformer, tokens, launch, deterministic=deterministic)
        own = rows * pages_of(positions)
        rope = talker.transformer.rope
        cache = build_cache(rope, heads, (own if pages is None else pages) + 1, CHUNK, positions, like)
        self.cache = PagedCache(cache, rows + 1, batch, SPLIT_TOKENS)
        if pages is None:
            self.cache.pages[:rows] = torch.arange(own, device=like.device).view(rows, -1)
        self.predictor = Stack(predictor.transformer, 2 * batch, launch, deterministic=deterministic)
        length = triton.next_power_of_2(config.num_code_groups)
        self._frame_cache = build_cache(predictor.transformer.rope, config.predictor, batch, length, length, like)
        self._allocate_inputs(batch, prompt_tokens, like.device)
        self.scores = None
        if alignment is not None:
            assert 0 <= alignment.layer < heads.num_hidden_layers
            kept = (rows + 1, self.cache.chunks * CHUNK, batch)
            self.scores = Scores.allocate(alignment.layer, alignment.head, *kept, like.device)
        self._hidden = like.new_empty(max(batch, prompt_tokens), heads.hidden_size)
        self._total = like.new_empty(batch, heads.hidden_size)
        self._logits = like.new_empty(batch, config.predictor_vocab_size)
        self._logits_0 = like.new_empty(batch, config.vocab_size)

    def _allocate_inputs(self, batch: int, prompt_tokens: int, device: torch.device) -> None:
        """Allocates what a step is told by the host."""
        self.rows = torch.full((batch,), self.tables.dummy_row, dtype=torch.int32, device=device)
        self.ended = torch.zeros(batch, dtype=torch.int32, device=device)
        self.token_rows = torch.zeros(prompt_tokens, dtype=torch.int32, device=device)
        self.token_positions = torch.zeros(prompt_tokens, dtype=torch.int64, device=device)
        self.token_axes = None
        """[prompt_tokens, AXES] int64: rotary positions of a prompt's tokens, if they have several axes."""
        if self.tables.shifts is not None:
            self.token_axes = torch.zeros(prompt_tokens, AXES, dtype=torch.int64, device=device)
        self.last_tokens = torch.zeros(batch, dtype=torch.int64, device=device)

    def frame(self, batch: int) -> None:
        """Makes a frame of each of `rows[:batch]`, and reads the text id behind it, or before it."""
        assert 1 <= batch <= len(self.rows)
        if self._opening_id is None:
            self._make(batch)
            self._read(batch)
        else:
            self._start_read(self.rows[:batch], self._opening_id)
            self._read(batch)
            self._make(batch)

    def _make(self, batch: int) -> None:
        """Draws the codes of each row's frame but the first, and sums up their embeddings."""
        rows, groups, stack = self.rows[:batch], self._config.num_code_groups, self.predictor
        self._start_frame(rows)
        stream = stack.run(2 * batch, self._attend_in_frame(batch, 1))
        stream = Residual(stream.x[batch:], None if stream.parts is None else stream.parts[:, batch:])
        for group in range(1, groups):
            logits = self._logits[:batch]
            stack.normed_linear(stream, self._heads[group - 1], logits, stack.norm)
            self._draw_code(group, rows, logits)
            if group < groups - 1:
                stream = stack.run(batch, self._attend_in_frame(batch, group + 1))

    def _read(self, batch: int) -> None:
        """The talker's step, from inputs that are `talker.x`, and the next code 0 of each row."""
        rows = self.rows[:batch]
        places = Places(self.cache, rows, self.tables.positions, by_row=True, axes=self.tables.shifts)
        stream = self.talker.run(batch, partial(attend, self.launch, places, scores=self.scores))
        self._end_step(rows, stream, self._hidden[:batch], self.scores)

    def _attend_in_frame(self, batch: int, position: int) -> Attend:
        return partial(attend_in_frame, self.launch, self._frame_cache, batch, position)

    def prefill(self, batch: int, tokens: int) -> None:
        """Runs the prompts of `rows[:batch]`, and draws each row's first code 0.

        The prompts' embeddings are the first `tokens` of `talker.x`. Token t stands at position `token_positions[t]` of
        row `token_rows[t]`. `last_tokens` holds the index of each prompt's last token.

        Padding tokens belong to the dummy row, or stand behind the end of their prompt. Such positions have a page, and
        are written again before they are read.
        """
        assert 1 <= batch <= len(self.rows)
        assert 1 <= tokens <= len(self.token_rows)
        rows, at = self.rows[:batch], self.last_tokens[:batch]
        axes = None if self.token_axes is None else self.token_axes[:tokens]
        places = Places(self.cache, self.token_rows[:tokens], self.token_positions[:tokens], by_row=False, axes=axes)
        stream = self.talker.run(tokens, partial(attend_prompt, self.launch, places))
        parts = None if stream.parts is None else stream.parts.index_select(1, at)
        self._end_step(rows, Residual(stream.x.index_select(0, at), parts), self._hidden[:batch])

    def _start_frame(self, rows: Tensor) -> None:
        batch, tables, stack = len(rows), self.tables, self.predictor
        projection = self._projection
        hidden = self._hidden[:batch] if projection else stack.x[:batch]
        self.launch(
            frame_start_kernel,
            (batch,),
            rows,
            tables.hidden,
            tables.code_0,
            tables.frames,
            tables.codes,
            self._predictor.input_embedding[0].weight,
            self._talker.codec_embedding.weight,
            hidden,
            stack.x,
            self._total,
            batch,
            GROUPS=tables.codes.shape[2],
            RING=tables.codes.shape[1],
            H=self.talker.hidden,
            BLOCK_H=triton.next_power_of_2(self.talker.hidden),
            P=stack.hidden,
            BLOCK_P=triton.next_power_of_2(stack.hidden),
            num_warps=4,
        )
        if projection:
            stack.linear(hidden, projection.weight, stack.x[:batch], BIAS.value, projection.bias)

    def _start_read(self, rows: Tensor, opening_id: int) -> None:
        tables, talker = self.tables, self.talker
        self.launch(
            read_text_kernel,
            (len(rows),),
            rows,
            tables.frames,
            tables.text_ids,
            tables.text_counts,
            tables.kept,
            self._talker.text_embedding.weight,
            self._talker.codec_embedding.weight,
            talker.x,
            tables.text_ids.shape[1],
            self._pad_id,
            opening_id,
            H=talker.hidden,
            BLOCK_H=triton.next_power_of_2(talker.hidden),
        )

    def _draw_code(self, group: int, rows: Tensor, logits: Tensor) -> None:
        last = group == self._config.num_code_groups - 1
        tables, talker, stack = self.tables, self.talker, self.predictor
        target = talker if last else stack
        embedding = self._predictor.codec_embedding[group - 1].weight
        self.launch(
            draw_code_kernel,
            (len(rows),),
            logits,
            rows,
            tables.params,
            tables.seeds,
            tables.frames,
            tables.codes,
            embedding if last else self._predictor.input_embedding[group].weight,
            embedding,
            self._total,
            target.x,
            tables.text_ids,
            tables.text_counts,
            self._talker.text_embedding.weight,
            tables.kept,
            tables.text_ids.shape[1],
            self._pad_id,
            group,
            V=logits.shape[1],
            BLOCK_V=triton.next_power_of_2(logits.shape[1]),
            GROUPS=tables.codes.shape[2],
            RING=tables.codes.shape[1],
            PARAMS=PARAMS,
            H=talker.hidden,
            BLOCK_H=triton.next_power_of_2(talker.hidden),
            P=stack.hidden,
            BLOCK_P=triton.next_power_of_2(stack.hidden),
            LAST=last,
            num_warps=sampler.WARPS,
        )

    def _end_step(self, rows: Tensor, stream: Residual, hidden: Tensor, scores: Scores | None = None) -> None:
        """Goes from the talker's last block to the next code 0 of each row [B]. `hidden` [B, hidden] is a buffer.

        `scores` are those that the step has kept.
        """
        talker, tables, config = self.talker, self.tables, self._config
        keep = (rows, tables.hidden)
        norm(self.launch, stream.x, talker.norm, talker.eps, hidden, parts=stream.parts, keep=keep)
        logits = self._logits_0[: len(rows)]
        talker.linear(hidden, self._talker.codec_head.weight, logits)
        draw_code_0(
            self.launch,
            logits,
            rows,
            tables,
            self.ended[: len(rows)],
            config.codec_eos_token_id,
            config.vocab_size - CONTROL_CODES,
            scores,
        )
