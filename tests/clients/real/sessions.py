"""The sessions that are run: one line for each script."""

from tests.clients.real.harness import Session

SESSIONS = [
    Session("livekit/elevenlabs_words", live=True, tolerance_s=0.2),
    Session("livekit/elevenlabs_ws", live=True, tolerance_s=0.2),
    Session("livekit/openai_tts", live=True, tolerance_s=0.2),
    Session("livekit/realtime", live=False),
    Session("openai_agents/realtime", live=False),
    Session("openai_agents/voice", live=True),
    Session("pipecat/elevenlabs_http", live=True),
    Session("pipecat/elevenlabs_words", live=True),
    Session("pipecat/elevenlabs_ws", live=True),
    Session("pipecat/openai_tts", live=True),
    Session("pipecat/realtime", live=False),
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
