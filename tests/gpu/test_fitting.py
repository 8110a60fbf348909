"""Memory that is counted before a model is loaded, and the settings that fit a card. No card is needed."""

import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")

from vivavoce_bench.cards.layout import ShapeName
from vivavoce_bench.cards.random_codec import RELEASED_CODEC
from vivavoce_bench.cards.shapes import talker_config
from vivavoce_engine.checkpoint.files import Checkpoint, read_checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.errors import CheckpointError, NoRoom
from vivavoce_engine.gpu import loading, memory
from vivavoce_engine.gpu.card import H200
from vivavoce_engine.gpu.fitting import GB, CardMemory, Fit, Usage
from vivavoce_engine.gpu.graphs import BATCHES
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.loading import loading_on
from vivavoce_engine.gpu.memory import Counter, PlainCounter, encoder_bytes, fragments_bytes
from vivavoce_engine.gpu.meta import tensor_bytes
from vivavoce_engine.gpu.runner import GraphRunner
from vivavoce_engine.models.loader import load_encoders
from vivavoce_engine.request import Sampling

from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.waiting import HUNG_S

CPU, CARD = torch.device("cpu"), torch.device("cuda:1")
CONTEXT_BYTES = 0.5e9
"""CUDA's context. It is there when free memory is asked for."""
TEXT_TOKENS = 151936


def released(size: str) -> Checkpoint:
    """A checkpoint of a released size, without files."""
    talker = replace(talker_config(size), text_vocab_size=TEXT_TOKENS)
    ids = (1, 2, 3, 4, 5, 6)
    return Checkpoint(Path("none"), "custom_voice", size, *ids, talker, RELEASED_CODEC, Sampling(), 4096)


@pytest.fixture(scope="module")
def counters() -> dict[str, Counter]:
    launch = Launcher(H200)
    return {size: Counter(released(size), torch.bfloat16, launch) for size in ("0.6b", "1.7b")}


@pytest.fixture(autouse=True)
def _expandable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the allocator as the engine's process does."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def card(total_gb: float, taken_gb: float = 0.0) -> CardMemory:
    """A card of this size, of which CUDA's context and others have taken something."""
    return CardMemory(int((total_gb - taken_gb) * GB - CONTEXT_BYTES), int(total_gb * GB))


# ---- the count


@pytest.mark.parametrize("shape", ["tiny", "tiny_noproj"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_count_is_the_memory_of_a_runner(tmp_path: Path, shape: ShapeName, dtype: torch.dtype, rows: int) -> None:
    """To the byte, for all tensors. Audio that graphs leave in place is there only on a card."""
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, shape, "custom_voice"))
    config = EngineConfig(max_streams=rows, max_context=100, max_chunk_frames=4, kv_positions=300)
    usage = Counter(checkpoint, dtype, Launcher(H200))(config)
    runner = GraphRunner("made", checkpoint, config, CPU, dtype)
    counted = usage.weights + usage.tables + usage.code2wav + (config.kv_pages + 1) * usage.page
    frames = {1: 1, 3: 1 + 2 + 3}[rows] * (1 + 2 + 4)
    audio = frames * (4 * checkpoint.codec.samples_per_frame + 8 * checkpoint.talker.num_code_groups)
    assert counted - audio == tensor_bytes(runner._steps, *runner.networks[:2])
    assert usage.page == 64 * runner.position_bytes


def test_the_count_of_the_plain_runner_is_its_memory(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, "tiny", "custom_voice"))
    config = EngineConfig(max_streams=3, max_context=128, device="cpu", dtype="float32")
    usage = PlainCounter(checkpoint, torch.float32)(config)
    runner = TorchRunner("made", checkpoint, config)
    networks = tensor_bytes(*runner.models.values())
    state = tensor_bytes(runner._cache, runner._frame_cache, runner._codec_rows._flat)
    held = usage.weights + usage.tables + usage.code2wav + 3 * 2 * usage.page
    assert held == networks + state


