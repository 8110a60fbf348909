"""The sessions that are run: one line for each script."""

from tests.clients.real.harness import Session

SESSIONS = [
    Session("pipecat/elevenlabs_ws", live=True),
    Session("elevenlabs/live_text", live=True, door="tls"),
    Session("elevenlabs/stream", live=False),
    Session("elevenlabs_npm/stream", live=False),
    Session("openai_npm/events", live=False),
    Session("openai_npm/realtime", live=False, door="tls"),
    Session("ai_sdk/speech", live=False, streams=False),
    Session("wyoming/in_pieces", live=True, door="wyoming"),
    Session("wyoming/whole_texts", live=False, door="wyoming"),
    Session("wyoming_openai/speech", live=True),
    Session("wyoming_openai/realtime", live=False),
]
