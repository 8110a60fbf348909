"""The CPU's own kernels say what PyTorch's modules say, and a row's bits depend on nothing but its own utterance."""

import asyncio
import ctypes
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from vivavoce_bench.cards.layout import ShapeName
from vivavoce_engine import (
    Engine,
    EngineConfig,
    EngineError,
    Finished,
    NotServing,
    SynthesisFailed,
    SynthesisRequest,
)
from vivavoce_engine.batching.runner import Outcome, builder_of
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence as Running
from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.checkpoint.files import Checkpoint, read_checkpoint
from vivavoce_engine.config import LEVEL_VARIABLE
from vivavoce_engine.cpu import build, library
from vivavoce_engine.cpu.build import digest_of, digest_path
from vivavoce_engine.cpu.native_runner import NativeRunner
from vivavoce_engine.cpu.packing import address, sparse
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.models.loader import load_models
from vivavoce_engine.text.prompt import Conditioning
from vivavoce_eval.sentences import pick, read_sentences
from vivavoce_voice import CHECKPOINT

from tests.engine.conftest import Checkpoints
from tests.support.cpu_runners import CpuRunner, skip_without_kernels
from tests.support.speaking import GREEDY, Speech, join, running, speak
from tests.support.utterances import pending

AUDIO_TOLERANCE = 1e-5
"""Largest difference of samples in [-1, 1] that the order of float32 sums may make."""
SCORE_TOLERANCE = 1e-3
TEXTS = ("Hello, world! The quick brown fox.", "你好。今天天气很好。", "It's 7:45, isn't it?")
SHORT, LONG = 3, 20
"""Sentences of the shipped voice in the plain test, and in the long one."""


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    skip_without_kernels()


def config_of(**settings: Any) -> EngineConfig:
    return EngineConfig(**{"max_context": 192, "max_streams": 3, "device": "cpu", **settings})


def said(runner: CpuRunner, requests: Sequence[SynthesisRequest]) -> list[Speech]:
    with running(Engine(runner, runner.config)) as engine:
        return speak(engine, *requests)


def assert_twins(native: Sequence[Speech], plain: Sequence[Speech]) -> None:
    for number, (one, other) in enumerate(zip(native, plain, strict=True)):
        assert np.array_equal(one.codes, other.codes), number
        assert one.finished == other.finished, number
        assert np.abs(one.pcm - other.pcm).max() < AUDIO_TOLERANCE, number


def requests_for(checkpoint: Checkpoint, **settings: Any) -> list[SynthesisRequest]:
    speaker = next(iter(checkpoint.talker.spk_id))
    common = {"speaker": speaker, "language": "english", "max_frames": 24, **settings}
    return [
        SynthesisRequest(text, seed=number, streaming_text=number == 1, **common) for number, text in enumerate(TEXTS)
    ]


# ---- twins


@pytest.mark.parametrize("shape", ["tiny", "tiny_noproj", "tiny_32"])
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_tiny_models_say_the_same(checkpoints: Checkpoints, shape: ShapeName, sampled: bool) -> None:
    checkpoint = read_checkpoint(checkpoints(shape, "custom_voice"))
    requests = requests_for(checkpoint, **({} if sampled else {"sampling": GREEDY}))
    native, plain = (said(made("x", checkpoint, config_of()), requests) for made in (NativeRunner, TorchRunner))
    assert_twins(native, plain)


def shipped_requests(count: int, speakers: Sequence[str]) -> list[SynthesisRequest]:
    """Held-out sentences with the checkpoint's own sampling, and one greedy.

    No draw of these seeds is as near to the border of two codes as the rounding of sums. Where one is, as with seed 0
    of the first sentence (1e-7 from a border), the twins may draw neighbours.
    """
    sampled = [
        SynthesisRequest(sentence.text, speaker=speakers[sentence.number % len(speakers)], seed=100 + sentence.number)
        for sentence in pick(read_sentences(), count)
    ]
    return [*sampled, replace(sampled[0], sampling=GREEDY)]


