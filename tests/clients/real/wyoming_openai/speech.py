"""wyoming-openai over POST /v1/audio/speech."""

import sys

from tests.clients.real.wyoming_openai.proxy import run

run("wyoming_openai/speech", sys.argv[1])
