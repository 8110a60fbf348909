"""The runner of plain PyTorch modules. All state of a row is in tensors indexed by row; nothing else outlives a step.

A frame: code predictor (codes 1..G-1) → sum of the frame's code embeddings + the next text embedding → talker step →
code 0 of the next frame, or end of speech. Reference: qwen-tts 0.1.1, Qwen3TTSTalkerForConditionalGeneration. A chat
model does the same from the talker's step on: its first frame needs the first text id alone (Prompt.reads_first).
"""

import logging
import os
from collections.abc import Sequence as SequenceOf
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vivavoce_engine.batching.messages import AudioChunk
from vivavoce_engine.batching.runner import Attention, Outcome
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.batching.text_paths import WINDOW
from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.config import EngineConfig, NumberOrAuto
from vivavoce_engine.cpu.host_runner import HostRunner, RowSettings
from vivavoce_engine.cpu.sampling import SamplingTable, uniform
from vivavoce_engine.cpu.threads import threads_for
from vivavoce_engine.device import arithmetic_of, resolve_dtype, use_device
from vivavoce_engine.model import model_info
from vivavoce_engine.models.codec_decoder import CodecRows
from vivavoce_engine.models.layers import HeadScores, KVCache, RowView
from vivavoce_engine.models.loader import load_models
from vivavoce_engine.models.prompts import axes_of, embed_prompt
from vivavoce_engine.models.talker import CONTROL_CODES
from vivavoce_engine.models.teacher_forcing import TeacherForcing
from vivavoce_engine.text.answer import frontend_of

log = logging.getLogger(__name__)


