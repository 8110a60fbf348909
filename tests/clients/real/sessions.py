"""The sessions that are run: one line for each script."""

from tests.clients.real.harness import Session

SESSIONS = [
    Session("pipecat/elevenlabs_ws", live=True),
]
