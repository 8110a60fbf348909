"""wyoming-openai over /v1/realtime."""

import sys

from tests.clients.real.wyoming_openai.proxy import run

run("wyoming_openai/realtime", sys.argv[1])
