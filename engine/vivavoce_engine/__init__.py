"""Vivavoce's engine: speaks many Qwen3-TTS utterances in one batch and streams each as 24 kHz float audio.

engine = EngineProcess(read_model("path/to/checkpoint", EngineConfig()), EngineConfig())
engine.start()
async for chunk in engine.submit(SynthesisRequest("Hello.", speaker="heart")): ...
"""

from vivavoce_engine.batching.messages import AudioChunk, Finished
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import (
    CheckpointError,
    EndlessSpeech,
    EngineError,
    NotServing,
    Overloaded,
    Rejected,
    StoreFailed,
    StoreFull,
    SynthesisFailed,
)
from vivavoce_engine.front.interface import EngineStats, SpeechEngine
from vivavoce_engine.front.stream import AudioStream, collect
from vivavoce_engine.front.thread import Engine
from vivavoce_engine.model import Model
from vivavoce_engine.process.engine_process import EngineProcess
from vivavoce_engine.process.pool import EnginePool
from vivavoce_engine.request import ModelInfo, Sampling, SamplingParams, SpokenContext, SynthesisRequest, VoiceReference
from vivavoce_engine.voices.registry import Voices
from vivavoce_engine.voices.store import StoredVoice, VoiceStore

__all__ = [
    "AudioChunk",
    "AudioStream",
    "CheckpointError",
    "EndlessSpeech",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EnginePool",
    "EngineProcess",
    "EngineStats",
    "Finished",
    "Model",
    "ModelInfo",
    "NotServing",
    "Overloaded",
    "Rejected",
    "Sampling",
    "SamplingParams",
    "SpeechEngine",
    "SpokenContext",
    "StoreFailed",
    "StoreFull",
    "StoredVoice",
    "SynthesisFailed",
    "SynthesisRequest",
    "VoiceReference",
    "VoiceStore",
    "Voices",
    "collect",
]
