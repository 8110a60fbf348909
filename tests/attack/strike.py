"""`python -m tests.attack.strike NAME URL SECONDS [KEY]`: one hostile input, several at once, again and again.

A process of its own, so that the attacker's work does not delay the listeners that are measured. Prints the answers as
JSON.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from tests.attack import bodies, connections, messages
from tests.attack.target import Refused, Target

NICENESS = 5
"""The attacker's machine is another one: here, it must not take the processor from the server."""
LAST_S = 150.0
"""Seconds for an input that is under way when the time is over. The server gives a body 120 s, which an attacker on a
busy machine may need."""
Setting = Literal["open", "keys", "few descriptors"]


@dataclass(frozen=True, slots=True)
class Input:
    """A hostile input. `settings` are the servers that it is sent to, `at_once` the attackers that send it."""

    act: Callable[[Target], Awaitable[None]]
    at_once: int = 2
    settings: tuple[Setting, ...] = ("open",)

    @property
    def name(self) -> str:
        return self.act.__name__.replace("_", " ")


KEYED: tuple[Setting, ...] = ("keys",)
INPUTS: tuple[Input, ...] = (
    Input(bodies.pauses),
    Input(bodies.batches_of_pauses),
    Input(bodies.batches_of_nothing),
    Input(bodies.batches_of_many),
    Input(bodies.embeddings_of_nothing),
    Input(bodies.embeddings_without_end),
    Input(bodies.embeddings_of_numbers),
    Input(bodies.mixes_without_end),
    Input(bodies.large_json),
    Input(bodies.many_keys),
    Input(bodies.deep_json),
    Input(bodies.long_numbers),
    Input(bodies.texts_at_the_limit),
    Input(bodies.forms_of_many_parts),
    Input(bodies.forms_of_other_sites),
    Input(bodies.names_of_other_hosts),
    Input(bodies.bombs_as_recordings),
    Input(bodies.many_recordings, 1),
    Input(bodies.forged_lines),
    Input(bodies.json_without_a_key, settings=KEYED),
    Input(bodies.forms_without_a_key, settings=KEYED),
    Input(messages.silent_sockets, settings=("open", "keys")),
    Input(messages.empty_messages),
    Input(messages.empty_messages_of_elevenlabs),
    Input(messages.empty_messages_of_contexts),
    Input(messages.many_contexts),
    Input(messages.quotes_without_end),
    Input(messages.letters_without_end),
    Input(messages.large_messages),
    Input(messages.deep_messages),
    Input(messages.many_configurations),
    Input(messages.clones_on_a_socket, 1),
    Input(messages.many_items),
    Input(messages.many_responses, 1),
    Input(messages.never_reading_live),
    Input(messages.pages_of_other_sites),
    Input(connections.slow_heads, 40),
    Input(connections.slow_bodies, 40),
    Input(connections.large_heads),
    Input(connections.small_chunks),
    Input(connections.two_lengths),
    Input(connections.pipelined_heads),
    Input(connections.pipelined_requests),
    Input(connections.half_closed),
    Input(connections.no_http),
    Input(connections.resets),
    Input(connections.never_reading),
    Input(connections.descriptor_storm, 2, ("few descriptors",)),
)
BY_NAME = {hostile.name: hostile for hostile in INPUTS}


async def strike(hostile: Input, target: Target, seconds: float) -> None:
    """Sends the input again and again until the time is over."""
    until_s = time.monotonic() + seconds

    async def again_and_again() -> None:
        while time.monotonic() < until_s:
            with suppress(Refused):
                await hostile.act(target)
            await asyncio.sleep(0.01)

    async with asyncio.timeout(seconds + LAST_S):
        await asyncio.gather(*(again_and_again() for _ in range(hostile.at_once)))


def main() -> None:
    os.nice(NICENESS)
    name, url, seconds = sys.argv[1:4]
    target = Target(url, next(iter(sys.argv[4:]), None))
    try:
        asyncio.run(strike(BY_NAME[name], target, float(seconds)))
    except TimeoutError:
        target.answers["never answered"] += 1
    print(json.dumps(target.answers))


if __name__ == "__main__":
    main()
