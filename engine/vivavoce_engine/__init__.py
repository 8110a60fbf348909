"""Vivavoce's engine: speaks many Qwen3-TTS utterances in one batch and streams each as 24 kHz float audio.

    import asyncio
    from vivavoce_engine import EngineConfig, SynthesisRequest, load_engine

    async def speak() -> None:
        async for chunk in engine.submit(SynthesisRequest("Hello.", speaker="heart")):
            play(chunk.pcm)  # float32 mono in [-1, 1]

    engine = load_engine("path/to/checkpoint", EngineConfig())
    engine.start()
    asyncio.run(speak())
    engine.stop()

A server gives each engine a process of its own instead: `EngineProcess(read_model(path, config), config)`. Importing
this package imports no torch.
"""

from vivavoce_engine.batching.listener import Playback
from vivavoce_engine.batching.messages import AudioChunk, Finished, WordTime
from vivavoce_engine.checkpoint.files import locate_checkpoint
from vivavoce_engine.config import CARD_VARIABLE, LEVEL_VARIABLE, EngineConfig, card_fields
from vivavoce_engine.cpu.threads import usable_cores
from vivavoce_engine.embeddings import EMBEDDING_MAX
from vivavoce_engine.errors import (
    CheckpointError,
    EndlessSpeech,
    EngineError,
    NotServing,
    Overloaded,
    RefTextMismatch,
    Rejected,
    StoreFailed,
    StoreFull,
    SynthesisFailed,
    ThinkerFailed,
)
from vivavoce_engine.examine import check_voices, checks, why_not_writable
from vivavoce_engine.findings import Finding
from vivavoce_engine.front.answer import SpokenAnswer
from vivavoce_engine.front.interface import EngineStats, SpeechEngine
from vivavoce_engine.front.live import LiveUtterance
from vivavoce_engine.front.stream import AudioStream, collect
from vivavoce_engine.front.thread import Engine
from vivavoce_engine.gpu.presence import card_present
from vivavoce_engine.ipc.pipe import PatientPipe, Pipe
from vivavoce_engine.ipc.spawn import pipe_to_parent, spawn_module
from vivavoce_engine.ipc.unix_socket import private_folder
from vivavoce_engine.load import load_engine, read_model
from vivavoce_engine.model import Model
from vivavoce_engine.process.engine_process import EngineHost, EngineProcess, LinkedEngine
from vivavoce_engine.process.pool import EnginePool
from vivavoce_engine.process.wire import Reason
from vivavoce_engine.request import (
    SEED_MAX,
    ModelInfo,
    ReadableText,
    Sampling,
    SamplingParams,
    SpeakerInfo,
    SpokenContext,
    SynthesisRequest,
    ThinkerMedia,
    ThinkerPrompt,
    UtteranceOptions,
    VoiceReference,
    draw_seed,
)
from vivavoce_engine.runtime import freeze_gc
from vivavoce_engine.text.prompt import check_characters
from vivavoce_engine.text.transcript import is_mismatch, mismatch_message
from vivavoce_engine.text.words import WORD_BREAK, count_words
from vivavoce_engine.thinker.interface import (
    ChatMessage,
    Picture,
    Sound,
    Thinker,
    ThinkerEnd,
    ThinkerToken,
    ThinkOptions,
    Thought,
)
from vivavoce_engine.thinker.process import ThinkerProcess
from vivavoce_engine.thinker.text import ThinkerText, TokenDecoder
from vivavoce_engine.thinker.wire import ThinkerConfig
from vivavoce_engine.traces import error_name, format_trace
from vivavoce_engine.voices.blends import MAX_CHARS as MAX_BLEND_CHARS
from vivavoce_engine.voices.blends import MAX_PARTS as MAX_BLEND_PARTS
from vivavoce_engine.voices.blends import MAX_WEIGHT as MAX_BLEND_WEIGHT
from vivavoce_engine.voices.blends import MIN_WEIGHT as MIN_BLEND_WEIGHT
from vivavoce_engine.voices.blends import blend_embeddings, embedding_of, parse_blend
from vivavoce_engine.voices.consents import Consent, ConsentStore
from vivavoce_engine.voices.media import SOUND_RATE
from vivavoce_engine.voices.recognizer import recognizer_for
from vivavoce_engine.voices.reference_audio import MAX_BYTES as MAX_REFERENCE_BYTES
from vivavoce_engine.voices.reference_reader import ReadPicture, ReadSound, ReferenceReader
from vivavoce_engine.voices.registry import MAX_WAITING as MAX_WAITING_RECORDINGS
from vivavoce_engine.voices.registry import Voices
from vivavoce_engine.voices.store import MAX_TEXT_CHARS as MAX_TRANSCRIPT_CHARS
from vivavoce_engine.voices.store import StoredVoice, VoiceStore

__all__ = [
    "CARD_VARIABLE",
    "EMBEDDING_MAX",
    "LEVEL_VARIABLE",
    "MAX_BLEND_CHARS",
    "MAX_BLEND_PARTS",
    "MAX_BLEND_WEIGHT",
    "MAX_REFERENCE_BYTES",
    "MAX_TRANSCRIPT_CHARS",
    "MAX_WAITING_RECORDINGS",
    "MIN_BLEND_WEIGHT",
    "SEED_MAX",
    "SOUND_RATE",
    "WORD_BREAK",
    "AudioChunk",
    "AudioStream",
    "ChatMessage",
    "CheckpointError",
    "Consent",
    "ConsentStore",
    "EndlessSpeech",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineHost",
    "EnginePool",
    "EngineProcess",
    "EngineStats",
    "Finding",
    "Finished",
    "LinkedEngine",
    "LiveUtterance",
    "Model",
    "ModelInfo",
    "NotServing",
    "Overloaded",
    "PatientPipe",
    "Picture",
    "Pipe",
    "Playback",
    "ReadPicture",
    "ReadSound",
    "ReadableText",
    "Reason",
    "RefTextMismatch",
    "ReferenceReader",
    "Rejected",
    "Sampling",
    "SamplingParams",
    "Sound",
    "SpeakerInfo",
    "SpeechEngine",
    "SpokenAnswer",
    "SpokenContext",
    "StoreFailed",
    "StoreFull",
    "StoredVoice",
    "SynthesisFailed",
    "SynthesisRequest",
    "ThinkOptions",
    "Thinker",
    "ThinkerConfig",
    "ThinkerEnd",
    "ThinkerFailed",
    "ThinkerMedia",
    "ThinkerProcess",
    "ThinkerPrompt",
    "ThinkerText",
    "ThinkerToken",
    "Thought",
    "TokenDecoder",
    "UtteranceOptions",
    "VoiceReference",
    "VoiceStore",
    "Voices",
    "WordTime",
    "blend_embeddings",
    "card_fields",
    "card_present",
    "check_characters",
    "check_voices",
    "checks",
    "collect",
    "count_words",
    "draw_seed",
    "embedding_of",
    "error_name",
    "format_trace",
    "freeze_gc",
    "is_mismatch",
    "load_engine",
    "locate_checkpoint",
    "mismatch_message",
    "parse_blend",
    "pipe_to_parent",
    "private_folder",
    "read_model",
    "recognizer_for",
    "spawn_module",
    "usable_cores",
    "why_not_writable",
]
