"""A thinker on another server: its protocol against a stand-in for vLLM, and every way in which it fails."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from vivavoce_engine import (
    ChatMessage,
    EngineError,
    NotServing,
    Overloaded,
    Picture,
    Rejected,
    ThinkerEnd,
    ThinkerFailed,
    ThinkerPrompt,
    ThinkerToken,
    ThinkOptions,
    Thought,
)
from vivavoce_engine.thinker.fake import CodePoints
from vivavoce_server import ServerConfig
from vivavoce_server.chat.external import ExternalThinker

from tests.support.chatting import HELLO, SPOKEN, Json, ask, chat_server, error_of, streamed
from tests.support.waiting import soon, wait_until

TEXT = CodePoints()
END = TEXT.control.im_end
CONVERSATION = (ChatMessage("system", ("Be brief.",)), ChatMessage("user", ("Hello.",)))
PROMPT = TEXT.prompt([("system", ["Be brief."]), ("user", ["Hello."])])
Event = Json | str | float | None
"""A chunk, a line as it is, a pause in seconds, or None: the connection breaks."""


def chunk(text: str, finish_reason: str | None = None, **changes: Any) -> Json:
    """A chunk of vLLM's, with the ids of its text."""
    choice = {"index": 0, "text": text, "token_ids": [*map(ord, text)], "finish_reason": finish_reason, **changes}
    return {"id": "cmpl-1", "object": "text_completion", "choices": [choice]}


def usage(tokens: int) -> Json:
    return {"id": "cmpl-1", "choices": [], "usage": {"prompt_tokens": len(PROMPT), "completion_tokens": tokens}}


GOOD: list[Event] = [
    chunk("H", prompt_token_ids=PROMPT),
    chunk("i."),
    chunk("", "stop", token_ids=[END]),
    usage(4),
    "[DONE]",
]


@dataclass
class StandIn:
    """A server that speaks vLLM's protocol by a script."""

    events: list[Event] = field(default_factory=lambda: list(GOOD))
    status: int = 200
    body: Json = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[Json] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    open: int = 0
    url: str = ""


@contextmanager
def stand_in(**changes: Any) -> Iterator[StandIn]:
    server = StandIn(**changes)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._whole(200, {"data": [{"id": "thinker-30b"}]})

        def do_POST(self) -> None:
            server.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            server.keys.append(self.headers.get("authorization"))
            assert self.path == "/v1/completions"
            if server.status != 200:
                self._whole(server.status, server.body)
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
            server.open += 1
            try:
                self._stream()
            except OSError:
                pass
            finally:
                server.open -= 1

        def _stream(self) -> None:
            for event in server.events:
                match event:
                    case None:
                        return
                    case float():
                        threading.Event().wait(event)
                    case _:
                        line = event if isinstance(event, str) else json.dumps(event)
                        self.wfile.write(f"data: {line}\n\n".encode())
                        self.wfile.flush()

        def _whole(self, status: int, body: Json) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"content-length": str(len(content)), **server.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    server.url = f"http://127.0.0.1:{listener.server_port}/v1"
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


def thinker_at(url: str, **changes: Any) -> ExternalThinker:
    settings: dict[str, Any] = {"model": None, "key": None, "stall_s": 20.0, **changes}
    return ExternalThinker(TEXT, url, **settings)


async def thoughts(server: StandIn, options: ThinkOptions | None = None, **changes: Any) -> list[Thought]:
    thinker = thinker_at(server.url, **changes)
    return await soon(_all(thinker, options or ThinkOptions()))


async def _all(thinker: ExternalThinker, options: ThinkOptions) -> list[Thought]:
    try:
        return [thought async for thought in thinker.stream(CONVERSATION, options)]
    finally:
        await thinker.aclose()


def text_of(answer: list[Thought]) -> str:
    return "".join(chr(each.id) for each in answer if isinstance(each, ThinkerToken))


