"""Examples of OpenAI's Realtime events for the AsyncAPI document, without `type` and the server's `event_id`."""

from typing import Any, Final

ITEM: Final = {
    "type": "message",
    "id": "item_1",
    "role": "user",
    "content": [{"type": "input_text", "text": "Hello there."}],
}
OUTPUT: Final = {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "marin", "speed": 1.0}
REALTIME_RECEIVED: Final[dict[str, dict[str, Any]]] = {
    "session.update": {"session": {"type": "realtime", "audio": {"output": {"voice": "marin", "speed": 1.0}}}},
    "conversation.item.create": {"item": ITEM},
    "conversation.item.delete": {"item_id": "item_1"},
    "conversation.item.retrieve": {"item_id": "item_1"},
    "conversation.item.truncate": {"item_id": "item_2", "content_index": 0, "audio_end_ms": 0},
    "response.create": {"response": {"metadata": {"turn": "1"}}},
    "response.cancel": {"response_id": "resp_1"},
    "input_audio_buffer.append": {},
    "input_audio_buffer.clear": {},
}
"""Type of a client's event → its other fields."""

_SENT_ITEM: Final = {**ITEM, "object": "realtime.item", "status": "completed"}
_SPOKEN_ITEM: Final = {
    "id": "item_2",
    "object": "realtime.item",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_audio", "transcript": "Hello there."}],
}
_SESSION: Final = {
    "id": "sess_1",
    "object": "realtime.session",
    "type": "realtime",
    "model": "gpt-realtime",
    "output_modalities": ["audio"],
    "instructions": "",
    "tools": [],
    "tool_choice": "none",
    "max_output_tokens": "inf",
    "tracing": None,
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "transcription": None,
            "turn_detection": None,
            "noise_reduction": None,
        },
        "output": OUTPUT,
    },
}
_RESPONSE: Final = {
    "id": "resp_1",
    "object": "realtime.response",
    "status": "in_progress",
    "status_details": None,
    "output": [],
    "conversation_id": "conv_1",
    "output_modalities": ["audio"],
    "max_output_tokens": "inf",
    "audio": {"output": OUTPUT},
    "metadata": {"turn": "1"},
    "usage": None,
}
_USAGE: Final = {
    "total_tokens": 15,
    "input_tokens": 3,
    "output_tokens": 12,
    "input_token_details": {"text_tokens": 3, "audio_tokens": 0, "cached_tokens": 0},
    "output_token_details": {"text_tokens": 0, "audio_tokens": 12},
    "characters_per_minute": 750.0,
    "words_per_minute": 125.0,
}
_PLACE: Final = {"response_id": "resp_1", "item_id": "item_2", "output_index": 0, "content_index": 0}
_OUTPUT_ITEM: Final = {"response_id": "resp_1", "output_index": 0, "item": _SPOKEN_ITEM}
REALTIME_SENT: Final[dict[str, dict[str, Any]]] = {
    "session.created": {"session": _SESSION},
    "session.updated": {"session": _SESSION},
    "conversation.item.added": {"previous_item_id": None, "item": _SENT_ITEM},
    "conversation.item.done": {"previous_item_id": None, "item": _SENT_ITEM},
    "conversation.item.retrieved": {"item": _SENT_ITEM},
    "conversation.item.deleted": {"item_id": "item_1"},
    "conversation.item.truncated": {"item_id": "item_2", "content_index": 0, "audio_end_ms": 0},
    "input_audio_buffer.cleared": {},
    "response.created": {"response": _RESPONSE},
    "response.output_item.added": {**_OUTPUT_ITEM, "item": {**_SPOKEN_ITEM, "status": "in_progress", "content": []}},
    "response.content_part.added": {**_PLACE, "part": {"type": "audio", "transcript": ""}},
    "response.output_audio_transcript.delta": {**_PLACE, "delta": "Hello there."},
    "response.output_audio.delta": {**_PLACE, "delta": "AAAAAA=="},
    "response.output_audio.done": _PLACE,
    "response.output_audio_transcript.done": {**_PLACE, "transcript": "Hello there."},
    "response.content_part.done": {**_PLACE, "part": {"type": "audio", "transcript": "Hello there."}},
    "response.output_item.done": _OUTPUT_ITEM,
    "response.done": {"response": {**_RESPONSE, "status": "completed", "output": [_SPOKEN_ITEM], "usage": _USAGE}},
    "error": {
        "error": {
            "type": "invalid_request_error",
            "code": "no_text",
            "message": "There is no text to speak",
            "param": "response.input",
            "event_id": None,
        }
    },
}
"""Type of a server's event → its other fields."""
