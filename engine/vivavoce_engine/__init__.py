"""Vivavoce's engine: continuous batching of Qwen3-TTS utterances, streamed as 24 kHz float audio.

engine = load_engine("path/to/checkpoint", EngineConfig())
engine.start()
async for chunk in engine.submit(SynthesisRequest("Hello.", speaker="heart")): ...
"""

from vivavoce_engine.config import EngineConfig
from vivavoce_engine.engine import Engine, EngineStats
from vivavoce_engine.errors import (
    CheckpointError,
    EngineError,
    NotServing,
    Overloaded,
    Rejected,
    SynthesisFailed,
)
from vivavoce_engine.messages import AudioChunk, Finished
from vivavoce_engine.request import ModelInfo, Sampling, SamplingParams, SynthesisRequest
from vivavoce_engine.stream import AudioStream, collect

__all__ = [
    "AudioChunk",
    "AudioStream",
    "CheckpointError",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineStats",
    "Finished",
    "ModelInfo",
    "NotServing",
    "Overloaded",
    "Rejected",
    "Sampling",
    "SamplingParams",
    "SynthesisFailed",
    "SynthesisRequest",
    "collect",
]
