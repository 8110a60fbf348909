"""The GPU's runner says what the CPU's says: every kind of start, rows used again, prompts cut in parts."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from vivavoce_bench.cards.layout import SHAPE, Kind  # noqa: E402
from vivavoce_engine import Engine, EngineConfig, SynthesisRequest, VoiceReference  # noqa: E402
from vivavoce_engine.checkpoint.files import read_checkpoint  # noqa: E402
from vivavoce_engine.cpu.runner import TorchRunner  # noqa: E402
from vivavoce_engine.gpu import steps as gpu_steps  # noqa: E402
from vivavoce_engine.gpu.launch import Launcher  # noqa: E402
from vivavoce_engine.gpu.runner import GraphRunner  # noqa: E402
from vivavoce_engine.models.codec_decoder import CodecDecoder, CodecRows  # noqa: E402
from vivavoce_engine.request import SpokenContext  # noqa: E402

from tests.support.speaking import GREEDY, Speech, running, speak  # noqa: E402
from tests.support.tiny_checkpoints import write_checkpoint  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
ROWS, FRAMES, REFERENCE_FRAMES = 2, 3, 5
WAVE_TOLERANCE = 1e-4
SMALLEST = replace(
    SHAPE["tiny"],
    groups=3,
    codes=64,
    codec_window=4,
    talker=replace(SHAPE["tiny"].talker, layers=1),
    predictor=replace(SHAPE["tiny"].predictor, layers=1),
)
"""The interpreter takes its time."""


class PlainCodec(CodecRows):
    """Code2Wav by PyTorch, as a GPU's runner calls it; its kernels have tests of their own, and take minutes."""

    def __init__(
        self, decoder: CodecDecoder, rows: int, max_frames: int, dtype: torch.dtype, *, launch: Launcher
    ) -> None:
        super().__init__(decoder, rows + 1, decoder.quantizer.codebooks[0])

    def reset(self, row: int) -> None:  # type: ignore[override]
        super().reset(torch.tensor([row], device=DEVICE))


def config() -> EngineConfig:
    return EngineConfig(
        max_streams=ROWS,
        max_context=256,
        max_chunk_frames=2,
        max_prefills_per_step=2,
        device=DEVICE.type,
        dtype="float32",
    )


def said(runner: GraphRunner | TorchRunner, *requests: SynthesisRequest) -> list[Speech]:
    with running(Engine(runner, config())) as engine:
        return speak(engine, *requests)


def preset(text: str, *, streaming_text: bool) -> SynthesisRequest:
    return SynthesisRequest(text, speaker="ryan", sampling=GREEDY, streaming_text=streaming_text, max_frames=FRAMES)


def clone(hidden: int, groups: int, *, in_context: bool, own: bool = False) -> SynthesisRequest:
    chance = np.random.default_rng(4)
    codes = chance.integers(0, 32, (REFERENCE_FRAMES, groups)).astype(np.int16)
    reference = VoiceReference(
        chance.normal(0, 0.1, hidden).astype(np.float32), codes if in_context else None, "it's fine"
    )
    context = SpokenContext("Hello. ", codes[:4]) if own else None
    return SynthesisRequest("Yes.", reference=reference, context=context, sampling=GREEDY, max_frames=FRAMES)


@pytest.mark.parametrize("kind", ["custom_voice", "base"])
def test_it_says_what_the_cpu_says(tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """More utterances than rows, so that rows are used again; prompts of more tokens than go at once."""
    monkeypatch.setitem(SHAPE, "tiny", SMALLEST)
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, "tiny", kind))
    hidden, groups = checkpoint.talker.transformer.hidden_size, checkpoint.talker.num_code_groups
    if kind == "base":
        requests = [
            clone(hidden, groups, in_context=in_context, own=own)
            for in_context, own in ((False, False), (True, False), (True, True))
        ]
    else:
        requests = [
            preset("The lazy dog jumps over.", streaming_text=False),
            preset("The lazy dog jumps over.", streaming_text=True),
            preset("你好。", streaming_text=True),
        ]
    expected = said(TorchRunner("plain", checkpoint, config()), *requests)
    monkeypatch.setattr(gpu_steps, "PROMPT_TOKENS", (16, 24))
    monkeypatch.setattr(gpu_steps, "GpuCodec", PlainCodec)
    ours = said(GraphRunner("kernels", checkpoint, config(), DEVICE, torch.float32), *requests)
    for number, (mine, theirs) in enumerate(zip(ours, expected, strict=True)):
        assert mine.codes.tolist() == theirs.codes.tolist(), number
        assert np.abs(mine.pcm - theirs.pcm).max() < WAVE_TOLERANCE, number
