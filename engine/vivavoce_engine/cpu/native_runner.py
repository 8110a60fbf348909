"""The runner of the CPU's own kernels. All state of a row is in arrays indexed by row, which C++ reads and writes.

It says what TorchRunner says (cpu/runner.py), which is its reference. This is the one place that calls the kernels:
whatever could make them read or write outside an array is checked here, before anything changes.
"""

import logging
import platform
import time
import weakref
from collections.abc import Sequence as SequenceOf
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce_engine.batching.capacity import CORES, HOST
from vivavoce_engine.batching.faults import failure_of
from vivavoce_engine.batching.messages import AudioChunk
from vivavoce_engine.batching.runner import Attention, Outcome, Step
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.batching.text_paths import WINDOW
from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.cpu import library as c
from vivavoce_engine.cpu.decoders import Decoders, Job
from vivavoce_engine.cpu.decoding import Decoding, Scratch
from vivavoce_engine.cpu.forcing import NativeForcing
from vivavoce_engine.cpu.host_runner import HostRunner, RowSettings
from vivavoce_engine.cpu.packing import Packer, WeightsDtype, address, aligned, pack, sparse
from vivavoce_engine.cpu.prompts import embed_prompt
from vivavoce_engine.cpu.runner import use_cpu_threads
from vivavoce_engine.cpu.threads import on_threads, share_out
from vivavoce_engine.model import model_info
from vivavoce_engine.models.loader import load_models
from vivavoce_engine.request import SamplingParams
from vivavoce_engine.runtime import return_freed_memory
from vivavoce_engine.text.prompt import Prompt, TextFrontend, Tokenizer

log = logging.getLogger(__name__)