@pytest.mark.parametrize("count", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
def test_the_shipped_voice_says_the_same(count: int) -> None:
    checkpoint = read_checkpoint(CHECKPOINT)
    native = NativeRunner("x", checkpoint, config_of(max_context=512))
    requests = [
        replace(request, sampling=request.sampling if request.sampling == GREEDY else native.info.sampling)
        for request in shipped_requests(count, native.info.speakers)
    ]
    assert_twins(said(native, requests), said(TorchRunner("x", checkpoint, config_of(max_context=512)), requests))


@pytest.mark.parametrize("level", library.levels_here())
def test_every_level_says_the_same(level: str, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    if not library.file_of(level).is_file():
        pytest.skip(f"the kernels are not built for {level}")
    monkeypatch.setenv(LEVEL_VARIABLE, level)
    assert library.load_library().functions.vivavoce_isa().decode() == level
    checkpoint = read_checkpoint(checkpoints("tiny", "custom_voice"))
    requests = requests_for(checkpoint)
    native, plain = (said(made("x", checkpoint, config_of()), requests) for made in (NativeRunner, TorchRunner))
    assert_twins(native, plain)


# ---- a step at a time


@dataclass
class Stepped:
    """A runner that is led step by step, and everything that it tells."""

    runner: CpuRunner

    def begin(self, request: SynthesisRequest, row: int = 0, conditioning: Conditioning | None = None) -> Running:
        prompt = builder_of(self.runner.text).prompt(request)
        if conditioning is not None:
            prompt = replace(prompt, conditioning=conditioning)
        waiting = replace(pending(row + 1, max_frames=64), request=request, prompt=prompt, seed=request.seed or 0)
        waiting.trailing.ids[:] = prompt.trailing_ids
        waiting.trailing.complete = True
        sequence = Running(waiting, row)
        self.ran(Plan((sequence,), (), ()))
        return sequence

    def step(self, *sequences: Running) -> Outcome:
        outcome = self.ran(Plan((), sequences, ()))
        for sequence in sequences:
            sequence.add_frame()
        return outcome

    def decode(self, sequence: Running, frames: int) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
        chunk = self.ran(Plan((), (), ((sequence, frames),))).audio[sequence.utterance_id]
        sequence.frames_vocoded += frames
        return chunk.codes, chunk.pcm

    def ran(self, plan: Plan) -> Outcome:
        outcome = self.runner.run(plan)
        assert outcome.failed == {}
        return outcome


@pytest.fixture(scope="module")
def tiny(checkpoints: Checkpoints) -> Checkpoint:
    """A random talker, one of whose heads is taken for one that follows the text."""
    return replace(read_checkpoint(checkpoints("tiny", "custom_voice")), alignment=Alignment(1, 1, -45))


@pytest.fixture(scope="module")
def pair(tiny: Checkpoint) -> tuple[Stepped, Stepped]:
    native, plain = (made("x", tiny, config_of(max_chunk_frames=24)) for made in (NativeRunner, TorchRunner))
    return Stepped(native), Stepped(plain)


def test_the_scores_of_word_times_are_those_of_the_modules(pair: tuple[Stepped, Stepped], tiny: Checkpoint) -> None:
    request = replace(requests_for(tiny)[0], word_times=True)
    silent = replace(request, word_times=False)
    told = []
    for stepped in pair:
        asks, other = stepped.begin(request, 0), stepped.begin(silent, 1)
        outcomes = [stepped.step(asks, other) for _ in range(6)]
        assert [[each.sequences for each in outcome.attention] for outcome in outcomes] == [[[asks, other]]] * 6
        told.append(np.stack([outcome.attention[0].scores[0] for outcome in outcomes]))
        assert not any(outcome.attention for outcome in [stepped.step(other) for _ in range(2)])
    native, plain = told
    seen = np.isfinite(plain)
    assert seen.any()
    assert not seen.all(), "the query sees all of the window"
    assert np.array_equal(np.isfinite(native), seen)
    assert np.abs(native[seen] - plain[seen]).max() < SCORE_TOLERANCE


@pytest.mark.parametrize("frames", [1, 3, 40])
@pytest.mark.parametrize("own_frames", [0, 1])
def test_speech_goes_on_from_given_frames(
    pair: tuple[Stepped, Stepped], tiny: Checkpoint, frames: int, own_frames: int
) -> None:
    """Fewer frames than the convolutions remember, and more, as a reference's codes and spoken context give them."""
    rng = np.random.default_rng(frames)
    codes = rng.integers(0, 2048, (frames, tiny.talker.num_code_groups)).astype(np.int16)
    embedding = rng.standard_normal(tiny.talker.transformer.hidden_size).astype(np.float32)
    request = SynthesisRequest(TEXTS[0] * 4, speaker="ryan", language="english", seed=5)
    room = builder_of(pair[0].runner.text).prompt(request).prefill_tokens
    given = Conditioning(embedding, 2, codes, room - frames, own_frames)
    assert room > 40
    heard = []
    for stepped in pair:
        sequence = stepped.begin(request, 2, given)
        for _ in range(5):
            stepped.step(sequence)
        heard.append(stepped.decode(sequence, 5))
    (codes_1, pcm_1), (codes_2, pcm_2) = heard
    assert np.array_equal(codes_1, codes_2)
    assert np.abs(pcm_1 - pcm_2).max() < AUDIO_TOLERANCE


def test_pieces_of_any_length_are_the_same_bits(pair: tuple[Stepped, Stepped], tiny: Checkpoint) -> None:
    native = pair[0]
    request = requests_for(tiny)[0]

    def pcm(*sizes: int) -> bytes:
        sequence = native.begin(request)
        for _ in range(sum(sizes)):
            native.step(sequence)
        return np.concatenate([native.decode(sequence, size)[1] for size in sizes]).tobytes()

    whole = pcm(20)
    for sizes in ((1,) * 20, (2, 7, 11), (3, 4, 5, 8), (19, 1), (8, 8, 4)):
        assert pcm(*sizes) == whole, sizes


def test_a_row_outside_the_plan_keeps_its_bits(pair: tuple[Stepped, Stepped], tiny: Checkpoint) -> None:
    native = pair[0]
    first, second, _ = requests_for(tiny)
    alone = native.begin(first, 0)
    for _ in range(8):
        native.step(alone)
    expected = native.decode(alone, 8)
    again = native.begin(first, 1)
    for number in range(8):
        native.step(again)
        if number in (2, 5):
            neighbour = native.begin(second, number % 3)
            native.step(neighbour)
            native.decode(neighbour, 1)
    actual = native.decode(again, 8)
    assert np.array_equal(actual[0], expected[0])
    assert actual[1].tobytes() == expected[1].tobytes()


# ---- the settings


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_rounded_weights_speak_and_repeat_themselves(tiny: Checkpoint, dtype: str) -> None:
    requests = requests_for(tiny, sampling=GREEDY)
    config = config_of(dtype=dtype)
    together = said(NativeRunner("x", tiny, config), requests)
    alone = [said(NativeRunner("x", tiny, config), [request])[0] for request in requests]
    for one, other in zip(together, alone, strict=True):
        assert np.array_equal(one.codes, other.codes)
        assert one.pcm.tobytes() == other.pcm.tobytes()
        assert np.isfinite(one.pcm).all()
    exact = said(NativeRunner("x", tiny, config_of()), requests)
    assert any(one.pcm.tobytes() != other.pcm.tobytes() for one, other in zip(together, exact, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("wide", [False, True], ids=["beside", "together"])
def test_threads_change_no_bit(tiny: Checkpoint, dtype: str, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if wide:
        monkeypatch.setattr("vivavoce_engine.cpu.threads.SMALL_HIDDEN_SIZE", 1)
    requests = [replace(request, word_times=True) for request in requests_for(tiny)]
    one, three = (
        said(NativeRunner("x", tiny, config_of(threads=threads, dtype=dtype)), requests) for threads in (1, 3)
    )
    assert_same_bits(one, three)


def test_rows_of_a_wide_model_are_decoded_by_several_threads(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce_engine.cpu.threads.SMALL_HIDDEN_SIZE", 1)
    runner = NativeRunner("x", tiny, config_of(threads=3))
    requests = requests_for(tiny)
    assert len(requests) >= runner._rows_each_alone == 2
    pools: defaultdict[int, set[bool]] = defaultdict(set)
    inner = runner._decoding.decode

    def decode(row: int, codes: NDArray[np.int32], pool: int | None, *rest: Any) -> NDArray[np.float32]:
        pools[rest[1] if len(rest) > 1 else 0].add(pool is None)
        return inner(row, codes, pool, *rest)

    monkeypatch.setattr(runner._decoding, "decode", decode)
    said(runner, requests)
    assert pools[0], "the thread that waits decodes too"
    assert all(pools[thread] == {True} for thread in pools if thread), "no other thread uses the pool"


def assert_same_bits(one: Sequence[Speech], other: Sequence[Speech]) -> None:
    for number, (speech, again) in enumerate(zip(one, other, strict=True)):
        assert np.array_equal(speech.codes, again.codes), number
        assert speech.pcm.tobytes() == again.pcm.tobytes(), number
        assert speech.words == again.words, number
        assert speech.finished == again.finished, number


class Interfered:
    """Code2Wav of a runner with delays that follow no pattern, and with a fault in the audio of one seed's frames."""

    def __init__(self, runner: NativeRunner, seed: int) -> None:
        self.inner, self.runner = runner._decoding, runner
        self._random = random.Random(seed)
        self.broken: set[int] = set()
        """Rows whose next pieces fail."""
        runner._decoding = self  # type: ignore[assignment]

    def begin(self, row: int, *rest: Any) -> None:
        time.sleep(self._random.random() * 0.004)
        self.inner.begin(row, *rest)

    def room_for(self, codes: NDArray[np.int32]) -> NDArray[np.float32]:
        return self.inner.room_for(codes)

    def decode(self, row: int, *rest: Any) -> NDArray[np.float32]:
        time.sleep(self._random.random() * 0.004)
        if row in self.broken:
            self.broken.remove(row)
            raise RuntimeError("a fault in a piece")
        return self.inner.decode(row, *rest)


async def heard(engine: Engine, request: SynthesisRequest, leaves_after: int | None = None) -> Speech | Exception:
    """Pieces that a listener hears, who leaves after a number of them, or the error."""
    stream, chunks = engine.submit(request), []
    try:
        async for chunk in stream:
            chunks.append(chunk)
            if len(chunks) == leaves_after:
                stream.cancel()
                break
    except EngineError as error:
        return error
    return join(chunks, stream.finished or Finished(0, 0, "stop"))


@pytest.mark.parametrize("threads", [2, 3])
def test_delays_listeners_who_leave_and_broken_pieces_change_no_bit_of_the_others(
    tiny: Checkpoint, threads: int
) -> None:
    """Rows pass from one utterance to the next while pieces of the last one wait."""
    requests = [replace(request, word_times=True) for request in requests_for(tiny)] * 4
    expected = said(NativeRunner("x", tiny, config_of(threads=1)), requests[:3]) * 4
    runner = NativeRunner("x", tiny, config_of(threads=threads))
    interfered = Interfered(runner, threads)
    leave = {1: 2, 4: 1, 6: 3}

    async def all_of_them() -> list[Speech | Exception]:
        interfered.broken.add(2)
        return await asyncio.gather(
            *(heard(engine, request, leave.get(number)) for number, request in enumerate(requests))
        )

    with running(Engine(runner, runner.config)) as engine:
        results = asyncio.run(all_of_them())
        assert engine.stats().running == 0
        assert engine.ready, "a row has leaked"
    failed = [number for number, result in enumerate(results) if isinstance(result, Exception)]
    assert [type(results[number]) for number in failed] == [SynthesisFailed]
    whole = [number for number in range(12) if number not in failed and number not in leave]
    assert_same_bits(
        [expected[number] for number in whole],
        [result for number in whole if isinstance(result := results[number], Speech)],
    )


def test_a_priming_that_fails_costs_its_own_utterance(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = NativeRunner("x", tiny, config_of(threads=2))
    requests = requests_for(tiny)
    (expected,) = said(runner, requests[:1])
    begin = runner._decoding.begin

    def broken(row: int, *rest: Any) -> None:
        if row == 1:
            raise MemoryError
        begin(row, *rest)

    async def both(engine: Engine) -> list[Speech | Exception]:
        return await asyncio.gather(*(heard(engine, request) for request in requests[:2]))

    with running(Engine(runner, runner.config)) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(runner._decoding, "begin", broken)
            first, second = asyncio.run(both(engine))
        assert isinstance(second, NotServing)
        assert isinstance(first, Speech)
        again = speak(engine, requests[0])[0]
    assert_same_bits([expected] * 2, [first, again])


def test_the_presets_are_those_of_the_modules(pair: tuple[Stepped, Stepped]) -> None:
    native, plain = (stepped.runner.speaker_embeddings() for stepped in pair)
    assert native.keys() == plain.keys()
    for name, vector in native.items():
        assert vector.dtype == np.float32
        assert np.array_equal(vector, plain[name]), name


# ---- the border


def test_a_wrong_id_is_refused_before_anything_changes(pair: tuple[Stepped, Stepped], tiny: Checkpoint) -> None:
    native = pair[0]
    request = replace(requests_for(tiny)[0], streaming_text=True)
    heard = []
    for wrong in (None, -1, 10**6):
        sequence, other = native.begin(request), native.begin(request, 1)
        if wrong is not None:
            other.trailing.ids[1:] = [wrong] * 9
        native.step(sequence, other)
        outcome = native.runner.run(Plan((), (other, sequence), ()))
        sequence.add_frame()
        native.step(sequence)
        assert list(outcome.failed) == ([] if wrong is None else [other.utterance_id])
        assert sequence.utterance_id in outcome.ended
        heard.append(native.decode(sequence, 3))
    for codes, pcm in heard[1:]:
        assert np.array_equal(codes, heard[0][0])
        assert pcm.tobytes() == heard[0][1].tobytes()


def test_a_row_that_finds_no_memory_moves_no_other_row(
    pair: tuple[Stepped, Stepped], tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a call are decoded again one by one, so none may have been decoded before the fault."""
    native = pair[0]
    requests = requests_for(tiny)
    alone = native.begin(requests[0], 0)
    native.step(alone)
    expected = native.decode(alone, 1)[1]
    decoding = native.runner._decoding  # type: ignore[union-attr]
    calls: list[int] = []

    def room_for(codes: NDArray[np.int32]) -> NDArray[np.float32]:
        calls.append(len(codes))
        if len(calls) == 2:
            raise MemoryError
        return np.empty(len(codes) * 1920, np.float32)

    first, second = native.begin(requests[0], 1), native.begin(requests[1], 2)
    native.step(first, second)
    monkeypatch.setattr(decoding, "room_for", room_for)
    outcome = native.runner.run(Plan((), (), ((first, 1), (second, 1))))
    assert (calls, outcome.failed) == ([1, 1, 1, 1], {})
    assert outcome.audio[first.utterance_id].pcm.tobytes() == expected.tobytes()


@pytest.mark.parametrize("change", [{"codec_eos_token_id": -1}, {"vocab_size": 1000}])
def test_shapes_that_the_kernels_cannot_compute_are_refused_when_a_model_is_loaded(
    tiny: Checkpoint, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_models(tiny, torch.device("cpu"), torch.float32)
    monkeypatch.setattr("vivavoce_engine.cpu.native_runner.load_models", lambda *_: loaded)
    odd = replace(tiny, talker=replace(tiny.talker, **change))
    with pytest.raises(library.Refused, match="a shape does not fit"):
        NativeRunner("x", odd, config_of())


def test_a_cache_that_the_system_refuses_is_a_lack_of_memory() -> None:
    for floats in (1 << 60, 1 << 80):
        with pytest.raises(MemoryError, match="bytes of memory"):
            sparse((floats,))


def test_what_is_nearly_impossible_is_never_drawn() -> None:
    logits = np.full(2048, -100, np.float32)
    logits[47] = 100
    sampling = library.Sampling(1.0, 1.0, 1.0, 0)
    draw = library.load_library().functions.vivavoce_draw
    assert draw(address(logits), len(logits), ctypes.addressof(sampling), 0.0) == 47


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_process_ends_without_the_threads_of_its_parent() -> None:
    program = (
        "import os; from vivavoce_engine.cpu.library import load_library\n"
        "c = load_library().functions; p = c.vivavoce_pool(3)\n"
        "child = os.fork()\n"
        "if not child: c.vivavoce_pool_end(p); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])); c.vivavoce_pool_end(p)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "7\n"


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Copies of the libraries that this processor runs, with their digests, from which the engine now loads."""
    levels = [level for level in library.levels_here() if library.file_of(level).is_file()]
    originals = [library.file_of(level) for level in levels]
    for file in originals:
        shutil.copy(file, tmp_path)
        shutil.copy(digest_path(file), tmp_path)
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    monkeypatch.delenv(LEVEL_VARIABLE, raising=False)
    library._load.cache_clear()
    yield [tmp_path / file.name for file in originals]
    library._load.cache_clear()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


DAMAGES = [
    (cut, "the file is not as it was built. Build it again with: "),
    (zero, "the file is not as it was built. Build it again with: "),
    (lambda file: file.write_bytes(b""), "the file is not as it was built. Build it again with: "),
    (lambda file: digest_path(file).write_bytes(b"\xff"), "the file is not as it was built. Build it again with: "),
    (lambda file: digest_path(file).unlink(), "sha256 is missing. Build both again with: "),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES)
def test_a_damaged_library_is_refused_before_it_is_loaded(
    damage: Callable[[Path], None], sentence: str, copied: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in copied:
        damage(file)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail(f"{name} was loaded"))
    told = library.why_no_library()
    assert told.count(sentence) == told.count(f"`{library.BUILD}`") == len(copied)


def test_a_library_of_other_sources_is_refused_in_a_clone_and_loaded_from_a_wheel(
    copied: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(build.NATIVE, clone, ignore=shutil.ignore_patterns("libvivavoce*"))
    monkeypatch.setattr(build, "NATIVE", clone)
    assert library.why_no_library() == ""
    library._load.cache_clear()
    with (clone / "kernels.h").open("a") as header:
        header.write("// newer\n")
    sentence = "it was built from other sources than those of this clone. Build it again with: "
    assert library.why_no_library().count(sentence) == len(copied)
    for path in clone.glob("*.cpp"):
        path.unlink()
    assert library.load_library().path == copied[0]


def test_the_next_level_speaks_for_a_damaged_one_and_the_log_says_why(
    copied: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    if len(copied) < 2:
        pytest.skip("this processor has one level")
    zero(copied[0])
    with caplog.at_level(logging.WARNING):
        found = library.load_library()
    assert found.path == copied[1]
    assert f"{copied[0].name}: the file is not as it was built." in caplog.text
    assert f"The kernels of level {found.level} speak instead." in caplog.text


def test_the_digest_is_that_of_the_bytes_that_were_loaded(copied: list[Path]) -> None:
    expected = digest_of(copied[0])
    found = library.load_library()
    copied[0].unlink()
    digest_path(copied[0]).write_text("of another build")
    assert found.sha256 == expected


def test_a_kernel_refuses_what_it_cannot_do() -> None:
    found = library.load_library()
    with pytest.raises(library.Refused, match="the kernels refused: "):
        found.check(-1)
    found.check(0)


def test_structures_have_the_sizes_of_the_header() -> None:
    header = (library.FOLDER / "interface.h").read_text(encoding="utf-8")
    stated = {name: int(size) for name, size in re.findall(r"sizeof\((\w+)\) == (\d+)", header)}
    assert stated == {structure.__name__: ctypes.sizeof(structure) for structure in library.STRUCTURES}
    fields = {structure.__name__: [name for name, *_ in structure._fields_] for structure in library.STRUCTURES}
    for name, body in re.findall(r"^struct (\w+) \{(.*?)\};", header, re.DOTALL | re.MULTILINE):
        members = re.findall(r"(\w+)(?:\[\d+\])?(?=[,;])", re.sub(r"//.*", "", body))
        assert fields[name] == members, name
    functions = set(re.findall(r"\b(vivavoce_\w+)\(", re.sub(r"//.*", "", header)))
    assert functions == set(library.SIGNATURES)
