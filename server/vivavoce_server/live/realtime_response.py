"""One response of a Realtime connection: a text, spoken by the same path as POST /v1/audio/speech."""

import asyncio
import base64
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

from vivavoce_engine import EngineError

from vivavoce_server.access import Caller
from vivavoce_server.errors import ApiError, error_detail
from vivavoce_server.formats import FormatName
from vivavoce_server.jobs import SpeechJob
from vivavoce_server.live.closing import BUG, Closing, Code, fault
from vivavoce_server.live.conversation import Conversation, Item, ItemAudio
from vivavoce_server.live.outbox import Lane, Outgoing, SlowReader
from vivavoce_server.live.realtime_events import event, new_id
from vivavoce_server.metrics import RequestOutcome, SpeechMeter, outcome_of
from vivavoce_server.request_lines import current_line
from vivavoce_server.service import Service
from vivavoce_server.speech import Speech, Usage
from vivavoce_server.turns import names_of

log = logging.getLogger(__name__)

DELTA_BYTES = 24_000
"""Most bytes of audio in one event: half a second of PCM. Clients refuse messages of a megabyte."""
SAMPLE_BYTES: dict[FormatName, int] = {"pcm": 2, "g711_ulaw": 1, "g711_alaw": 1}

Status = Literal["in_progress", "completed", "cancelled", "failed"]


@dataclass(frozen=True)
class Asked:
    """Speech that a response.create asks for. `conversation` None keeps the response out of the conversation.

    `output` are the audio settings in the protocol's form, to be repeated.
    """

    job: SpeechJob
    text: str
    conversation: Conversation | None
    metadata: dict[str, str] | None
    output: dict[str, object]


