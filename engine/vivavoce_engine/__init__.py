"""Vivavoce's engine: continuous batching of Qwen3-TTS utterances, streamed as 24 kHz float audio.

engine = load_engine("path/to/checkpoint", EngineConfig())
engine.start()
async for chunk in engine.submit(SynthesisRequest("Hello.", speaker="heart")): ...
"""

from vivavoce_engine.config import EngineConfig
from vivavoce_engine.engine import Engine, EngineStats
from vivavoce_engine.errors import (
    CheckpointError,
    EndlessSpeech,
    EngineError,
    NotServing,
    Overloaded,
    Rejected,
    StoreFull,
    SynthesisFailed,
)
from vivavoce_engine.messages import AudioChunk, Finished
from vivavoce_engine.request import ModelInfo, Sampling, SamplingParams, SynthesisRequest, VoiceReference
from vivavoce_engine.stream import AudioStream, collect
from vivavoce_engine.voice_store import StoredVoice, VoiceStore
from vivavoce_engine.voices import Voices

__all__ = [
    "AudioChunk",
    "AudioStream",
    "CheckpointError",
    "EndlessSpeech",
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
    "StoreFull",
    "StoredVoice",
    "SynthesisFailed",
    "SynthesisRequest",
    "VoiceReference",
    "VoiceStore",
    "Voices",
    "collect",
]
