"""The whole engine with Qwen3-Omni's speech side on a GPU: first audio after an answer's first id, and many answers at
once.

`vivavoce_bench.cards.omni` runs it. Weights are random, with the released shapes, and no checkpoint is read.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from vivavoce_engine import Engine, EngineConfig, UtteranceOptions
from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.checkpoint.omni import PREDICTOR_SAMPLING, ChatConfig
from vivavoce_engine.gpu import runner as gpu_runner
from vivavoce_engine.gpu.runner import GraphRunner
from vivavoce_engine.request import Sampling, SamplingParams, ThinkerPrompt
from vivavoce_engine.text.answer import AnswerFrontend, answer_tokens

from vivavoce_bench.cards.engine import DRY_S, Player
from vivavoce_bench.cards.frame import DEVICE
from vivavoce_bench.cards.random_codec import OMNI_CODEC, random_code2wav
from vivavoce_bench.cards.shapes import OMNI, random_models, talker_config

VOCABULARY, NEWLINE = 152_064, 198
IM_START, IM_END, ASSISTANT, USER = 151_644, 151_645, 77_091, 872
CHAT = ChatConfig(
    user_token_id=USER, audio_token_id=151_675, image_token_id=151_655, video_token_id=151_656,
    vision_start_token_id=151_652, thinker_hidden_size=2048,
)  # fmt: skip
"""Ids of the released model."""
PROMPT_TOKENS, ASKED, IDS_EACH_MS = 300, 25, 15.0
"""Tokens of a user's turn, answers whose first audio is timed, and milliseconds between the ids of an answer."""
TOKENIZER = Path(__file__).with_name("tokenizer")
"""The tests' small tokenizer, which names the tokens that end an answer."""


def checkpoint() -> Checkpoint:
    """The released shapes and ids."""
    return Checkpoint(
        path=TOKENIZER, task="chat", model_size="", im_start_token_id=IM_START, im_end_token_id=IM_END,
        assistant_token_id=ASSISTANT, tts_pad_token_id=151_671, tts_bos_token_id=151_672, tts_eos_token_id=151_673,
        talker=replace(talker_config(OMNI), text_vocab_size=VOCABULARY), codec=OMNI_CODEC,
        sampling=Sampling(SamplingParams(repetition_penalty=1.05), PREDICTOR_SAMPLING), max_new_tokens=4096, chat=CHAT,
    )  # fmt: skip


@contextmanager
def random_engine(rows: int) -> Iterator[tuple[Engine, GraphRunner]]:
    """Runs an engine of `rows` rows with random weights."""
    described = checkpoint()
    tokens = answer_tokens(described, CHAT, NEWLINE)
    text = AnswerFrontend(tokens, described.talker.spk_id, CHAT.thinker_hidden_size)

    def load(*_: object) -> tuple[Any, ...]:
        return (*random_models(described.talker, DEVICE, torch.bfloat16), random_code2wav(OMNI_CODEC, DEVICE))

    settings = EngineConfig(max_streams=rows, max_context=2048, device=DEVICE.type)
    with (
        patch.object(gpu_runner, "load_models", torch.inference_mode()(load)),
        patch.object(gpu_runner, "frontend_of", lambda _: text),
    ):
        runner = GraphRunner(OMNI, described, settings, DEVICE, torch.bfloat16)
    engine = Engine(runner, runner.config)
    engine.start()
    try:
        yield engine, runner
    finally:
        engine.stop()


async def hear(engine: Engine, number: int, frames: int, at_once: bool) -> Player:
    """Speaks an answer of one id a frame, whose first id comes when the prompt has run. The others follow in time, or
    all `at_once`. Times begin with the first id."""
    ids = [1000 + (7 * number + 13 * place) % 30_000 for place in range(PROMPT_TOKENS + frames)]
    turn = (IM_START, USER, NEWLINE, *ids[frames:], IM_END, NEWLINE)
    options = UtteranceOptions(speaker=engine.info.speakers[0], seed=number, max_frames=frames)
    answer = engine.open_answer(options, ThinkerPrompt((*turn, IM_START, ASSISTANT, NEWLINE)))
    await asyncio.sleep(0.1)
    player = Player(time.perf_counter(), [], [])
    answer.append_ids(ids[:1])

    async def write() -> None:
        if at_once:
            answer.append_ids(ids[1:frames])
        for each in () if at_once else ids[1:frames]:
            await asyncio.sleep(IDS_EACH_MS / 1000)
            answer.append_ids([each])
        answer.end()

    writing = asyncio.create_task(write())
    async for chunk in answer.stream:
        player.arrived_s.append(time.perf_counter())
        player.frames.append(chunk.frames)
    await writing
    return player


async def first_audio_ms(engine: Engine) -> list[float]:
    return [(await hear(engine, number, 4, at_once=False)).first_audio_ms for number in range(ASKED)]


async def together(engine: Engine, count: int, frames: int) -> dict[str, float]:
    """Speaks `count` answers at once → seconds of audio a second, first audio, and answers that ran dry."""
    begun_s = time.perf_counter()
    players = await asyncio.gather(*(hear(engine, number, frames, at_once=True) for number in range(count)))
    took_s = max(player.arrived_s[-1] for player in players) - begun_s
    frame_s = engine.info.frame_s
    return {
        "audio_s_per_s": round(frame_s * sum(sum(player.frames) for player in players) / took_s, 1),
        "first_audio_ms": round(statistics.median(player.first_audio_ms for player in players), 1),
        "first_audio_ms_worst": round(max(player.first_audio_ms for player in players), 1),
        "dry": sum(player.dry_s(frame_s) > DRY_S for player in players),
    }


def time_engine(rows: Sequence[int], frames: int = 125) -> dict[str, Any]:
    """First audio of a single answer, and many at once."""
    before = torch.cuda.mem_get_info()[0]
    with random_engine(max(rows)) as (engine, runner):
        held = before - torch.cuda.mem_get_info()[0]
        asyncio.run(first_audio_ms(engine))  # warm-up
        first_ms = asyncio.run(first_audio_ms(engine))
        return {
            "first audio after the first id, ms": round(statistics.median(first_ms), 2),
            "worst": round(max(first_ms), 2),
            "held GB": round(held / 1e9, 2),
            "positions": runner.config.kv_positions,
            **{f"{count} answers": asyncio.run(together(engine, count, frames)) for count in rows},
        }