async def test_the_conversation_goes_out_as_ids_and_the_answer_comes_back_as_ids() -> None:
    with stand_in() as server:
        options = ThinkOptions(max_tokens=5, temperature=0.6, top_p=0.9, seed=3)
        answer = await thoughts(server, options, key="secret")
    prompt, *tokens, end = answer
    assert isinstance(prompt, ThinkerPrompt)
    assert (list(prompt.ids), prompt.media) == (PROMPT, None)
    assert text_of(tokens) == "Hi."
    assert end == ThinkerEnd("stop")
    assert server.keys == ["Bearer secret"]
    (asked,) = server.asked
    assert asked == {
        "model": "thinker-30b",
        "prompt": PROMPT,
        "max_tokens": 5,
        "temperature": 0.6,
        "top_p": 0.9,
        "seed": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "stop_token_ids": [END],
    }


async def test_what_a_request_leaves_out_is_the_other_servers_choice() -> None:
    with stand_in() as server:
        await thoughts(server, model="mine")
    assert server.asked[0].keys().isdisjoint({"temperature", "top_p", "seed"})
    assert server.asked[0]["model"] == "mine"


async def test_the_answers_ends() -> None:
    cut = [chunk("Hi"), chunk(".", "length"), usage(3)]
    with stand_in(events=cut) as server:
        assert (await thoughts(server))[-1] == ThinkerEnd("length")
    inside = [chunk("Hi."), chunk("", token_ids=[END])]  # without a reason, and without [DONE]
    with stand_in(events=inside) as server:
        answer = await thoughts(server)
        assert (text_of(answer), answer[-1]) == ("Hi.", ThinkerEnd("stop"))
    last = [chunk("Hi."), chunk("", "length", token_ids=[END])]  # the limit fell on the end itself
    with stand_in(events=last) as server:
        assert (await thoughts(server))[-1] == ThinkerEnd("stop")


