"""Runs plans with the real models. All state of a row is in tensors indexed by row; nothing else survives a step.

A frame: code predictor (codes 1..G-1) → sum of the frame's code embeddings + the next text embedding → talker step →
code 0 of the next frame, or end of speech. Reference: qwen-tts 0.1.1, Qwen3TTSTalkerForConditionalGeneration.
"""

from collections import defaultdict
from collections.abc import Sequence as SequenceOf

import numpy as np
import torch
from torch import Tensor

from vivavoce_engine.checkpoint import Checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.messages import AudioChunk
from vivavoce_engine.models.codec_decoder import CodecRows
from vivavoce_engine.models.layers import KVCache, RowView
from vivavoce_engine.models.loader import load_models
from vivavoce_engine.request import ModelInfo
from vivavoce_engine.runner import Outcome
from vivavoce_engine.sampling import SamplingTable, uniform
from vivavoce_engine.scheduler import Plan
from vivavoce_engine.sequence import Sequence
from vivavoce_engine.text import TextFrontend, Tokenizer

MIN_FRAMES = 2
"""The reference draws no end of speech before two codes exist (min_new_tokens=2)."""
CONTROL_CODES = 1024
"""The talker's last 1024 codes steer the prompt; of them only the end of speech may be drawn."""


class TorchRunner:
    """One checkpoint on one device, eager."""

    def __init__(self, name: str, checkpoint: Checkpoint, config: EngineConfig) -> None:
        self._device = torch.device(resolve_device(config.device))
        dtype = resolve_dtype(config.dtype, self._device)
        self._checkpoint = checkpoint
        self._talker, self._predictor, decoder = load_models(checkpoint, self._device, dtype)
        self.text = TextFrontend(checkpoint, Tokenizer(checkpoint.path))
        self.info = self._model_info(name)
        rows, talker = config.max_streams, checkpoint.talker
        like = self._talker.codec_head.weight
        self._cache = KVCache(talker.transformer, rows, config.max_context, like)
        self._frame_cache = self._predictor.frame_cache(talker, rows)
        self._codec_rows = CodecRows(decoder, rows, like)
        self._hidden = like.new_zeros(rows, talker.transformer.hidden_size)
        self._code_0 = self._ints(rows)
        self._position = self._ints(rows)
        self._seed = self._ints(rows)
        self._trailing = self._ints(rows, config.max_context)
        self._trailing_count = self._ints(rows)
        self._seen = torch.zeros(rows, talker.vocab_size, dtype=torch.bool, device=self._device)
        self._codes = self._ints(rows, config.max_chunk_frames, talker.num_code_groups)
        """Ring of frames that wait for the decoder: frame f is at f modulo its length."""
        self._talker_sampling = SamplingTable(rows, self._device)
        self._predictor_sampling = SamplingTable(rows, self._device)
        self._suppressed = self._suppression(talker.vocab_size, talker.codec_eos_token_id)

    def run(self, plan: Plan) -> Outcome:
        """Prefill, one frame a row, audio; rows outside the plan keep their state bit for bit."""
        with torch.inference_mode():
            if plan.start:
                self._start(plan.start)
            ended = self._step(plan.step) if plan.step else {}
            return Outcome(plan, ended, self._vocode(plan))

    # ---- set-up -----------------------------------------------------------------------------------------------

    def _model_info(self, name: str) -> ModelInfo:
        checkpoint = self._checkpoint
        return ModelInfo(
            name=name,
            task=checkpoint.task,
            speakers=self.text.speakers,
            languages=self.text.languages,
            takes_instructions=checkpoint.takes_instructions,
            sampling=checkpoint.sampling,
            max_frames=checkpoint.max_new_tokens,
            sample_rate=checkpoint.codec.sample_rate,
            samples_per_frame=checkpoint.codec.samples_per_frame,
        )

    def _ints(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self._device)

    def _suppression(self, vocab_size: int, end_of_speech: int) -> Tensor:
        suppressed = torch.zeros(vocab_size, dtype=torch.bool, device=self._device)
        suppressed[vocab_size - CONTROL_CODES :] = True
        suppressed[end_of_speech] = False
        return suppressed

    # ---- a step -----------------------------------------------------------------------------------------------

    def _start(self, sequences: SequenceOf[Sequence]) -> None:
        """Sets the rows up and runs their prompts, padded at the right: what padding writes into the cache lies
        beyond the row's length, where it is overwritten before it is ever seen."""
        for sequence in sequences:
            self._set_row(sequence)
        prompts = [sequence.pending.prompt for sequence in sequences]
        lengths = [prompt.prefill_tokens for prompt in prompts]
        text_ids, codec_ids = self._ints(len(prompts), max(lengths)), self._ints(len(prompts), max(lengths))
        for number, prompt in enumerate(prompts):
            text_ids[number, : lengths[number]] = torch.tensor(prompt.text_ids)
            codec_ids[number, : lengths[number]] = torch.tensor(prompt.codec_ids)
        rows = [sequence.row for sequence in sequences]
        index = torch.tensor(rows, device=self._device)
        positions = torch.arange(max(lengths), device=self._device).expand(len(rows), -1)
        view = RowView(self._cache, _span(rows, index), positions, max(lengths))
        hidden = self._talker(self._talker.embed(text_ids, codec_ids), view)
        last = torch.tensor(lengths, device=self._device) - 1
        self._draw_code_0(
            rows, index, hidden[torch.arange(len(rows), device=self._device), last], self._ints(len(rows))
        )
        self._codec_rows.reset(index)

    def _set_row(self, sequence: Sequence) -> None:
        row, pending = sequence.row, sequence.pending
        trailing = pending.prompt.trailing_ids
        self._position[row] = pending.prompt.prefill_tokens
        self._seed[row] = pending.seed
        self._trailing[row, : len(trailing)] = torch.tensor(trailing, dtype=torch.int64)
        self._trailing_count[row] = len(trailing)
        self._seen[row] = False
        self._talker_sampling.set(row, pending.request.sampling.talker)
        self._predictor_sampling.set(row, pending.request.sampling.predictor)

    def _step(self, sequences: SequenceOf[Sequence]) -> dict[int, bool]:
        """Completes one frame of each row; tells which rows then end their speech."""
        sequences = sorted(sequences, key=lambda sequence: sequence.row)
        rows = [sequence.row for sequence in sequences]
        made = [sequence.frames_made for sequence in sequences]
        index, frame = (torch.tensor(values, device=self._device) for values in (rows, made))
        seed, sampling = self._seed[index], self._predictor_sampling.select(rows, index)
        codes = self._predictor(
            self._hidden[index],
            self._code_0[index],
            self._frame_cache,
            lambda group, logits: sampling.draw(logits, uniform(seed, frame, group)),
        )
        self._codes[index, frame % self._codes.shape[1]] = codes
        x = self._predictor.embed_frame(codes, self._talker.codec_embedding(codes[:, 0]))
        x = x + self._talker.text_embedding(self._next_text(index, frame))
        position = self._position[index]
        length = max(s.pending.prompt.prefill_tokens + s.frames_made for s in sequences) + 1
        view = RowView(self._cache, _span(rows, index), position[:, None], length)
        hidden = self._talker(x[:, None], view)[:, 0]
        self._position[index] = position + 1
        code_0 = self._draw_code_0(rows, index, hidden, frame + 1)
        ended = (code_0 == self._checkpoint.talker.codec_eos_token_id).tolist()
        return {sequence.utterance_id: end for sequence, end in zip(sequences, ended, strict=True)}

    def _next_text(self, index: Tensor, frame: Tensor) -> Tensor:
        """The text id that goes with each row's frame: its trailing text, then tts_pad."""
        text = self._trailing[index, frame.clamp(max=self._trailing.shape[1] - 1)]
        return torch.where(frame < self._trailing_count[index], text, self._checkpoint.tts_pad_token_id)

    def _draw_code_0(self, rows: list[int], index: Tensor, hidden: Tensor, frame: Tensor) -> Tensor:
        """Draws code 0 of each row's frame number `frame` from the talker's hidden state, and keeps both."""
        sampling = self._talker_sampling.select(rows, index)
        logits = sampling.penalise(self._talker.logits(hidden), self._seen[index])
        forbidden = self._suppressed.expand(len(rows), -1).clone()
        forbidden[:, self._checkpoint.talker.codec_eos_token_id] = frame < MIN_FRAMES
        logits = logits.masked_fill(forbidden, -torch.inf)
        code_0 = sampling.draw(logits, uniform(self._seed[index], frame, 0))
        self._hidden[index] = hidden
        self._code_0[index] = code_0
        self._seen[index, code_0] = True
        return code_0

    def _vocode(self, plan: Plan) -> dict[int, AudioChunk]:
        """Decodes waiting frames; rows with the same number of frames share a call."""
        by_length: defaultdict[int, list[Sequence]] = defaultdict(list)
        for sequence, frames in plan.vocode:
            by_length[frames].append(sequence)
        audio = {}
        for frames, sequences in by_length.items():
            index = torch.tensor([sequence.row for sequence in sequences], device=self._device)
            first = torch.tensor([sequence.frames_vocoded for sequence in sequences], device=self._device)
            ring = (first[:, None] + torch.arange(frames, device=self._device)) % self._codes.shape[1]
            codes = self._codes[index[:, None], ring]
            pcm = self._codec_rows.decode(index, codes).float().cpu().numpy()
            codes_host = codes.cpu().numpy().astype(np.int16)
            for position, sequence in enumerate(sequences):
                audio[sequence.utterance_id] = AudioChunk(pcm[position], codes_host[position])
        return audio


def resolve_device(name: str) -> str:
    """`auto` is the first CUDA card, or the CPU."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is what the released weights are in on a GPU, and float32 on a CPU, which computes it faster."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in dtypes:
        raise ValueError(f"dtype must be auto, {', '.join(dtypes)}; not {name!r}")
    return dtypes[name]


def _span(rows: list[int], index: Tensor) -> Tensor | slice:
    """Consecutive ascending rows as a slice, others as they are."""
    return slice(rows[0], rows[-1] + 1) if rows == list(range(rows[0], rows[-1] + 1)) else index