def test_to_count_imports_neither_a_compiler_nor_sympy() -> None:
    """PyTorch's own operations on meta tensors would, which takes seconds at every start."""
    count = (
        "import sys, torch; from tests.gpu.test_fitting import *;"
        "before = set(sys.modules);"
        "Counter(released('0.6b'), torch.bfloat16, Launcher(H200))(EngineConfig());"
        "sys.exit(str({'sympy', 'torch._dynamo'} & set(sys.modules) - before or ''))"
    )
    ran = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=False)
    assert ran.stderr.strip() == ""


def test_to_count_for_the_plain_runner_needs_no_triton() -> None:
    code = "import sys, vivavoce_engine.gpu.memory, vivavoce_engine.gpu.loading; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_weights_and_tables_of_the_released_sizes(counters: dict[str, Counter]) -> None:
    """8 rows of 0.6B had 2903 MB of tensors on an H200, 32 MB of it cuBLAS's workspace."""
    usage = counters["0.6b"](EngineConfig(max_streams=8))
    pages = EngineConfig(max_streams=8).kv_pages
    tensors = usage.weights + usage.tables + usage.code2wav + (pages + 1) * usage.page
    assert 2903e6 - 40e6 <= tensors <= 2903e6
    assert usage.page == 64 * 2 * 28 * 8 * 128 * 2
    assert usage.peak(pages) >= usage.at_rest(pages) > tensors


def test_each_row_takes_memory_and_graphs_do(counters: dict[str, Counter]) -> None:
    few, more = (counters["0.6b"](EngineConfig(max_streams=rows)) for rows in (8, 64))
    assert (few.weights, few.page, few.loading) == (more.weights, more.page, more.loading)
    assert few.tables < more.tables
    assert few.code2wav < more.code2wav
    eager = counters["0.6b"](EngineConfig(max_streams=8, eager=True))
    assert (few.graphs, eager.graphs) == (4 + 10 + 2 + 4 * 4, 0)
    assert few.unseen - eager.unseen == few.graphs * memory.GRAPH_BYTES


