"""Vivavoce's client: the wire protocol over httpx. It knows neither the engine nor the server.

async with AsyncClient("http://localhost:8000") as client:
    async with client.stream("Hello.", voice="heart") as speech:
        async for piece in speech:  # 16-bit PCM as it is made
            ...
"""

from vivavoce_client.client import DEFAULT_URL, AsyncClient, AsyncSpeech, Client, Speech
from vivavoce_client.protocol import (
    ApiError,
    ConnectionFailed,
    SpeechOptions,
    StreamBroken,
    VivavoceError,
    Voice,
)

__all__ = [
    "DEFAULT_URL",
    "ApiError",
    "AsyncClient",
    "AsyncSpeech",
    "Client",
    "ConnectionFailed",
    "Speech",
    "SpeechOptions",
    "StreamBroken",
    "VivavoceError",
    "Voice",
]
