"""A thinker on an OpenAI-compatible server that streams token ids, such as vLLM. Text chats only.

The conversation goes there as token ids, by POST /v1/completions, so that both sides read the same tokens and no text
of a client becomes a control token. The answer must come back as ids (`return_token_ids`). Its text is never turned
into ids: the same text may have other ones.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import httpx
from vivavoce_engine import (
    ChatMessage,
    EngineError,
    NotServing,
    Overloaded,
    Rejected,
    Thinker,
    ThinkerEnd,
    ThinkerFailed,
    ThinkerPrompt,
    ThinkerText,
    ThinkerToken,
    ThinkOptions,
    Thought,
)

log = logging.getLogger(__name__)

CONNECT_S = 5.0
RETRY_S = 5.0
MAX_ERROR_CHARS = 500
"""Most characters of the other server's message that a client is told."""
ENDS = {"stop": "stop", "length": "length"}
NO_IDS = "the thinker's server sends text without token ids; it must follow `return_token_ids`, as vLLM does"


class ExternalThinker(Thinker):
    """The thinker that a server at `url` (with /v1) runs.

    `model` is its name there; None takes the first that the server lists. A server that sends nothing for `stall_s`
    has failed. `text` is that of the talker's checkpoint, which must be the same.
    """

    def __init__(self, text: ThinkerText, url: str, model: str | None, key: str | None, stall_s: float) -> None:
        super().__init__(text)
        self._url = url.rstrip("/")
        self._model = model
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._stall_s = stall_s
        # Made here, because it takes 50 ms, for which the event loop would stop.
        self._tls = httpx.create_ssl_context(trust_env=False) if self._url.startswith("https:") else False
        self._client: httpx.AsyncClient | None = None

    @property
    def takes_media(self) -> bool:
        return False

    @property
    def ready(self) -> bool:
        return True

    @property
    def failed(self) -> bool:
        return False

    def start(self) -> None:
        """Nothing is started: the other server may come up later."""

    def stop(self) -> None:
        """Nothing runs here."""

    async def stream(self, messages: Sequence[ChatMessage], options: ThinkOptions) -> AsyncGenerator[Thought, None]:
        if any(message.has_media for message in messages):
            raise Rejected("messages", "this thinker reads text alone")
        ids = self.text.prompt([(each.role, [str(part) for part in each.parts]) for each in messages])
        yield ThinkerPrompt(tuple(ids))
        answer = _Answer(ids, self.text.control.im_end)
        async with aclosing(self._events(await self._body(ids, options))) as events:
            async for event in events:
                for token in answer.read(event):
                    yield ThinkerToken(token)
        yield answer.end()

    async def _body(self, ids: list[int], options: ThinkOptions) -> dict[str, Any]:
        drawn = {"temperature": options.temperature, "top_p": options.top_p, "seed": options.seed}
        return {
            "model": self._model or await self._first_model(),
            "prompt": ids,
            "max_tokens": options.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "stop_token_ids": [self.text.control.im_end],
            **{name: value for name, value in drawn.items() if value is not None},
        }

    async def _first_model(self) -> str:
        try:
            async with asyncio.timeout(self._stall_s):
                response = await self._http().get(f"{self._url}/models", headers=self._headers)
            response.raise_for_status()
            self._model = str(response.json()["data"][0]["id"])
        except (httpx.HTTPError, TimeoutError, ValueError, LookupError, TypeError) as error:
            log.warning("the thinker's server lists no model: %s", type(error).__name__)
            raise NotServing("the thinker's server cannot be reached, or lists no model") from error
        return self._model

    def _http(self) -> httpx.AsyncClient:
        if self._client is None or self._client.is_closed:
            # How long it may be silent is counted by `_events`; proxies of the environment are not used.
            timeout = httpx.Timeout(None, connect=CONNECT_S)
            self._client = httpx.AsyncClient(verify=self._tls, timeout=timeout, trust_env=False)
        return self._client

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The objects of the answer's events, in order.

        Raises:
            EngineError: the server cannot be reached, refuses, stalls, or breaks off.
        """
        try:
            request = self._http().build_request("POST", f"{self._url}/completions", json=body, headers=self._headers)
            async with asyncio.timeout(self._stall_s):
                response = await self._http().send(request, stream=True)
            try:
                if response.status_code != httpx.codes.OK:
                    raise await self._refusal(response)
                lines = response.aiter_lines()
                while (line := await self._next_line(lines)) is not None:
                    if line.startswith("data:") and (content := line[5:].strip()):
                        if content == "[DONE]":
                            return
                        yield _object(content)
            finally:
                await response.aclose()
        except TimeoutError:
            raise ThinkerFailed(f"the thinker's server sent nothing for {self._stall_s:g} s") from None
        except httpx.ConnectError as error:
            raise NotServing("the thinker's server cannot be reached") from error
        except httpx.HTTPError as error:
            raise ThinkerFailed("the thinker's server broke off its answer") from error

    async def _next_line(self, lines: AsyncIterator[str]) -> str | None:
        """The next line of an answer, None behind the last one. Raises TimeoutError if it does not come."""
        async with asyncio.timeout(self._stall_s):
            return await anext(lines, None)

    async def _refusal(self, response: httpx.Response) -> EngineError:
        """The error for an answer that is not a stream."""
        async with asyncio.timeout(self._stall_s):
            content = await response.aread()
        message, status = _message_of(content), response.status_code
        log.warning("the thinker's server answers with status %d", status)
        if status in (httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY):
            return Rejected("messages", f"the thinker's server refuses the conversation: {message}")
        if status == httpx.codes.TOO_MANY_REQUESTS:
            after = response.headers.get("retry-after", "")
            return Overloaded("the thinker's server is busy", float(after) if after.isdecimal() else RETRY_S)
        return NotServing(f"the thinker's server answers with status {status}")


class _Answer:
    """Reads the events of one answer, and checks that none of its tokens is missing."""

    def __init__(self, prompt: list[int], end_id: int) -> None:
        self._prompt = prompt
        self._end_id = end_id
        self._tokens = 0
        self._ended = False
        """True once the token that ends an answer has come."""
        self._reason: str | None = None

    def read(self, event: dict[str, Any]) -> list[int]:
        """The ids that an event brings, without the one that ends the answer. Raises ThinkerFailed."""
        if "error" in event:
            raise ThinkerFailed(f"the thinker's server broke off its answer: {_told(event['error'])}")
        try:
            return self._read(event)
        except (TypeError, AttributeError, LookupError) as error:
            raise ThinkerFailed("the thinker's server sends events that are no completion") from error

    def _read(self, event: dict[str, Any]) -> list[int]:
        found: list[int] = []
        for choice in event.get("choices") or ():
            read = choice.get("prompt_token_ids") or event.get("prompt_token_ids")
            if read is not None and read != self._prompt:
                raise ThinkerFailed("the thinker's server read other tokens than it was sent")
            ids = choice.get("token_ids")
            if (choice.get("text") and not ids) or not all(type(each) is int for each in ids or ()):
                raise ThinkerFailed(NO_IDS)
            found += ids or ()
            self._reason = choice.get("finish_reason") or self._reason
        self._tokens += len(found)
        usage = event.get("usage")
        if usage and self._reason is not None and usage["completion_tokens"] != self._tokens:
            made = usage["completion_tokens"]
            raise ThinkerFailed(f"the thinker's server made {made} tokens, and sent the ids of {self._tokens}")
        if self._end_id in found:
            self._ended = True
            found = found[: found.index(self._end_id)]
        elif self._ended and found:
            raise ThinkerFailed("the thinker's server goes on behind the end of its answer")
        return found

    def end(self) -> ThinkerEnd:
        """The end of the answer. Raises ThinkerFailed if it has none that is proper."""
        match ENDS.get(self._reason or ""):
            case "length" if not self._ended:
                return ThinkerEnd("length")
            case "stop" | "length":
                return ThinkerEnd("stop")
        if self._ended:
            return ThinkerEnd("stop")
        if self._reason is None:
            raise ThinkerFailed("the thinker's server broke off its answer")
        raise ThinkerFailed(f"the thinker's server ended its answer for the reason {self._reason[:64]!r}")


def _object(content: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ThinkerFailed("the thinker's server sends events that are not JSON") from error
    if not isinstance(found, dict):
        raise ThinkerFailed("the thinker's server sends events that are no completion")
    return found


def _message_of(content: bytes) -> str:
    """The message of an error's body: OpenAI's, or vLLM's older form."""
    try:
        body = json.loads(content)
        return _told(body.get("error", body))
    except (ValueError, AttributeError):
        return "it gives no reason"


def _told(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:MAX_ERROR_CHARS]