FAULTS: dict[str, tuple[list[Event], str]] = {
    "text without ids": ([chunk("Hi.", token_ids=None)], "without token ids"),
    "a gap": ([chunk("H"), chunk("i", token_ids=[]), chunk(".")], "without token ids"),
    "a gap without text": ([chunk("H"), chunk(".", "stop"), usage(4)], "made 4 tokens, and sent the ids of 2"),
    "ids that are words": ([chunk("H", token_ids=["H"])], "without token ids"),
    "another prompt": ([chunk("H", prompt_token_ids=[1, 2])], "read other tokens"),
    "no end": ([chunk("Hi.")], "broke off"),
    "a broken connection": ([chunk("Hi."), None], "broke off"),
    "an error inside": ([chunk("Hi."), {"error": {"message": "out of blocks"}}], "out of blocks"),
    "another reason": ([chunk("Hi.", "abort")], "for the reason 'abort'"),
    "no JSON": ([chunk("Hi."), "{"], "not JSON"),
    "no object": (["[1]"], "no completion"),
    "no completion": ([{"choices": [3]}], "no completion"),
    "text behind the end": ([chunk("", token_ids=[END]), chunk("x", "stop")], "goes on behind the end"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_an_answer_that_is_no_proper_one_is_a_fault(name: str) -> None:
    events, message = FAULTS[name]
    with stand_in(events=events) as server, pytest.raises(ThinkerFailed, match=message):
        await thoughts(server)


async def test_a_server_that_stalls_has_failed() -> None:
    late = [chunk("H"), 2.0, chunk("i")]
    with stand_in(events=late) as server, pytest.raises(ThinkerFailed, match=r"sent nothing for 0\.3 s"):
        await thoughts(server, stall_s=0.3)
    with stand_in(events=[2.0]) as server, pytest.raises(ThinkerFailed, match="sent nothing"):
        await thoughts(server, stall_s=0.3)


REFUSALS: dict[int, tuple[type[EngineError], str]] = {
    400: (Rejected, "the context is 10 tokens"),
    422: (Rejected, "the context is 10 tokens"),
    401: (NotServing, "status 401"),
    404: (NotServing, "status 404"),
    429: (Overloaded, "busy"),
    503: (NotServing, "status 503"),
}


@pytest.mark.parametrize("status", REFUSALS)
async def test_refusals_keep_their_meaning(status: int) -> None:
    kind, message = REFUSALS[status]
    body = {"error": {"message": "the context is 10 tokens", "type": "BadRequestError"}}
    busy = stand_in(status=status, body=body, headers={"Retry-After": "7"})
    with busy as server, pytest.raises(kind, match=message) as refused:
        await thoughts(server)
    if isinstance(refused.value, Overloaded):
        assert refused.value.retry_after_s == 7


async def test_a_server_that_is_away_is_not_serving() -> None:
    with stand_in() as server:
        pass
    with pytest.raises(NotServing):
        await thoughts(server)
    with pytest.raises(NotServing):
        await thoughts(server, model="mine")


async def test_a_reader_that_leaves_closes_the_connection() -> None:
    with stand_in(events=[chunk("H"), *[0.05, chunk("i")] * 400]) as server:
        thinker = thinker_at(server.url)
        async with aclosing(thinker), aclosing(thinker.stream(CONVERSATION, ThinkOptions())) as answer:
            for _ in range(3):
                await soon(anext(answer))
            assert server.open == 1
        await asyncio.to_thread(wait_until, lambda: server.open == 0)


async def test_media_are_refused_by_a_thinker_that_reads_text() -> None:
    seen = ChatMessage("user", (Picture(np.zeros((2, 2, 3), np.uint8)),))
    with pytest.raises(Rejected):
        await soon(anext(thinker_at("http://127.0.0.1:9/v1").stream([seen], ThinkOptions())))


# ---- behind the chat route ------------------------------------------------------------------------------------


@contextmanager
def served(server: StandIn, **changes: Any) -> Iterator[Callable[..., Any]]:
    with chat_server(thinker_at(server.url, **changes), ServerConfig(leading_silence="keep")) as running:
        yield lambda call, body: call(running, body)


def test_an_answer_from_another_server_is_spoken() -> None:
    events: list[Event] = [chunk("Hi there"), chunk("!", "stop"), usage(9), "[DONE]"]
    with stand_in(events=events) as server, served(server) as request:
        answer = request(streamed, SPOKEN)
        assert (answer.transcript, answer.finish_reason, answer.done) == ("Hi there!", "stop", True)
        assert len(answer.audio) == len("Hi there!") * 1920 * 2
        assert request(ask, HELLO).json()["choices"][0]["message"]["content"] == "Hi there!"


def test_its_faults_end_the_speech_with_an_error() -> None:
    with stand_in(events=[chunk("Hi"), 0.3, chunk("x", token_ids=[])]) as server, served(server) as request:
        assert error_of(request(ask, SPOKEN)) == (502, None, "thinker_failed")
        answer = request(streamed, SPOKEN)
        assert answer.error is not None
        assert (answer.error["code"], answer.done) == ("thinker_failed", False)
        assert answer.transcript == "Hi"


def test_its_refusals_are_the_requests() -> None:
    with stand_in(status=400, body={"message": "too long"}) as server, served(server) as request:
        answer = request(ask, SPOKEN)
        assert error_of(answer) == (400, "messages", "invalid_value")
        assert "too long" in answer.json()["error"]["message"]
    with stand_in(status=429, headers={"Retry-After": "9"}) as server, served(server) as request:
        answer = request(ask, SPOKEN)
        assert error_of(answer) == (429, None, "queue_full")
        assert answer.headers["retry-after"] == "9"


def test_sounds_and_pictures_are_refused_before_they_are_read() -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,bm8="}}]
    with stand_in() as server, served(server) as request:
        answer = request(ask, {"messages": [{"role": "user", "content": content}]})
        assert error_of(answer) == (400, "messages[0].content[0]", "not_available")
        assert server.asked == []