class TorchRunner(HostRunner):
    """Runs one checkpoint on one device, without graphs or kernels of its own."""

    def __init__(self, name: str, checkpoint: Checkpoint, config: EngineConfig) -> None:
        self.device = torch.device("cpu" if config.device == "auto" else config.device)
        dtype = resolve_dtype(config.dtype, self.device)
        self.dtype = str(dtype).removeprefix("torch.")
        if self.device.type == "cpu":
            use_cpu_threads(config.threads, checkpoint.talker.transformer.hidden_size)
        self._checkpoint, self.config = checkpoint, config
        self._reads_first = checkpoint.chat is not None
        self._lookahead_samples = checkpoint.codec.lookahead_samples
        self._talker, self._predictor, decoder = load_models(checkpoint, self.device, dtype)
        self.text = frontend_of(checkpoint)
        self.info = model_info(name, checkpoint, self.text)
        rows, talker = config.rows, checkpoint.talker
        like = self._talker.codec_head.weight
        self._cache = KVCache(talker.transformer, rows, config.max_context, like)
        self._frame_cache = self._predictor.frame_cache(talker, rows)
        self._codec_rows = CodecRows(decoder, rows, like)
        self.models: dict[str, nn.Module] = {
            "talker": self._talker,
            "code predictor": self._predictor,
            "Code2Wav": decoder,
        }
        self._hidden = like.new_zeros(rows, talker.transformer.hidden_size)
        self._code_0 = self._ints(rows)
        self._seed = self._ints(rows)
        self._trailing = self._ints(rows, config.max_context)
        self._trailing_count = self._ints(rows)
        self._min_frames = self._ints(rows)
        self._seen = torch.zeros(rows, talker.vocab_size, dtype=torch.bool, device=self.device)
        self._codes = self._ints(rows, config.max_chunk_frames, talker.num_code_groups)
        """Ring of frames that wait for the decoder: frame f is at index f modulo the ring's length."""
        self._predicted_codebooks = torch.arange(1, talker.num_code_groups, device=self.device)[:, None]
        self._talker_sampling = SamplingTable(rows, self.device)
        self._predictor_sampling = SamplingTable(rows, self.device)
        self._settings = RowSettings(
            self._seed,
            self._trailing,
            self._trailing_count,
            self._min_frames,
            self._seen,
            self._talker_sampling,
            self._predictor_sampling,
            partial(torch.tensor, dtype=torch.int64, device=self.device),
            {},
        )
        self._suppressed = self._suppression(talker.vocab_size, talker.codec_eos_token_id)

    def run(self, plan: Plan) -> Outcome:
        """Does prefill, one frame a row, and audio. Rows outside the plan keep their state bit for bit."""
        use_device(self.device)  # whichever thread this is
        with torch.inference_mode():
            return super().run(plan)

    def synchronize(self) -> None:
        """Waits until the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def arithmetic(self) -> tuple[object, ...]:
        """All that the last bits of its samples may depend on, beside weights, settings, code and packages."""
        return arithmetic_of(self.device)

    def forcing(self) -> TeacherForcing:
        """Teacher forcing with the runner's modules."""
        return TeacherForcing(self._checkpoint.talker, self._talker, self._predictor)

    # ---- set-up -----------------------------------------------------------------------------------------------

    def speaker_embeddings(self) -> dict[str, NDArray[np.float32]]:
        """Name → embedding [hidden] float32 of the preset speakers, from which mixes are made."""
        return self._talker.speaker_embeddings(self._checkpoint.talker.spk_id)

    def _ints(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def _suppression(self, vocab_size: int, end_of_speech: int) -> Tensor:
        suppressed = torch.zeros(vocab_size, dtype=torch.bool, device=self.device)
        suppressed[vocab_size - CONTROL_CODES :] = True
        suppressed[end_of_speech] = False
        return suppressed

    # ---- a step -----------------------------------------------------------------------------------------------

    def _start(self, sequences: SequenceOf[Sequence], _: Outcome) -> None:
        """Sets the rows up and runs their prompts, one after the other, so that none depends on the others."""
        for sequence in sequences:
            self._settings.begin(sequence)
        prompts = [sequence.pending.prompt for sequence in sequences]
        rows = [sequence.row for sequence in sequences]
        index = torch.tensor(rows, device=self.device)
        hidden = []
        for row, prompt in zip(rows, prompts, strict=True):
            x = embed_prompt(prompt, self._talker, self._predictor)
            view = RowView(self._cache, [row], [0], x.shape[1], positions=axes_of(prompt, self.device))
            hidden.append(self._talker(x, view)[:, -1])
        if not self._reads_first:
            self._draw_code_0(rows, index, torch.cat(hidden), self._ints(len(rows)))
        self._codec_rows.reset(index)
        for row, prompt in zip(rows, prompts, strict=True):
            if prompt.conditioning is not None and prompt.conditioning.codes is not None:
                self._codec_rows.prime(row, torch.tensor(prompt.conditioning.codes, device=self.device).long())

    def _step(self, sequences: SequenceOf[Sequence], outcome: Outcome) -> None:
        """Completes one frame of each row, and records which rows end their speech after it, or in its place."""
        for sequence in sequences:
            self._settings.send_text(sequence)
        sequences = sorted(sequences, key=lambda sequence: sequence.row)
        rows = [sequence.row for sequence in sequences]
        made = [sequence.frames_made for sequence in sequences]
        index, frame = (torch.tensor(values, device=self.device) for values in (rows, made))
        if self._reads_first:
            code_0 = self._read_and_make(sequences, rows, index, frame)
        else:
            code_0 = self._make_and_read(sequences, outcome, index, frame)
        ended = (code_0 == self._checkpoint.talker.codec_eos_token_id).tolist()
        outcome.ended.update({sequence.utterance_id: end for sequence, end in zip(sequences, ended, strict=True)})

    def _make_and_read(self, sequences: SequenceOf[Sequence], outcome: Outcome, index: Tensor, frame: Tensor) -> Tensor:
        """Makes each row's `frame`, reads the text id behind it, and draws code 0 of the next frame [B]."""
        rows = [sequence.row for sequence in sequences]
        codes = self._predict(rows, index, frame, self._hidden[index], self._code_0[index])
        self._codes[index, frame % self._codes.shape[1]] = codes
        scores = self._head_scores(sequences)
        hidden = self._read(sequences, index, frame, self._embedded(codes), scores)
        code_0 = self._draw_code_0(rows, index, hidden, frame + 1)
        if scores is not None:
            windows = np.full((len(sequences), WINDOW), -np.inf, np.float32)
            for number, found in scores.found.items():
                windows[number, : len(found)] = found.float().cpu().numpy()
            outcome.attention.append(Attention(sequences, windows))
        return code_0

    def _read_and_make(self, sequences: SequenceOf[Sequence], rows: list[int], index: Tensor, frame: Tensor) -> Tensor:
        """Reads each row's text id beside the frame before, draws code 0 of `frame` [B], and makes the frame.

        The first id stands beside the code that opens the speech. A row whose speech ends here gets no codes.
        """
        before = self._codes[index, (frame - 1) % self._codes.shape[1]]
        opening = torch.tensor([sequence.pending.prompt.opening_codec_id for sequence in sequences], device=self.device)
        x = torch.where((frame == 0)[:, None], self._talker.codec_embedding(opening), self._embedded(before))
        hidden = self._read(sequences, index, frame, x)
        code_0 = self._drawn_code_0(rows, index, hidden, frame)
        goes_on = code_0 != self._checkpoint.talker.codec_eos_token_id
        if goes_on.any():
            going = [row for row, goes in zip(rows, goes_on.tolist(), strict=True) if goes]
            codes = self._predict(going, index[goes_on], frame[goes_on], hidden[goes_on], code_0[goes_on])
            self._codes[index[goes_on], frame[goes_on] % self._codes.shape[1]] = codes
        self._keep_code_0(index, hidden, code_0)
        return code_0

    def _predict(self, rows: list[int], index: Tensor, frame: Tensor, hidden: Tensor, code_0: Tensor) -> Tensor:
        """All codes of each row's `frame` [B, G], from the talker's `hidden` state [B, hidden] and code 0 [B]."""
        sampling = self._predictor_sampling.select(rows, index)
        noise = uniform(self._seed[index], frame, self._predicted_codebooks)
        codes: Tensor = self._predictor(
            hidden, code_0, self._frame_cache, lambda group, logits: sampling.draw(logits, noise[group - 1])
        )
        return codes

    def _embedded(self, codes: Tensor) -> Tensor:
        """codes [B, G] of a frame → the sum of their embeddings [B, hidden]."""
        return self._predictor.embed_frame(codes, self._talker.codec_embedding(codes[:, 0]))

    def _read(
        self,
        sequences: SequenceOf[Sequence],
        index: Tensor,
        frame: Tensor,
        codec: Tensor,
        scores: HeadScores | None = None,
    ) -> Tensor:
        """The talker's step with the codec side `codec` [B, hidden] and each row's text id → hidden states."""
        x = codec + self._talker.text_embedding(self._next_text(index, frame))
        places = [sequence.position for sequence in sequences]
        shifts = [sequence.pending.prompt.shift for sequence in sequences]
        positions = torch.tensor(places, device=self.device) + torch.tensor(shifts, device=self.device)
        view = RowView(self._cache, [sequence.row for sequence in sequences], places, 1, scores, positions[:, None])
        hidden: Tensor = self._talker(x[:, None], view)[:, 0]
        return hidden

    def _head_scores(self, sequences: SequenceOf[Sequence]) -> HeadScores | None:
        """The keys whose scores the talker tells, of each row; None if no utterance asked for the times of words."""
        alignment, begins = self._checkpoint.alignment, [sequence.window_at for sequence in sequences]
        if alignment is None or not any(begin is not None for begin in begins):
            return None
        spans = [None if begin is None else (begin, begin + WINDOW) for begin in begins]
        return HeadScores(alignment.layer, alignment.head, spans)

    def _next_text(self, index: Tensor, frame: Tensor) -> Tensor:
        """Text id of each row's `frame`: its trailing text, then tts_pad."""
        text = self._trailing[index, frame.clamp(max=self._trailing.shape[1] - 1)]
        return torch.where(frame < self._trailing_count[index], text, self._checkpoint.tts_pad_token_id)

    def _draw_code_0(self, rows: list[int], index: Tensor, hidden: Tensor, frame: Tensor) -> Tensor:
        """Draws code 0 of each row's `frame` from the talker's `hidden` state [B, hidden], and stores both."""
        code_0 = self._drawn_code_0(rows, index, hidden, frame)
        self._keep_code_0(index, hidden, code_0)
        return code_0

    def _drawn_code_0(self, rows: list[int], index: Tensor, hidden: Tensor, frame: Tensor) -> Tensor:
        """Code 0 of each row's `frame`, drawn from the talker's `hidden` state [B, hidden]. Changes nothing."""
        sampling = self._talker_sampling.select(rows, index)
        logits = sampling.penalise(self._talker.logits(hidden), self._seen[index])
        forbidden = self._suppressed.expand(len(rows), -1).clone()
        forbidden[:, self._checkpoint.talker.codec_eos_token_id] = frame < self._min_frames[index]
        logits = logits.masked_fill(forbidden, -torch.inf)
        return sampling.draw(logits, uniform(self._seed[index], frame, 0))

    def _keep_code_0(self, index: Tensor, hidden: Tensor, code_0: Tensor) -> None:
        self._hidden[index] = hidden
        self._code_0[index] = code_0
        self._seen[index, code_0] = True

    def _vocode(self, frames: int, sequences: SequenceOf[Sequence], outcome: Outcome) -> None:
        """Decodes the next `frames` waiting frames of each row."""
        index = torch.tensor([sequence.row for sequence in sequences], device=self.device)
        first = torch.tensor([sequence.frames_vocoded for sequence in sequences], device=self.device)
        ring = (first[:, None] + torch.arange(frames, device=self.device)) % self._codes.shape[1]
        codes = self._codes[index[:, None], ring]
        pcm = self._codec_rows.decode(index, codes).float().cpu().numpy()
        codes_host = codes.cpu().numpy().astype(np.int16)
        for number, sequence in enumerate(sequences):
            # A decoder that looks ahead has nothing to say in the first samples of a speech.
            skipped = 0 if sequence.frames_vocoded else self._lookahead_samples
            outcome.audio[sequence.utterance_id] = AudioChunk(pcm[number, skipped:], codes_host[number])


def use_cpu_threads(threads: NumberOrAuto, hidden_size: int) -> None:
    """Sets PyTorch's threads for a talker of this width. `auto` leaves them as OMP_NUM_THREADS has set them."""
    if threads != "auto" or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_for(threads, hidden_size))