class NativeRunner(HostRunner):
    """Runs one checkpoint with the kernels of native/. A row's bits depend on nothing but its own utterance."""

    device = torch.device("cpu")

    def __init__(self, name: str, checkpoint: Checkpoint, config: EngineConfig) -> None:
        """Loads the checkpoint.

        Raises:
            NoLibrary: the kernels cannot be used on this machine.
            Refused: they cannot compute the checkpoint's shapes.
            CheckpointError: as load_models.
        """
        self._library = c.load_library()
        self._c = self._library.functions
        hidden_size = checkpoint.talker.transformer.hidden_size
        use_cpu_threads(config.threads, hidden_size)
        self.config = config = on_threads(config, share_out(config.threads, hidden_size))
        threads = share_out(config.threads, hidden_size)
        self._checkpoint = checkpoint
        self.capacity = CORES if threads.beside else HOST
        self.text = TextFrontend(checkpoint, Tokenizer(checkpoint.path))
        self.info = model_info(name, checkpoint, self.text)
        self.dtype = weights_dtype(config.dtype)
        modules = load_models(checkpoint, self.device, None)
        self._networks = pack(checkpoint, modules, config.max_context, Packer(self.dtype))
        del modules
        return_freed_memory()
        self._rows = RowArrays(checkpoint, config)
        codec, memory = self._networks.codec, self._networks.memory
        self._rows_each_alone, decoders = threads.rows_each_alone, min(threads.decoders, config.rows)
        self._decoding = Decoding(self._library, codec, config.rows, 1 + decoders, memory)
        self._decoders, self._jobs = Decoders(decoders), list[Job]()
        self._scratch = Scratch(self._library)
        self._talker, self._predictor = address(self._networks.talker), address(self._networks.predictor)
        self._state = address(self._rows.structure)
        self._check_shapes()
        self._pool = self._c.vivavoce_pool(threads.together)  # None for one thread
        weakref.finalize(self, self._c.vivavoce_pool_end, self._pool).atexit = False
        log.info("kernels of level %s, %s", self._library.level, threads)

    def _check_shapes(self) -> None:
        """Raises Refused if the kernels cannot compute the checkpoint's shapes. PyTorch's modules may."""
        self._library.check(self._c.vivavoce_start_scratch(self._talker, 1))
        self._library.check(self._c.vivavoce_frame_scratch(self._talker, self._predictor, 1))

    def synchronize(self) -> None:
        """Does nothing, because what goes on behind a call is waited for with its step."""

    def speaker_embeddings(self) -> dict[str, NDArray[np.float32]]:
        """Name → embedding [hidden] float32 of the preset speakers, from which mixes are made."""
        names = self._checkpoint.talker.spk_id
        vectors = self._networks.codes.look_up(np.fromiter(names.values(), np.int64))
        return {name.lower(): vector for name, vector in zip(names, vectors, strict=True)}

    def arithmetic(self) -> tuple[object, ...]:
        """All that the last bits of its sums depend on: the library, the C library's sine and cosine, and the
        embeddings that PyTorch computed when the model was loaded."""
        tables = [self._networks.text, *self._networks.inputs]
        return (
            self._library.level,
            self._library.sha256,
            platform.machine(),
            platform.libc_ver(),
            tuple(table.digest() for table in tables),
        )

    def forcing(self) -> NativeForcing:
        """Teacher forcing with the packed weights."""
        return NativeForcing(self._library, self._networks)

    # ---- a step -----------------------------------------------------------------------------------------------

    def run(self, plan: Plan) -> Outcome:
        """Does prefill, one frame a row, and audio. Rows outside the plan keep their state bit for bit."""
        step = self.launch(plan)
        step.wait()
        return step.outcome

    def launch(self, plan: Plan) -> Step:
        """Does prefill and one frame a row, and begins the audio. `wait` helps with it, or finds it done."""
        outcome = super().run(plan)
        jobs, self._jobs = self._jobs, []
        step = Step(outcome, partial(self._finish, jobs, outcome), lambda: all(job.is_done for job in jobs))
        if self.capacity.steps_ahead:
            return step
        step.wait()
        return Step(outcome, lambda: None)

    def _put(self, *jobs: Job) -> None:
        """Adds work of the present step on Code2Wav's state of rows."""
        self._jobs += jobs
        self._decoders.put(jobs)

    def _finish(self, jobs: SequenceOf[Job], outcome: Outcome) -> None:
        """Waits for the work of a step, and notes its faults."""
        started_s = time.monotonic()
        self._decoders.finish(jobs)
        waited_s = time.monotonic() - started_s
        outcome.decoding_s = sum(job.took_s for job in jobs) if self.capacity.steps_ahead else waited_s
        for job in jobs:
            if job.error is not None and job.utterance_id not in outcome.failed:
                log.error("the audio of utterance %d failed", job.utterance_id, exc_info=job.error)
                outcome.failed[job.utterance_id] = failure_of(job.error)

    def _start(self, sequences: SequenceOf[Sequence], _: Outcome) -> None:
        """Sets the rows up and runs their prompts, one after the other."""
        prompts = [sequence.pending.prompt for sequence in sequences]
        embedded = [embed_prompt(prompt, self._networks) for prompt in prompts]
        spoken = [self._codes_before(prompt) for prompt in prompts]
        for x in embedded:
            assert 0 < len(x) <= self.config.max_context
        for sequence, x, codes in zip(sequences, embedded, spoken, strict=True):
            self._rows.settings.begin(sequence)
            scratch = self._scratch.take(self._c.vivavoce_start_scratch(self._talker, len(x)))
            self._library.check(
                self._c.vivavoce_start(self._talker, self._state, self._pool, sequence.row, len(x), address(x), scratch)
            )
            begin = partial(self._decoding.begin, sequence.row, codes, self._pool)
            self._put(Job(sequence.row, sequence.utterance_id, begin, is_shared=self._pool is not None))

    def _codes_before(self, prompt: Prompt) -> NDArray[np.int32]:
        """Codes [frames, groups] of the frames that a prompt's audio continues from."""
        groups = self._checkpoint.talker.num_code_groups
        given = prompt.conditioning
        if given is None or given.codes is None:
            return np.zeros((0, groups), np.int32)
        assert given.codes.ndim == 2
        assert given.codes.shape[1] == groups
        return np.ascontiguousarray(given.codes, np.int32)

    def _step(self, sequences: SequenceOf[Sequence], outcome: Outcome) -> None:
        """Completes one frame of each row, and records which rows end their speech after it."""
        for sequence in sequences:
            self._rows.settings.send_text(sequence)
        rows = np.array([sequence.row for sequence in sequences], np.int32)
        frames = np.array([sequence.frames_made for sequence in sequences], np.int32)
        positions = np.array([sequence.position for sequence in sequences], np.int32)
        begins = [sequence.window_at for sequence in sequences]
        told = self._checkpoint.alignment is not None
        windows = np.array([begin if told and begin is not None else -1 for begin in begins], np.int32)
        assert len(set(rows.tolist())) == len(rows) > 0
        assert 0 <= rows.min() <= rows.max() < self.config.rows
        assert frames.min() >= 0
        assert 0 <= positions.min() <= positions.max() < self.config.max_context
        self._rows.check_text(rows, frames, len(self._networks.text.values))
        scores = np.full((len(rows), WINDOW), -np.inf, np.float32)
        ended = np.zeros(len(rows), np.uint8)
        scratch = self._scratch.take(self._c.vivavoce_frame_scratch(self._talker, self._predictor, len(rows)))
        result = self._c.vivavoce_frame(
            self._talker,
            self._predictor,
            self._state,
            self._pool,
            len(rows),
            *(address(array) for array in (rows, frames, positions, windows, scores, ended)),
            scratch,
        )
        self._library.check(result)
        flags = ended.astype(bool).tolist()
        outcome.ended.update((sequence.utterance_id, end) for sequence, end in zip(sequences, flags, strict=True))
        if windows.max() >= 0:
            outcome.attention.append(Attention(sequences, scores))

    def _vocode(self, frames: int, sequences: SequenceOf[Sequence], outcome: Outcome) -> None:
        """Begins to decode the next `frames` waiting frames of each row, whose codes are copied out of the ring.

        All memory is taken before the first row moves on.
        """
        pool = self._pool if len(sequences) < self._rows_each_alone else None
        jobs: list[Job] = []
        codes = [self._rows.frames(sequence.row, sequence.frames_vocoded, frames) for sequence in sequences]
        chunks = [AudioChunk(self._decoding.room_for(each), each.astype(np.int16)) for each in codes]
        for sequence, each, chunk in zip(sequences, codes, chunks, strict=True):
            decode = partial(self._decoding.decode, sequence.row, each, pool, chunk.pcm)
            jobs.append(Job(sequence.row, sequence.utterance_id, decode, is_shared=pool is not None))
            outcome.audio[sequence.utterance_id] = chunk
        self._put(*jobs)