@pytest.mark.parametrize(
    ("variable", "setting", "expandable"),
    [
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True", True),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True", True),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64", False),
    ],
)
def test_fixed_segments_leave_more_unused(
    variable: str, setting: str, expandable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    monkeypatch.setenv(variable, setting)
    assert fragments_bytes() == memory.FRAGMENTS_BYTES + (0 if expandable else memory.FIXED_SEGMENTS_BYTES)


def test_an_encoder_counts_with_its_work(tmp_path: Path) -> None:
    base = read_checkpoint(write_checkpoint(tmp_path / "base", "tiny", "base"))
    assert base.encoder is not None
    weights = tensor_bytes(*load_encoders(base.path, base.encoder, CPU))
    filters = base.encoder.codec.mimi["num_filters"]
    work = memory.ENCODING_LAYERS * filters * 31 * 24000 * 4  # 30 s, and silence around them
    assert weights <= encoder_bytes(base) - work <= 2 * weights
    other = read_checkpoint(write_checkpoint(tmp_path / "other", "tiny", "custom_voice"))
    assert encoder_bytes(other) == 0
    (base.path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="no complete safetensors file"):
        encoder_bytes(base)


# ---- what fits


@pytest.mark.parametrize(
    ("total_gb", "size", "rows", "positions"),
    [
        (6.4, "0.6b", 2, 4096),
        (8.3, "0.6b", 8, 8192),
        (12.6, "0.6b", 16, 16384),
        (16.6, "0.6b", 32, 32768),
        (25.3, "0.6b", 64, 65536),
        (47.6, "0.6b", 128, 131072),
        (84.9, "0.6b", 256, 262144),
        (150.1, "0.6b", 256, 262144),
        (6.4, "1.7b", 2, 4096),
        (8.3, "1.7b", 8, 8192),
        (12.6, "1.7b", 16, 16384),
        (16.6, "1.7b", 32, 32768),
        (25.3, "1.7b", 64, 65536),
        (47.6, "1.7b", 128, 131072),
        (84.9, "1.7b", 256, 262144),
        (150.1, "1.7b", 256, 262144),
    ],
)
def test_rows_and_positions_of_cards(
    total_gb: float, size: str, rows: int, positions: int, counters: dict[str, Counter]
) -> None:
    """`total_gb` is what a card of 6, 8, 12, 16, 24, 48, 80 or 141 GB shows."""
    fit = Fit(EngineConfig(), card(total_gb), counters[size])
    settled = fit.settle()
    assert (settled.max_streams, settled.kv_positions) == (rows, positions)
    assert settled.rows == rows
    assert fit.count(settled).peak(settled.kv_pages) <= fit.allowed


@pytest.mark.parametrize("total_gb", [6.2, 8.3])
def test_the_small_model_rests_under_4_gb_on_a_small_card(total_gb: float, counters: dict[str, Counter]) -> None:
    fit = Fit(EngineConfig(), card(total_gb), counters["0.6b"])
    settled = fit.settle()
    assert fit.count(settled).at_rest(settled.kv_pages) + CONTEXT_BYTES <= 4e9


def test_the_second_model_of_a_card_takes_what_the_first_leaves(counters: dict[str, Counter]) -> None:
    """Positions go down first, to 512 of each row; then rows do."""
    first = Fit(EngineConfig(), card(25.3), counters["1.7b"])
    taken_gb = first.count(first.settle()).at_rest(first.settle().kv_pages) / GB
    assert 13 < taken_gb < 15
    second = Fit(EngineConfig(), card(25.3, taken_gb + CONTEXT_BYTES / GB), counters["0.6b"]).settle()
    assert second.rows == 64
    assert 64 * 512 <= second.kv_pages * 64 < 64 * 1024
    third = Fit(EngineConfig(), card(25.3, taken_gb + 5.5), counters["0.6b"]).settle()
    assert 1 < third.rows < 64
    assert third.rows in BATCHES
    assert third.rows * 512 <= third.kv_pages * 64 <= third.rows * 1024


def test_what_is_given_is_kept_if_it_fits(counters: dict[str, Counter]) -> None:
    given = EngineConfig(max_streams=5, kv_positions=5000)
    assert Fit(given, card(8.3), counters["0.6b"]).settle() == replace(given, kv_positions=5056)
    rows = Fit(EngineConfig(max_streams=100), card(16.6), counters["0.6b"]).settle()
    assert rows.max_streams == 100
    assert 100 * 512 <= rows.kv_pages * 64 < 100 * 1024
    positions = Fit(EngineConfig(kv_positions=50_000), card(8.3), counters["0.6b"])
    with pytest.raises(NoRoom, match=r"--max-streams 8 --kv-positions 8192 would fit"):
        positions.settle()


def refusal(config: EngineConfig, memory: CardMemory, counter: Counter) -> str:
    with pytest.raises(NoRoom) as refused:
        Fit(config, memory, counter).settle()
    return str(refused.value)


def test_too_many_rows_are_refused_with_a_number_that_fits(counters: dict[str, Counter]) -> None:
    config, memory, counter = EngineConfig(max_streams=200), card(16.6), counters["0.6b"]
    told = refusal(config, memory, counter)
    needed_gb = counter(config).peak(200 * 8) / GB
    assert f"the model with 200 rows and 102400 positions of keys and values takes {needed_gb:.1f} GB, but" in told
    assert "but 14.5 GB may be used (16.1 of 16.6 GB are free, and --gpu-memory is 0.9); " in told
    assert told.endswith("; --max-streams 128 would fit")
    assert Fit(replace(config, max_streams=128), memory, counter).settle().rows == 128


def test_rows_and_positions_that_do_not_fit_get_both_ways_out(counters: dict[str, Counter]) -> None:
    config, memory, counter = EngineConfig(max_streams=96, kv_positions=100_000), card(16.6), counters["0.6b"]
    told = refusal(config, memory, counter)
    found = re.search(r"; --max-streams (\d+), or --kv-positions (\d+) would fit$", told)
    assert found, told
    rows, positions = map(int, found.groups())
    for fits in (replace(config, max_streams=rows), replace(config, kv_positions=positions)):
        assert Fit(fits, memory, counter).settle().rows == fits.rows
    more_rows = BATCHES[BATCHES.index(rows) + 1]
    for too_much in (replace(config, max_streams=more_rows), replace(config, kv_positions=positions + 64)):
        refusal(too_much, memory, counter)


def test_positions_that_no_rows_leave_room_for_get_both_numbers(counters: dict[str, Counter]) -> None:
    for config in (EngineConfig(kv_positions=200_000), EngineConfig(max_streams=200, kv_positions=200_000)):
        told = refusal(config, card(8.3), counters["0.6b"])
        found = re.search(r"; --max-streams (\d+) --kv-positions (\d+) would fit$", told)
        assert found, told
        rows, positions = map(int, found.groups())
        fits = replace(config, max_streams=rows, kv_positions=positions)
        assert Fit(fits, card(8.3), counters["0.6b"]).settle() == fits


def test_a_card_without_room_for_one_row_is_told_what_is_needed(counters: dict[str, Counter]) -> None:
    counter = counters["1.7b"]
    least_gb = counter(EngineConfig(max_streams=1)).peak(64) / GB
    told = refusal(EngineConfig(), card(5.0), counter)
    assert told.startswith(
        f"the model with 1 row and 4096 positions of keys and values takes {least_gb:.1f} GB, but 4.0 GB may be used"
    )
    assert told.endswith("; no setting makes it fit")
    nearly = card((least_gb - 0.1) / 0.9 + CONTEXT_BYTES / GB)
    assert refusal(EngineConfig(), nearly, counter).endswith("; --max-streams 1 --max-context 2048 would fit")
    shorter = EngineConfig(max_streams=1, max_context=2048)
    assert Fit(shorter, nearly, counter).settle().kv_positions == 2048


@pytest.mark.parametrize(("total_gb", "rows"), [(8.3, 2), (15.8, 8), (84.9, 8)])
def test_the_plain_runner_gets_few_rows(total_gb: float, rows: int) -> None:
    counter = PlainCounter(released("0.6b"), torch.float32)
    settled = Fit(EngineConfig(), card(total_gb), counter, plain=True).settle()
    assert (settled.max_streams, settled.kv_positions) == (rows, "auto")
    with pytest.raises(NoRoom, match=r"--max-streams \d+ would fit$"):
        Fit(EngineConfig(max_streams=100), card(total_gb), counter, plain=True).settle()


def test_settings_come_from_the_memory_of_the_card(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[torch.device] = []

    def mem_get_info(device: torch.device) -> tuple[int, int]:
        asked.append(device)
        return 24 * 10**9, 25 * 10**9

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    monkeypatch.setattr(Launcher, "of", classmethod(lambda cls, _: Launcher.__new__(cls)))
    launch = Launcher(H200)
    monkeypatch.setattr(memory, "Counter", lambda *_: lambda config: Usage(1, 1, 1, 0, 0, 1, 10**6, 1, 1))
    assert isinstance(launch, Launcher)
    caplog.set_level("INFO")
    settled = memory.settle(EngineConfig(), released("0.6b"), CARD, torch.bfloat16)
    assert (settled.max_streams, settled.kv_positions) == (64, 65536)
    assert asked == [CARD]
    assert "64 rows and 65536 positions of keys and values on cuda:1: at most 1.0 of 21.6 GB" in caplog.text


# ---- loading


@dataclass
class FakeCard:
    """PyTorch's view of cards, replaced."""

    current: list[torch.device]
    free: int | None = 2 * 10**9


@pytest.fixture
def fake_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCard:
    fake = FakeCard([])

    def mem_get_info(_: torch.device) -> tuple[int, int]:
        if fake.free is None:
            raise RuntimeError("CUDA error: out of memory")
        return fake.free, 24 * 10**9

    monkeypatch.setattr(torch.cuda, "set_device", fake.current.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 3 * 10**9)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"card-{device.index}")
    )
    monkeypatch.setattr("vivavoce_engine.gpu.loading.tempfile.gettempdir", lambda: str(tmp_path))
    return fake


