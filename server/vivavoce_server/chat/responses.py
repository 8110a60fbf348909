"""Responses to chat requests: a whole completion, or its chunks as server-sent events."""

import base64
import json
import time
import uuid
from typing import Any

from starlette.types import Send
from vivavoce_engine import EngineError, Overloaded

from vivavoce_server.access import Caller
from vivavoce_server.chat.answer import Answer, Delta
from vivavoce_server.chat.completions import chunk
from vivavoce_server.chat.jobs import ChatJob
from vivavoce_server.errors import ApiError, ErrorBody, error_detail
from vivavoce_server.framing import SseFraming
from vivavoce_server.marks import SYNTHETIC_HEADER
from vivavoce_server.metrics import RequestOutcome, SpeechMeter, outcome_of
from vivavoce_server.request_lines import note_error
from vivavoce_server.service import Service
from vivavoce_server.streaming import SpokenResponse, with_silences
from vivavoce_server.whole_files import InBase64, WholeFile

EVENTS = SseFraming.media_type
JSON = "application/json"
DONE = b"data: [DONE]\n\n"


class ChatResponse(SpokenResponse):
    """Answers a conversation, whole or streamed.

    The status is sent once the first part of the answer is there, so an earlier failure is a proper error response. A
    later failure breaks the transfer off, after an event with the error. Nobody then takes the answer for complete.
    """

    def __init__(self, service: Service, caller: Caller, job: ChatJob) -> None:
        super().__init__(service, caller, EVENTS if job.request.stream else JSON, job.model)
        self._job = job
        number = uuid.uuid4().hex
        self._audio_id = f"audio_{number}"
        self._expires_s = int(job.chats.spoken.expires_s())
        self._head = {"id": f"chatcmpl-{number}", "created": int(time.time()), "model": job.model}

    async def speak(self, send: Send) -> None:
        meter = SpeechMeter(self.service.metrics, self._job.model, paced_by_text=True)
        outcome: RequestOutcome = "disconnected"  # the outcome of a cancellation, unless set below
        answer: Answer | None = None
        try:
            messages = await self._job.read(self.caller.client)
            if self._job.audio is not None and self._job.audio.mark is not None:
                self.headers[SYNTHETIC_HEADER] = self._job.audio.mark.header()
            async with Answer(self._job, messages, meter, self.caller.client) as answer:
                outcome = await (self._stream(answer, send) if self._job.request.stream else self._whole(answer, send))
        except Exception as error:
            outcome = outcome_of(error, admitted=answer is not None)
            raise
        finally:
            if answer is None or self._job.voice is None:
                meter.end(outcome)
            else:
                meter.end(outcome, answer.made_s, answer.frames, answer.rate)

    async def _whole(self, answer: Answer, send: Send) -> RequestOutcome:
        text, unspoken = "", ""
        with WholeFile() as file:
            async for delta in answer.deltas():
                text, unspoken = text + delta.text, unspoken + delta.unspoken
                await file.append(delta.audio)
            if answer.encoder is None:
                await self.send_whole([self._completion(answer, {"content": text})], send)
                return "completed"
            await file.complete(answer.encoder.complete(file.size))
            self._keep(text)
            audio = {"id": self._audio_id, "expires_at": self._expires_s, "transcript": text}
            if unspoken:
                audio["unspoken"] = unspoken
            # The file is sent from where it lies, between the two halves of the object.
            body = self._completion(answer, {"content": None, "audio": {**audio, "data": ""}})
            before, behind = body.rsplit(b'"data": ""', 1)
            await self.send_whole([before + b'"data": "', InBase64(file), b'"' + behind], send)
        return "completed"

    def _completion(self, answer: Answer, message: dict[str, Any]) -> bytes:
        """The body of a whole answer."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "refusal": None, **message},
            "logprobs": None,
            "finish_reason": answer.reason,
        }
        body = {
            **self._head,
            "object": "chat.completion",
            "usage": answer.usage.model_dump(),
            "system_fingerprint": None,
            "choices": [choice],
        }
        return json.dumps(body).encode()

    def _keep(self, text: str) -> None:
        """Remembers a spoken answer, for requests that name it by its id."""
        self._job.chats.spoken.add(self._audio_id, self.caller.client, text, self._expires_s)

    async def _stream(self, answer: Answer, send: Send) -> RequestOutcome:
        deltas = with_silences(answer.deltas())
        first = await anext(deltas, Delta())
        await self.start(send)
        spoken: list[str] = []
        try:
            await _send(send, self._opening() + self._part(first, spoken))
            async for delta in deltas:
                await _send(send, self._part(delta, spoken))
        except (EngineError, ApiError) as error:
            detail = error_detail(error)[1]
            note_error(detail.code, None)
            await _send(send, _data(ErrorBody(error=detail).model_dump()))
            # Without a last body message, the ASGI server cuts the connection. After a heartbeat, the engine may still
            # refuse the request.
            return "refused" if isinstance(error, Overloaded) and not spoken else "cut_off"
        await send({"type": "http.response.body", "body": self._closing(answer, "".join(spoken))})
        return "completed"

    def _part(self, delta: Delta | None, spoken: list[str]) -> bytes:
        """The chunks of a part, or a heartbeat for None. Adds its text to what was `spoken`."""
        if delta is None:
            return SseFraming.heartbeat or b""
        spoken.append(delta.text)
        return b"".join(map(self._event, self._changes(delta)))

    def _opening(self) -> bytes:
        """The first chunk: the role, and the id of the audio if there is any."""
        delta: dict[str, Any] = {"role": "assistant", "refusal": None}
        if self._job.voice is None:
            return self._event({**delta, "content": ""})
        return self._event({**delta, "content": None, "audio": {"id": self._audio_id}})

    def _changes(self, delta: Delta) -> list[dict[str, Any]]:
        """The changes that a part makes to the message, as chunks have them."""
        if self._job.voice is None:
            return [{"content": delta.text}] if delta.text else []
        fields = {"transcript": delta.text, "data": base64.b64encode(delta.audio).decode(), "unspoken": delta.unspoken}
        return [{"audio": {"id": self._audio_id, name: value}} for name, value in fields.items() if value]

    def _event(self, delta: dict[str, Any]) -> bytes:
        return _data(chunk(self._head, delta))

    def _closing(self, answer: Answer, spoken: str) -> bytes:
        """The last chunks."""
        last = b""
        if self._job.voice is not None:
            self._keep(spoken)
            last += self._event({"audio": {"id": self._audio_id, "expires_at": self._expires_s}})
        last += _data(chunk(self._head, {}, answer.reason))
        options = self._job.request.stream_options
        if options is not None and options.include_usage:
            last += _data({**chunk(self._head, {}), "choices": [], "usage": answer.usage.model_dump()})
        return last + DONE


async def _send(send: Send, content: bytes) -> None:
    if content:
        await send({"type": "http.response.body", "body": content, "more_body": True})


def _data(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()
