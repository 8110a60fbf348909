"""The GPU's runner speaks answers as the CPU's does: prompts without an answer, ids that come late, pictures."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from vivavoce_engine import AudioChunk, Engine, EngineConfig, collect  # noqa: E402
from vivavoce_engine.checkpoint.files import read_checkpoint  # noqa: E402
from vivavoce_engine.cpu.runner import TorchRunner  # noqa: E402
from vivavoce_engine.gpu import steps as gpu_steps  # noqa: E402
from vivavoce_engine.gpu.launch import Launcher  # noqa: E402
from vivavoce_engine.gpu.runner import GraphRunner  # noqa: E402
from vivavoce_engine.models.codec_decoder import Code2Wav, CodecRows  # noqa: E402

from tests.support.omni_answers import SpokenCase, case_of, joined  # noqa: E402
from tests.support.omni_checkpoints import omni_checkpoint  # noqa: E402
from tests.support.speaking import running  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
FRAMES = 2
"""Frames of an answer that does not end before."""
WAVE_TOLERANCE = 1e-4


class PlainCodec(CodecRows):
    """Code2Wav by PyTorch, as a GPU's runner calls it; its kernels have tests of their own."""

    def __init__(self, decoder: Code2Wav, rows: int, max_frames: int, dtype: torch.dtype, *, launch: Launcher) -> None:
        super().__init__(decoder, rows + 1, decoder.final_conv.weight)

    def reset(self, row: int) -> None:  # type: ignore[override]
        super().reset(torch.tensor([row], device=DEVICE))


def config() -> EngineConfig:
    return EngineConfig(
        max_streams=2,
        max_context=128,
        max_chunk_frames=2,
        max_prefills_per_step=2,
        device=DEVICE.type,
        dtype="float32",
    )


async def say(engine: Engine, name: str, frames: int, pieces: Sequence[Sequence[int]]) -> SpokenCase:
    """Speaks a case whose ids come in pieces, each when all that those before make possible has been heard."""
    case = case_of(engine, name)
    answer = engine.open_answer(case.options(frames=frames), case.prompt)
    chunks: list[AudioChunk] = []
    given = 0
    for piece in pieces:
        answer.append_ids(piece)
        given += len(piece)
        while sum(chunk.frames for chunk in chunks) < min(given, frames, case.frames):
            chunks.append(await anext(answer.stream))
    answer.end()
    rest, finished = await collect(answer.stream)
    return joined([*chunks, *rest], finished)


def said(runner: GraphRunner | TorchRunner) -> list[SpokenCase]:
    """Two at once: one with a picture and ids that come late, and one that ends in place of its fourth frame."""

    async def together(engine: Engine) -> list[SpokenCase]:
        image, chat = (case_of(engine, name).spoken for name in ("image", "chat"))
        late = say(engine, "image", FRAMES, [[], image[:1], image[1:]])
        return [*await asyncio.gather(late, say(engine, "chat", 10, [chat]))]

    with running(Engine(runner, config())) as engine:
        return asyncio.run(together(engine))


def test_it_speaks_answers_as_the_cpu_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = read_checkpoint(omni_checkpoint(tmp_path / "omni"))
    expected = said(TorchRunner("plain", checkpoint, config()))
    monkeypatch.setattr(gpu_steps, "PROMPT_TOKENS", (16, 32))
    monkeypatch.setattr(gpu_steps, "GpuCodec", PlainCodec)
    ours = said(GraphRunner("kernels", checkpoint, config(), DEVICE, torch.float32))
    assert [(each.finished.frames, each.finished.reason) for each in expected] == [(FRAMES, "length"), (3, "stop")]
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine.codes.tolist() == theirs.codes.tolist()
        assert mine.finished.reason == theirs.finished.reason
        assert len(mine.pcm) == len(theirs.pcm) == 1920 * mine.finished.frames - 555
        assert np.abs(mine.pcm - theirs.pcm).max() < WAVE_TOLERANCE
