"""The sessions that are run: one line for each script."""

from tests.clients.real.harness import Session

SESSIONS = [
    Session("livekit/elevenlabs_ws", live=True, tolerance_s=0.2),
    Session("livekit/openai_tts", live=True, tolerance_s=0.2),
    Session("livekit/realtime", live=False),
    Session("openai_agents/realtime", live=False),
    Session("openai_agents/voice", live=True),
    Session("pipecat/elevenlabs_http", live=True),
    Session("pipecat/elevenlabs_ws", live=True),
    Session("pipecat/openai_tts", live=True),
    Session("pipecat/realtime", live=False),
]