def test_a_card_is_current_before_anything_is_loaded(fake_card: FakeCard) -> None:
    with loading_on(CARD):
        assert fake_card.current == [CARD]
    with loading_on(CPU):
        assert fake_card.current == [CARD]


def test_engines_load_on_a_card_one_after_the_other(fake_card: FakeCard, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    order: list[str] = []
    waiting = threading.Event()
    info = loading.log.info

    def told(*args: object) -> None:
        info(*args)
        waiting.set()

    def second() -> None:
        with loading_on(CARD):
            order.append("second")

    thread = threading.Thread(target=second)
    with loading_on(CARD), pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading.log, "info", told)
        thread.start()
        assert waiting.wait(HUNG_S)
        with loading_on(torch.device("cuda:0")):
            order.append("another card")
        order.append("first")
    thread.join(HUNG_S)
    assert order == ["another card", "first", "second"]
    assert "waiting for another engine to load its model on cuda:1" in caplog.text


@pytest.mark.parametrize("name", ["loading.tempfile.gettempdir", "loading.os.open", "loading.fcntl.flock"])
def test_no_place_for_the_lock_is_no_fault(fake_card: FakeCard, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*_: object) -> None:
        raise OSError("read-only, or without locks")

    monkeypatch.setattr(f"vivavoce_engine.gpu.{name}", refuse)
    with loading_on(CARD):
        assert fake_card.current == [CARD]


