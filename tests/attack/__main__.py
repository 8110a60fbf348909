"""`python -m tests.attack --minutes 30`: hostile inputs, one after the other, beside three good listeners.

The server is a process of its own: with the shipped voice, or the fake engine (`--model fake`). For each setting (open,
with keys, with few file descriptors) there is an undisturbed run, then one of each hostile input (strike.py). A table
tells what the good listeners, the event loop and the memory of each process made of it; judge.py has the bounds. Exits
with 1 if one was broken. Loopback only.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import httpx

from tests.attack.judge import FORGIVEN, Attack, Undisturbed, broken, head, row
from tests.attack.listeners import Listeners
from tests.attack.strike import INPUTS, LAST_S, Input, Setting
from tests.attack.watch import Scrape, largest_lags_s, memory_of, parse_metrics
from tests.soak.server import soaked_server

KEY = "attack-good-key"
FILES = 64
"""Descriptors of a server that has few."""
UTTERANCES = 4
"""The least of each listener under each input."""
REST_S = 0.5
START_S = 60.0
"""Seconds in which an attacker's process begins and ends, on a busy machine."""
GONE_S = 30.0
"""Seconds in which a server must answer again after an attack."""
SETTINGS: dict[Setting, tuple[str, ...]] = {
    "open": (),
    "keys": ("--api-keys", KEY),
    "few descriptors": (),
}
COMMON = ("--max-streams", "8", "--max-queue", "64", "--stall-s", "5", "--live-stall-s", "5")


class Run:
    """Attacks on one server."""

    def __init__(self, url: str, pid: int, setting: Setting) -> None:
        self._url = url
        self._pid = pid
        self._setting = setting
        self._headers = {"Authorization": f"Bearer {KEY}"} if setting == "keys" else {}
        self._listeners = Listeners(url, self._headers)

    async def baseline(self, seconds: float) -> Undisturbed:
        await self._listeners.hear(asyncio.sleep(0), UTTERANCES)  # the first ones are slower than all others
        with memory_of(self._pid) as memory:
            heard = await self._listeners.hear(asyncio.sleep(seconds), UTTERANCES)
        if heard.faults:
            raise SystemExit(f"the undisturbed run failed: {heard.faults[:3]}")
        medians = {name: median(times) for name, times in heard.first_audio_s.items()}
        return Undisturbed(medians, memory.most_mib)

    async def attack(self, hostile: Input, seconds: float) -> Attack:
        before = await self._scrape()
        answers: dict[str, int] = {}
        with memory_of(self._pid) as memory:
            heard = await self._listeners.hear(self._struck(hostile, seconds, answers), UTTERANCES)
            after = await self._scrape()
        faults = list(heard.faults[:3])
        faults += [f"process {pid} was killed for its memory" for pid in memory.killed]
        if after is None or before is None:
            faults.append(f"the server did not answer within {GONE_S:g} s")
        return Attack(
            name=f"{hostile.name} ({self._setting})" if self._setting != "open" else hostile.name,
            first_audio_s=heard.first_audio_s,
            most_mib=memory.most_mib,
            answers=answers,
            lags_s=[] if after is None or before is None else largest_lags_s(before, after, FORGIVEN + 1),
            slowest_health_s=max(heard.health_s, default=0.0),
            restarts=0.0 if after is None or before is None else after.restarts - before.restarts,
            faults=faults,
        )

    async def _struck(self, hostile: Input, seconds: float, answers: dict[str, int]) -> None:
        """Lets a process of its own attack; `answers` gets what it was told."""
        arguments = [hostile.name, self._url, str(seconds), *([KEY] if self._setting == "keys" else [])]
        command = [sys.executable, "-m", "tests.attack.strike", *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(seconds + LAST_S + START_S):
                told, _ = await process.communicate()
            answers.update(json.loads(told) if told else {"the attacker failed": 1})
        except TimeoutError:
            process.kill()
            answers["never answered"] = 1

    async def _scrape(self) -> Scrape | None:
        """The server's metrics, once it answers."""
        await asyncio.sleep(REST_S)
        until_s = time.monotonic() + GONE_S
        async with httpx.AsyncClient(base_url=self._url, headers=self._headers, trust_env=False) as http:
            while time.monotonic() < until_s:
                with contextlib.suppress(httpx.TransportError):
                    return parse_metrics((await http.get("/metrics", timeout=GONE_S)).text)
                await asyncio.sleep(REST_S)
        return None


async def attack_all(run: Run, hostile: list[Input], seconds: float) -> list[str]:
    """Sends the inputs, and drops those that were sent from the list. Ends early if the server has gone."""
    undisturbed = await run.baseline(seconds)
    medians = ", ".join(f"{name} {1000 * time_s:.0f} ms" for name, time_s in undisturbed.first_audio_s.items())
    print(f"\nundisturbed first audio: {medians}\n\n{head()}", flush=True)
    faults: list[str] = []
    while hostile:
        one = hostile.pop(0)
        attack = await run.attack(one, seconds)
        print(row(attack, undisturbed), flush=True)
        faults += broken(attack, undisturbed)
        if attack.faults and "did not answer" in attack.faults[-1]:
            break
    return faults


def attack_setting(setting: Setting, options: argparse.Namespace, seconds: float) -> list[str]:
    """Attacks servers of a setting, one after the other if one does not survive."""
    hostile = [one for one in INPUTS if setting in one.settings and options.only in one.name]
    faults: list[str] = []
    while hostile:
        faults += attack_server(setting, options.model, hostile, seconds)
    return faults


def attack_server(setting: Setting, model_name: str, hostile: list[Input], seconds: float) -> list[str]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = None if model_name == "shipped" else model_name
        if setting == "few descriptors":  # the server inherits it
            resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, limits[1]))
        try:
            process, url = stack.enter_context(soaked_server(folder, 30.0, model, (*COMMON, *SETTINGS[setting])))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        faults = asyncio.run(attack_all(Run(url, process.pid, setting), hostile, seconds))
        if process.poll() is not None:
            faults.append(f"the server ended with {process.poll()}")
        log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    return faults + faults_of_log(log)


MOST_LINES = 20_000


def faults_of_log(log: str) -> list[str]:
    """Promises about the log that an attack broke."""
    lines = log.splitlines()
    found = [number for number, line in enumerate(lines) if "Traceback" in line]
    faults = (
        [f"the log has {len(found)} tracebacks: {' / '.join(lines[found[0] - 1 : found[0] + 40])}"] if found else []
    )
    if any(line.startswith("FORGED") for line in lines) or "\x1b" in log:
        faults.append("the log: a client forged a line")
    if len(lines) > MOST_LINES:
        faults.append(f"the log has {len(lines)} lines")
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of all attacks together, about")
    parser.add_argument("--model", default="shipped", help="fake, or a checkpoint instead of the shipped voice")
    parser.add_argument("--only", default="", help="inputs whose name has this in it")
    options = parser.parse_args(arguments)
    seconds = max(1.0, options.minutes * 60 / len(INPUTS))
    faults: list[str] = []
    for setting in SETTINGS:
        faults += attack_setting(setting, options, seconds)
    for fault in faults[:50]:
        print("BROKEN", fault[:2000])
    print(f"broken bounds: {len(faults)}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