class Response:
    """Speaks as soon as it is made. `ended` is called once, when nothing more of it will be sent."""

    def __init__(
        self,
        asked: Asked,
        service: Service,
        caller: Caller,
        lane: Lane,
        close: Callable[[Closing], None],
        ended: Callable[["Response"], None],
    ) -> None:
        self.id = new_id("resp")
        self._asked = asked
        self._service = service
        self._caller = caller
        self._lane = lane
        self._close = close
        self._ended = ended
        self._status: Status = "in_progress"
        self._status_details: dict[str, object] | None = None
        self._usage: Usage | None = None
        self._item = Item(new_id("item"), "assistant", [{"type": "output_audio", "transcript": asked.text}])
        self._previous_id: str | None = None
        self._begun = False
        """True once the item is in the conversation."""
        self._told_chars = 0
        """Characters of the transcript that deltas have told."""
        self._held = ExitStack()
        """Releases the caller's slot and the engine's row."""
        self._speech: Speech | None = None
        self._lane.put(event("response.created", response=self._as_json()))
        job = asked.job
        about = {"model": job.model, "voice": names_of(job.request), "format": job.audio.format}
        self._line = current_line().begin("utterance", **about, chars=len(asked.text))
        with self._line.current():
            self._meter = SpeechMeter(service.metrics, job.model)
            self._task = asyncio.create_task(self._guarded())

    @property
    def in_conversation(self) -> bool:
        return self._asked.conversation is not None

    def cancel(self) -> None:
        """Stops at once. The row is free before the next frame, and no more audio is sent."""
        if self._status == "in_progress":
            self._end("cancelled", "cancelled", {"type": "cancelled", "reason": "client_cancelled"})

    def abandon(self) -> None:
        """Ends the response because the listener is gone."""
        if self._status == "in_progress":
            self._end("cancelled", "disconnected", {"type": "cancelled"})

    # ---- speaking ---------------------------------------------------------------------------------------------

    async def _guarded(self) -> None:
        try:
            await self._speak()
        except (ApiError, EngineError) as error:
            _, detail = error_detail(error)
            self._line.note_error(detail.code, detail.param)
            cause = {"type": detail.type, "code": detail.code, "message": detail.message}
            outcome = "cut_off" if self._meter.heard else outcome_of(error, admitted=self._speech is not None)
            self._end("failed", outcome, {"type": "failed", "error": cause})
        except SlowReader as error:
            self._close(Closing(Code.POLICY, fault(f"The client reads too slowly: {error}", "slow_reader")))
        except Exception:
            log.exception("a bug")
            self._close(BUG)

    async def _speak(self) -> None:
        self._held.enter_context(self._caller.speaking())
        self._held.enter_context(self._service.count_speech())
        job = await self._asked.job.read()
        speech = Speech(job, await job.find_voices(), self._meter, self._caller.client)
        self._speech = self._held.enter_context(speech)
        self._begin()
        if not job.engine.info.word_times:
            self._tell(len(self._asked.text))
        audio = self._item.audio = ItemAudio(self._asked.text, job.part_ends(), speech.times)
        bytes_per_s = job.audio.rate_for(job.engine.info.sample_rate) * SAMPLE_BYTES[job.audio.format]
        async for piece in speech.pieces():
            for start in range(0, len(piece), DELTA_BYTES):
                content = piece[start : start + DELTA_BYTES]
                delta = self._event("response.output_audio.delta", delta=base64.b64encode(content).decode())
                await self._lane.put_audio(Outgoing(delta, len(content), len(content) / bytes_per_s))
                audio.sent_s += len(content) / bytes_per_s
                # The format holds nothing back, so the seconds are those of the words.
                if words := speech.times.take_words(audio.sent_s):
                    self._tell(words[-1].end)
        self._tell(len(self._asked.text))
        # Until everything has been sent, the response can be cancelled.
        await self._lane.flushed()
        self._end("completed", "completed", None)

    # ---- events -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._begun = True
        self._item.status = "in_progress"
        self._put("response.output_item.added", output_index=0, item={**self._item.as_json(), "content": []})
        if self._asked.conversation is not None:
            self._previous_id = self._asked.conversation.add(self._item)
            self._put_item("conversation.item.added", {**self._item.as_json(), "content": []})
        self._lane.put(self._event("response.content_part.added", part={"type": "audio", "transcript": ""}))

    def _tell(self, end: int) -> None:
        """Tells the transcript up to its character `end`, whose words begin in the audio so far."""
        if end > self._told_chars:
            text = self._asked.text[self._told_chars : end]
            self._lane.put_words(self._event("response.output_audio_transcript.delta", delta=text))
            self._told_chars = end

    def _end(self, status: Status, outcome: RequestOutcome, details: dict[str, object] | None) -> None:
        if self._status != "in_progress":
            return
        self._status, self._status_details = status, details
        if self._task is not asyncio.current_task():
            self._task.cancel()
        if status != "completed":
            self._take_back()
        if self._speech is not None:
            self._usage = self._speech.usage
        self._held.close()
        audio = self._item.audio
        if audio is None:
            self._meter.end(outcome)
        else:
            frames = audio.said(audio.sent_s).frames
            self._meter.end(outcome, audio.sent_s, frames, audio.times.rate)
            if self._usage is not None and status != "completed":
                self._usage = replace(self._usage, output_tokens=frames)
        self._line.end()
        if self._begun:
            self._end_item()
        self._lane.put(event("response.done", response=self._as_json()))
        self._ended(self)

    def _take_back(self) -> None:
        """Drops the audio that was not sent. The transcript keeps the word of which some was sent, or the part."""
        dropped_s = sum(item.audio_s for item in self._lane.drop_audio())
        audio = self._item.audio
        if audio is None:
            return
        audio.sent_s = max(0.0, audio.sent_s - dropped_s)
        if not self._item.is_truncated:
            said = audio.said(audio.sent_s)
            self._item.content[0]["transcript"] = said.text + said.begun

    def _end_item(self) -> None:
        text = self._item.content[0]["transcript"]
        self._item.status = "completed" if self._status == "completed" else "incomplete"
        self._lane.put(self._event("response.output_audio.done"))
        self._lane.put(self._event("response.output_audio_transcript.done", transcript=text))
        self._lane.put(self._event("response.content_part.done", part={"type": "audio", "transcript": text}))
        self._put("response.output_item.done", output_index=0, item=self._item.as_json())
        if self._asked.conversation is not None:
            self._put_item("conversation.item.done", self._item.as_json())

    def _put(self, kind: str, **fields: object) -> None:
        self._lane.put(event(kind, response_id=self.id, **fields))

    def _put_item(self, kind: str, item: dict[str, object]) -> None:
        self._lane.put(event(kind, previous_item_id=self._previous_id, item=item))

    def _event(self, kind: str, **fields: object) -> str:
        place: dict[str, Any] = {"item_id": self._item.id, "output_index": 0, "content_index": 0}
        return event(kind, response_id=self.id, **place, **fields)

    def _as_json(self) -> dict[str, object]:
        conversation = self._asked.conversation
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": self._status,
            "status_details": self._status_details,
            "output": [self._item.as_json()] if self._begun and self._status != "in_progress" else [],
            "conversation_id": None if conversation is None else conversation.id,
            "output_modalities": ["audio"],
            "max_output_tokens": "inf",
            "audio": {"output": self._asked.output},
            "metadata": self._asked.metadata,
            "usage": None if self._usage is None else usage_json(self._usage),
        }


def usage_json(usage: Usage) -> dict[str, object]:
    """Usage in the protocol's form. Audio tokens are codec frames."""
    return {
        "total_tokens": usage.total_tokens,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "input_token_details": {"text_tokens": usage.input_tokens, "audio_tokens": 0, "cached_tokens": 0},
        "output_token_details": {"text_tokens": 0, "audio_tokens": usage.output_tokens},
        **usage.rate.fields(),
    }
