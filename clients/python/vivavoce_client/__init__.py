"""Vivavoce's client: the wire protocol over httpx. It imports neither the engine nor the server.

async with AsyncClient("http://localhost:8000") as client:
    async with client.stream("Hello.", voice="heart") as speech:
        async for piece in speech:  # 16-bit PCM as it is made
            ...
"""

from vivavoce_client.client import DEFAULT_URL, AsyncClient, AsyncSpeech, Client, Speech
from vivavoce_client.events import SpeechEvent
from vivavoce_client.live import AsyncLiveSession, AsyncUtterance, Text
from vivavoce_client.live_sync import LiveSession, Utterance
from vivavoce_client.protocol import (
    ApiError,
    ConnectionFailed,
    NewVoice,
    SaidPart,
    Segment,
    SpeechOptions,
    SpokenText,
    StoredVoice,
    StreamBroken,
    VivavoceError,
    Voice,
    WeightedEmbedding,
)
from vivavoce_client.subtitles import srt, vtt
from vivavoce_client.words import SpokenTurn, SpokenWord

__all__ = [
    "DEFAULT_URL",
    "ApiError",
    "AsyncClient",
    "AsyncLiveSession",
    "AsyncSpeech",
    "AsyncUtterance",
    "Client",
    "ConnectionFailed",
    "LiveSession",
    "NewVoice",
    "SaidPart",
    "Segment",
    "Speech",
    "SpeechEvent",
    "SpeechOptions",
    "SpokenText",
    "SpokenTurn",
    "SpokenWord",
    "StoredVoice",
    "StreamBroken",
    "Text",
    "Utterance",
    "VivavoceError",
    "Voice",
    "WeightedEmbedding",
    "srt",
    "vtt",
]
