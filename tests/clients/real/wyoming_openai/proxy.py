"""wyoming-openai between Home Assistant and the server, started as its users do."""

import asyncio
import os
import shlex
import socket
import subprocess
import sys

from wyoming.info import TtsProgram

from tests.clients.real.steps import block, follow
from tests.clients.real.wyoming.speaking import HomeAssistant, program_at

START_S = 60.0


def run(name: str, url: str) -> None:
    """Follows a session through a proxy with the settings ```sh NAME of the documents."""
    variables = dict(word.split("=", 1) for word in shlex.split(block(name, url)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    # What the proxy prints must not be taken for steps.
    proxy = subprocess.Popen(
        [sys.executable, "-m", "wyoming_openai", "--uri", address],
        env={**os.environ, **variables},
        stdout=sys.stderr,
        stdin=subprocess.DEVNULL,
    )
    try:
        asyncio.run(_follow(address))
    finally:
        proxy.terminate()
        proxy.wait()


async def _follow(address: str) -> None:
    async with asyncio.timeout(START_S):
        program = await _program(address)
    await follow(HomeAssistant(address, program.voices[0].name, program.supports_synthesize_streaming))


async def _program(address: str) -> TtsProgram:
    """Waits until the proxy answers."""
    while True:
        try:
            return await program_at(address)
        except OSError:
            await asyncio.sleep(0.2)