def weights_dtype(name: str) -> WeightsDtype:
    """The dtype of packed weights for the setting `dtype`."""
    assert name in ("auto", "float32", "bfloat16", "int8")
    return "float32" if name == "auto" else cast("WeightsDtype", name)


class SamplingArray:
    """The SamplingParams of all rows."""

    def __init__(self, rows: int) -> None:
        self.array = (c.Sampling * rows)()

    def set(self, row: int, params: SamplingParams) -> None:
        top_k = min(params.top_k, np.iinfo(np.int32).max)
        self.array[row] = c.Sampling(params.temperature, params.top_p, params.repetition_penalty, top_k)


class RowArrays:
    """The state of all rows but that of Code2Wav."""

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig) -> None:
        talker, rows = checkpoint.talker, config.rows
        self._codes = aligned((rows, config.max_chunk_frames, talker.num_code_groups), np.int32)
        """Ring of frames that wait for the decoder: frame f is at index f modulo the ring's length."""
        self._trailing = aligned((rows, config.max_context), np.int32)
        self._trailing_count = aligned((rows,), np.int32)
        seed, min_frames = aligned((rows,), np.int64), aligned((rows,), np.int32)
        seen = aligned((rows, talker.vocab_size), np.uint8)
        samplings = SamplingArray(rows), SamplingArray(rows)
        self.settings = RowSettings(
            seed,
            self._trailing,
            self._trailing_count,
            min_frames,
            seen,
            *samplings,
            lambda ids: np.array(ids, np.int64),
            {},
        )
        large, small = talker.transformer, talker.predictor
        caches = [
            sparse((rows, shape.num_hidden_layers, positions, shape.num_key_value_heads * shape.head_dim))
            for shape, positions in ((large, config.max_context), (small, talker.num_code_groups))
            for _ in ("keys", "values")
        ]
        hidden, code_0 = aligned((rows, large.hidden_size)), aligned((rows,), np.int32)
        arrays: list[Any] = [*caches, hidden, seed, code_0, self._trailing, self._trailing_count, min_frames]
        arrays += [self._codes, seen, *(sampling.array for sampling in samplings)]
        self._memory = arrays
        self.structure = c.Rows(
            *(address(array) for array in arrays), rows, config.max_chunk_frames, config.max_context
        )

    def frames(self, row: int, first: int, count: int) -> NDArray[np.int32]:
        """Codes [count, groups] of a row's waiting frames from `first` on."""
        ring = self._codes.shape[1]
        assert 0 < count <= ring
        return cast("NDArray[np.int32]", self._codes[row, np.arange(first, first + count) % ring])

    def check_text(self, rows: NDArray[np.int32], frames: NDArray[np.int32], known: int) -> None:
        """Raises IndexError if a text id that the rows are about to read is not among the `known` ones."""
        ids = self._trailing[rows, np.minimum(frames, self._trailing.shape[1] - 1)]
        wrong = (frames < self._trailing_count[rows]) & ((ids < 0) | (ids >= known))
        if wrong.any():
            raise IndexError(f"text id {ids[wrong][0]} is not in a table of {known} rows")
