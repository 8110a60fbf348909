"""Runs plans on a GPU. A step is a few CUDA graphs and one event, which the host waits for one step later.

A step: prompts of new utterances, packed into one call → one frame of all rows → Code2Wav. All state is in tables on
the device, indexed by row. Batches are padded with a dummy row. On a CPU the same kernels run in Triton's interpreter,
for tests.

Code2Wav has a CUDA stream of its own. It decodes a step's audio while the next step's frame is made, because a frame
leaves most of the device idle. If all rows have just begun, the next frame waits for their first audio instead.
Code2Wav reads frames of the ring that the next frame does not write, and each stream keeps its own state in order.
"""

import logging
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce_engine.batching.capacity import DEVICE
from vivavoce_engine.batching.isolation import failing_for_memory, isolated
from vivavoce_engine.batching.messages import AudioChunk
from vivavoce_engine.batching.runner import Attention, Outcome, Step
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.device import arithmetic_of, copy_into, to_device, to_host
from vivavoce_engine.gpu.codec.decoder import GpuCodec
from vivavoce_engine.gpu.graphs import Graphs, bucket_of
from vivavoce_engine.gpu.heads import AXES
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.memory import position_bytes, settle
from vivavoce_engine.gpu.sampler import PARAMS
from vivavoce_engine.gpu.starts import RowStart, pack_tokens
from vivavoce_engine.gpu.steps import Steps
from vivavoce_engine.gpu.streams import DeviceEvent, DeviceStream
from vivavoce_engine.model import model_info
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.loader import load_models
from vivavoce_engine.models.prompts import embed_conditioning
from vivavoce_engine.models.talker import Talker
from vivavoce_engine.models.teacher_forcing import TeacherForcing
from vivavoce_engine.request import SamplingParams
from vivavoce_engine.runtime import Progress
from vivavoce_engine.text.answer import frontend_of
from vivavoce_engine.text.prompt import Prompt

log = logging.getLogger(__name__)


