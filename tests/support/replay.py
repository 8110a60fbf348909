"""Requests of programs that cannot be run here, as data, and their replay against a server.

A file is {"client", "steps"}. A step is one of:

    {"get": PATH, "headers"?, "lists": {"ids", "at"}}        an answer in JSON has a list at the path `at` (names
                                                             between dots), whose fields of the last name are `ids`
    {"post": PATH, "headers"?, "body", "hears": {"text", "type"}}
                                                             the answer is audio of this type, as long as the text
    {"post": PATH, "headers"?, "body", "refused": {"status", "code", "param"}}
    {"dial": PATH, "headers"?, "events": [...], "hears": {"text"}}
                                                             a socket; an event is {"send": {...}}, or {"until": TYPE}
                                                             for those up to one of this type
"""

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import httpx
import pytest
from websockets.sync.client import connect

from tests.support.waiting import HUNG_S

CHARACTER_S = 0.08
"""Length of a character on the fake engine."""
RATE_HZ = 24000

Step = Mapping[str, Any]


def replay(file: Path, url: str) -> None:
    for step in json.loads(file.read_text(encoding="utf-8"))["steps"]:
        if "dial" in step:
            _dial(step, url)
        else:
            _ask(step, url)


def duration_s(audio: bytes) -> float:
    """Length of a file in any container."""
    with av.open(io.BytesIO(audio), "r") as container:
        return sum(frame.samples / frame.sample_rate for frame in container.decode(container.streams.audio[0]))


def _ask(step: Step, url: str) -> None:
    method, path = ("GET", step["get"]) if "get" in step else ("POST", step["post"])
    headers = step.get("headers", {})
    response = httpx.request(method, url + path, headers=headers, json=step.get("body"), timeout=HUNG_S)
    if "refused" in step:
        error = response.json()["error"]
        seen = {"status": response.status_code, "code": error["code"], "param": error["param"]}
        assert seen == step["refused"]
        return
    assert response.status_code == 200, f"{path}: {response.text}"
    if "lists" in step:
        *names, last = step["lists"]["at"].split(".")
        found = response.json()
        for name in names:
            found = found[name]
        assert [each[last] for each in found] == step["lists"]["ids"]
    else:
        assert response.headers["content-type"] == step["hears"]["type"]
        assert duration_s(response.content) == pytest.approx(len(step["hears"]["text"]) * CHARACTER_S, abs=0.1)


def _dial(step: Step, url: str) -> None:
    audio = b""
    address = url.replace("http", "ws", 1) + step["dial"]
    with connect(address, additional_headers=step.get("headers", {}), proxy=None) as socket:
        for event in step["events"]:
            if "send" in event:
                socket.send(json.dumps(event["send"]))
                continue
            seen = {"type": ""}
            while seen["type"] != event["until"]:
                seen = json.loads(socket.recv(HUNG_S))
                assert seen["type"] != "error", seen
                audio += (
                    base64.b64decode(seen.get("delta", "")) if seen["type"] == "response.output_audio.delta" else b""
                )
    assert len(audio) == round(len(step["hears"]["text"]) * CHARACTER_S * RATE_HZ) * 2