@pytest.mark.parametrize(
    ("free", "told"),
    [
        (2 * 10**9, "2.0 of 24.0 GB are free, and this engine has 3.0; nvidia-smi lists who has the rest"),
        (None, "other processes hold all of it: nvidia-smi lists them"),
    ],
)
def test_memory_that_a_neighbour_takes_meanwhile_is_told_with_numbers(
    free: int | None, told: str, fake_card: FakeCard
) -> None:
    fake_card.free = free
    with pytest.raises(NoRoom) as refused, loading_on(CARD):
        raise RuntimeError("CUDA error: out of memory")
    assert str(refused.value) == f"cuda:1 ran out of memory while the model was loaded ({told})"
    assert isinstance(refused.value.__cause__, RuntimeError)


def test_a_card_without_room_for_a_context_is_told(fake_card: FakeCard) -> None:
    fake_card.free = None
    told = "other processes hold all memory of cuda:1: nvidia-smi lists them"
    with pytest.raises(NoRoom, match=told), loading_on(CARD):
        CardMemory.of(CARD)


@pytest.mark.parametrize("error", [NoRoom("8 rows do not fit"), ValueError("a bug"), RuntimeError("CUDA error: no")])
def test_other_errors_of_loading_stay(error: Exception, fake_card: FakeCard) -> None:
    with pytest.raises(type(error)) as raised, loading_on(CARD):
        raise error
    assert raised.value is error
    with loading_on(CARD):
        pass  # the lock is free


def test_the_runner_of_a_card_is_made_while_it_is_held(
    fake_card: FakeCard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """make_runner names the card first, and hands on what memory has settled."""
    from vivavoce_engine import load

    made: list[tuple[Any, ...]] = []

    def graph_runner(*args: Any) -> None:
        made.append((args[3], list(fake_card.current)))

    def torch_runner(name: str, checkpoint: Any, config: EngineConfig) -> None:
        made.append((config.max_streams, list(fake_card.current)))

    monkeypatch.setattr("vivavoce_engine.gpu.runner.GraphRunner", graph_runner)
    monkeypatch.setattr("vivavoce_engine.cpu.runner.TorchRunner", torch_runner)
    monkeypatch.setattr("vivavoce_engine.gpu.memory.settle_plain", lambda config, *_: replace(config, max_streams=3))
    checkpoint = released("0.6b")
    config = EngineConfig(device="cuda:1", dtype="float32", runner="triton")
    for changes in ({}, {"runner": "torch"}, {"runner": "torch", "device": "cpu"}):
        load._make("name", checkpoint, replace(config, **changes))  # type: ignore[arg-type]
    assert made == [(CARD, [CARD]), (3, [CARD, CARD]), ("auto", [CARD, CARD])]