class GraphRunner:
    """One checkpoint on one device."""

    def __init__(
        self, name: str, checkpoint: Checkpoint, config: EngineConfig, device: torch.device, dtype: torch.dtype
    ) -> None:
        if device.type == "cuda":
            config = settle(config, checkpoint, device, dtype)
        self.device = device
        self._checkpoint, self.config = checkpoint, config
        # Parameters of the decoder's activations are prepared in float32, even if it computes in another dtype.
        talker, predictor, decoder = load_models(checkpoint, device, dtype, torch.float32)
        self.dtype = str(dtype).removeprefix("torch.")
        self._talker, self._predictor = talker, predictor
        self.text = frontend_of(checkpoint)
        self.info = model_info(name, checkpoint, self.text)
        self.position_bytes = position_bytes(checkpoint, dtype)
        networks, launch = (talker, predictor, decoder), Launcher.of(device)
        log.info("Triton's kernels on %s, %s", launch.card, dtype)
        with torch.inference_mode():
            pad_id, alignment = checkpoint.tts_pad_token_id, checkpoint.alignment
            self._steps = Steps(networks, checkpoint.talker, pad_id, config, alignment, launch)
        del decoder, networks  # GpuCodec has copied its weights, in the dtype that it computes in
        if device.type == "cuda":
            torch.cuda.empty_cache()  # memory of loading: float32 copies, unprojected embeddings
        self._frames, self._starts, self._codec = self._steps.frames, self._steps.starts, self._steps.codec
        self._tables = self._frames.tables
        self._dummy = self._tables.dummy_row
        self._lookahead_samples = checkpoint.codec.lookahead_samples
        self._text_sent = [0] * config.rows
        self._pages_sent = [0] * config.rows
        self._frame_stream = DeviceStream(device, priority=0)
        # Listeners wait for its audio. LOG.md has the gain.
        self._codec_stream = DeviceStream(device, priority=-1)
        self._first_audio: DeviceEvent | None = None
        self._graphs = Graphs(self._frame_stream.stream, eager=config.eager)
        self._codec_graphs = Graphs(self._codec_stream.stream, eager=config.eager)
        """Separate, because graphs that share memory must not run concurrently."""
        with torch.inference_mode():
            self._record()

    def synchronize(self) -> None:
        """Waits until the device has done all requested work."""
        for stream in (self._frame_stream, self._codec_stream):
            stream.synchronize()

    def arithmetic(self) -> tuple[object, ...]:
        """All that the last bits of its samples may depend on, beside weights, settings, code and packages."""
        return arithmetic_of(self.device)

    def speaker_embeddings(self) -> dict[str, NDArray[np.float32]]:
        """Returns the embeddings of the preset speakers by name, each [hidden] float32. Blends of voices are made of
        them."""
        return self._talker.speaker_embeddings(self._checkpoint.talker.spk_id)

    def forcing(self) -> TeacherForcing:
        """Teacher forcing with the modules, whose weights the kernels read too."""
        return TeacherForcing(self._checkpoint.talker, self._talker, self._predictor)

    @property
    def networks(self) -> tuple[Talker, CodePredictor, GpuCodec]:
        """The networks, for a profile that counts the bytes of their weights."""
        return self._talker, self._predictor, self._codec

    # ---- graphs -----------------------------------------------------------------------------------------------

    def _record(self) -> None:
        """Records every possible batch, the largest first. On a GPU this also compiles the kernels."""
        if self.device.type != "cuda":  # the interpreter compiles nothing, and is slow
            return
        frames, codec = list(self._steps.frame_graphs()), list(self._steps.codec_graphs())
        log.info("compiling kernels, which the next start finds in Triton's cache, and recording graphs")
        progress = Progress("compiled and recorded graphs", len(frames) + len(codec))
        streams = ((self._frame_stream, self._graphs, frames), (self._codec_stream, self._codec_graphs, codec))
        for stream, graphs, steps in streams:
            with stream.current():
                for key, launch in steps:
                    graphs.record(key, launch)
                    progress.advance()

    def _array(self, values: NDArray[np.generic]) -> Tensor:
        return to_device(torch.from_numpy(np.ascontiguousarray(values)), self.device)

    # ---- a step -----------------------------------------------------------------------------------------------

    capacity = DEVICE

    def launch(self, plan: Plan) -> Step:
        """Starts prefill, one frame of each row, and audio. Rows outside the plan keep their state bit for bit."""
        outcome = Outcome(plan, {}, {}, {})
        with torch.inference_mode():
            with self._frame_stream.current(after=self._first_audio):
                isolated(self._start, plan.start, outcome)
                step = [sequence for sequence in plan.step if sequence.utterance_id not in outcome.failed]
                ended = scores = None
                if step:
                    with failing_for_memory(step, outcome):
                        ended, scores = self._step(step)
                framed = self._frame_stream.record_event()
            with self._codec_stream.current(after=framed):
                vocode = [item for item in plan.vocode if item[0].utterance_id not in outcome.failed]
                begun = {sequence.utterance_id for sequence, _ in vocode if sequence.frames_vocoded == 0}
                pieces = self._vocode(vocode, outcome)
                done = self._codec_stream.record_event()
        # If all rows have just begun, listeners wait for first audio, and none of them for the next frame.
        self._first_audio = done if plan.start and len(plan.start) == len(plan.step) else None

        def wait() -> None:
            done.synchronize()
            if ended is not None:
                flags = ended.tolist()
                outcome.ended.update({sequence.utterance_id: bool(flags[at]) for at, sequence in enumerate(step)})
            if scores is not None:
                outcome.attention.append(Attention(step, scores.numpy()))
            for utterance_id, parts in pieces.items():
                pcm = np.concatenate([audio.numpy()[at] for audio, _, at in parts])
                if utterance_id in begun:  # a decoder that looks ahead has nothing to say in its first samples
                    pcm = pcm[self._lookahead_samples :]
                codes = np.concatenate([codes.numpy()[at] for _, codes, at in parts]).astype(np.int16)
                outcome.audio[utterance_id] = AudioChunk(pcm, codes)

        return Step(outcome, wait)

    def _start(self, sequences: SequenceOf[Sequence], _: Outcome) -> None:
        """Sets rows up and runs their prompts, packed one behind the other."""
        self._set_rows(sequences)
        tokens, given, ends, count = list[NDArray[np.int64]](), list[tuple[int, Tensor]](), dict[int, int](), 0
        for sequence in sequences:
            prompt = sequence.pending.prompt
            added = list(embed_conditioning(prompt, self._talker, self._predictor))
            parts = [(at, at + len(part)) for at, part in added]
            tokens.append(pack_tokens(prompt, sequence.row, parts, self._axes(prompt)))
            given += [(count + at, part) for at, part in added]
            count += prompt.prefill_tokens
            if not prompt.reads_first:  # only then does the prompt's last token draw the first code 0
                ends[sequence.row] = count - 1
        packed = np.concatenate(tokens)
        for begin in range(0, count, self._steps.largest_prompt):
            self._prefill(begin, packed[begin : begin + self._steps.largest_prompt], given, ends)
        with self._codec_stream.current():
            for sequence in sequences:
                self._codec.reset(sequence.row)
                conditioning = sequence.pending.prompt.conditioning
                if conditioning is not None and conditioning.codes is not None:
                    self._codec.prime(sequence.row, self._array(conditioning.codes.astype(np.int64)))

    def _axes(self, prompt: Prompt) -> NDArray[np.int64] | None:
        """Rotary positions of a prompt's tokens [AXES, T] where they have several axes."""
        if self._frames.token_axes is None:
            return None
        if prompt.axes is not None:
            return prompt.axes.astype(np.int64)
        return np.tile(np.arange(prompt.prefill_tokens), (AXES, 1))

    def _prefill(
        self, begin: int, tokens: NDArray[np.int64], given: SequenceOf[tuple[int, Tensor]], ends: Mapping[int, int]
    ) -> None:
        """Runs a part of the packed prompts, from token `begin` on.

        tokens [T, TOKEN_FIELDS] int64. `given`: (index of a token, embeddings [n, hidden] to add from that token on).
        `ends`: row → index of the last token of its prompt. Indices count all packed tokens.
        """
        end = begin + len(tokens)
        for at, embedded in given:
            first, last = max(begin, at), min(end, at + len(embedded))
            if first < last:
                self._frames.talker.x[first - begin : last - begin] = embedded[first - at : last - at]
        self._starts.upload_tokens(tokens, {row: at - begin for row, at in ends.items() if begin <= at < end})
        self._graphs.launch("tokens", self._starts.embed_tokens)
        size = bucket_of(len(tokens), self._steps.prompt_sizes)
        self._graphs.launch(("prompt", size), lambda: self._steps.prefill(size))

    def _set_rows(self, sequences: SequenceOf[Sequence]) -> None:
        """Uploads the first state of rows."""
        starts = []
        for sequence in sequences:
            pending, ids, row = sequence.pending, sequence.trailing.ids, sequence.row
            sampling = pending.request.sampling
            params = sampler_params(sampling.talker) + sampler_params(sampling.predictor)
            # What draws a code 0 moves the position on: the last token of a prompt, or what is read behind it.
            prompt, pages = pending.prompt, sequence.pages
            at = prompt.prefill_tokens - (not prompt.reads_first)
            min_frames, shift = sequence.min_frames, prompt.shift
            starts.append(RowStart(row, pending.seed, at, min_frames, len(ids), params, pages, shift))
            if ids:
                copy_into(self._tables.text_ids[row], ids)
            self._text_sent[row], self._pages_sent[row] = len(ids), len(pages)
        self._starts.upload_rows(starts)
        self._graphs.launch("rows", self._starts.set_rows)
        for sequence in sequences:
            given = sequence.pending.prompt.conditioning
            if given is not None and given.codes is not None and given.own_frames:
                spoken = self._array(given.codes[-given.own_frames :, 0].astype(np.int64))
                self._tables.seen[sequence.row].index_fill_(0, spoken, 1)

    def _send_text(self, sequence: Sequence) -> None:
        """Uploads the row's text ids that have arrived since the last step."""
        row, ids, sent = sequence.row, sequence.trailing.ids, self._text_sent[sequence.row]
        if sent < len(ids):
            copy_into(self._tables.text_ids[row, sent:], ids[sent:])
            copy_into(self._tables.text_counts[row : row + 1], [len(ids)])
            copy_into(self._tables.min_frames[row : row + 1], [sequence.min_frames])
            self._text_sent[row] = len(ids)

    def _send_pages(self, sequence: Sequence) -> None:
        """Uploads the row's pages that it has got since the last step."""
        row, pages, sent = sequence.row, sequence.pages, self._pages_sent[sequence.row]
        if sent < len(pages):
            copy_into(self._frames.cache.pages[row, sent:], pages[sent:])
            self._pages_sent[row] = len(pages)

    def _step(self, sequences: SequenceOf[Sequence]) -> tuple[Tensor, Tensor | None]:
        """Makes one frame of each sequence.

        Returns two host tensors, which are valid once the device is done: [B] int32 says which of them end their
        speech; [B, WINDOW] float32 has their windows of scores, if any of them asked for its own.
        """
        for sequence in sequences:
            self._send_text(sequence)
            self._send_pages(sequence)
        batch = bucket_of(len(sequences), self._steps.batches)
        rows = [sequence.row for sequence in sequences]
        copy_into(self._frames.rows, rows + [self._dummy] * (batch - len(rows)))
        windows = [sequence.window_at for sequence in sequences]
        scores = self._frames.scores if any(first is not None for first in windows) else None
        if scores is not None:
            copy_into(scores.first, [first or 0 for first in windows])
        self._graphs.launch(("frame", batch), lambda: self._frames.frame(batch))
        taken = None if scores is None else to_host(scores.window[: len(rows)])
        return to_host(self._frames.ended[: len(rows)]), taken

    def _vocode(
        self, vocode: Iterable[tuple[Sequence, int]], outcome: Outcome
    ) -> dict[int, list[tuple[Tensor, Tensor, int]]]:
        """Decodes the planned frames in calls of the recorded sizes → utterance id: (audio, codes, index in both) of
        each call. A call that finds no memory fails its utterances."""
        done: dict[int, list[tuple[Tensor, Tensor, int]]] = {sequence.utterance_id: [] for sequence, _ in vocode}
        todo = [Waiting(sequence, sequence.frames_vocoded, frames) for sequence, frames in vocode]
        for size in self._steps.pieces:
            while due := [item for item in todo if item.frames >= size]:
                batch = bucket_of(len(due), self._steps.codec_batches)
                fill = batch - len(due)
                with failing_for_memory([item.sequence for item in due], outcome):
                    copy_into(self._steps.codec_rows, [item.sequence.row for item in due] + [self._dummy] * fill)
                    copy_into(self._steps.codec_first, [item.first for item in due] + [0] * fill)
                    self._codec_graphs.launch((batch, size), lambda b=batch, t=size: self._steps.decode(b, t))  # type: ignore[misc]
                    audio, codes = (to_host(out[: len(due)]) for out in self._steps.decoded[batch, size])
                    for at, item in enumerate(due):
                        done[item.sequence.utterance_id].append((audio, codes, at))
                for item in due:
                    item.first += size
                    item.frames = 0 if item.sequence.utterance_id in outcome.failed else item.frames - size
        return {utterance_id: parts for utterance_id, parts in done.items() if utterance_id not in outcome.failed}


@dataclass
class Waiting:
    """Frames of an utterance that wait for Code2Wav: `frames` of them, from number `first` on."""

    sequence: Sequence
    first: int
    frames: int


def sampler_params(params: SamplingParams) -> list[float]:
    values = [params.temperature, float(params.top_k), params.top_p, params.repetition_penalty]
    assert len(values) == PARAMS
    return values
