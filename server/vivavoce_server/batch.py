"""POST /v1/audio/speech/batch: several texts in one request, spoken concurrently, with one JSON answer."""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.types import Send
from vivavoce_engine import EngineError, SpeechEngine, UtteranceOptions

from vivavoce_server.access import Caller, CallerDep
from vivavoce_server.config import MAX_BATCH_ITEMS
from vivavoce_server.deadlines import MaxWaitDep
from vivavoce_server.errors import ApiError, ErrorDetail, error_detail, invalid
from vivavoce_server.http import COMMON_HEADERS, ERROR_RESPONSES, ServiceDep
from vivavoce_server.jobs import SpeechJob, prepare
from vivavoce_server.metrics import RequestOutcome, SpeechMeter, outcome_of
from vivavoce_server.request_lines import current_line, note
from vivavoce_server.schemas import GivenText, SpeechOptions, SpeechRequest
from vivavoce_server.service import Service
from vivavoce_server.speaking_rate import RATE_CHARACTERS_ABOUT, RATE_WORDS_ABOUT
from vivavoce_server.speech import Speech, Usage
from vivavoce_server.streaming import SpeechRoute, SpokenResponse
from vivavoce_server.text_parts import TOO_MANY_PAUSES, PauseBudget, pause_tags
from vivavoce_server.turns import naming_segment, pauses_between_turns
from vivavoce_server.whole_files import MAX_HELD_BYTES, InBase64, Part, WholeFile
from vivavoce_server.word_times import Word

router = APIRouter(prefix="/v1", route_class=SpeechRoute, tags=["Speech"])

READINGS = frozenset({"normalize", "normalization_options"})
"""Fields that say the same. An item with either of them overrides both of the batch's."""


class BatchItem(GivenText, SpeechOptions):
    """One text. Its options override the batch's."""


class BatchRequest(SpeechOptions):
    """Items, and the default options for all of them."""

    items: Annotated[
        list[BatchItem],
        Field(fail_fast=True, min_length=1, max_length=MAX_BATCH_ITEMS, description="The texts, each with its options"),
    ]

    def requests(self) -> list[SpeechRequest]:
        return [SpeechRequest.model_construct(**self._options_of(item)) for item in self.items]

    def _options_of(self, item: BatchItem) -> dict[str, Any]:
        """The fields of an item's request. All of them have been validated, and are shared instead of copied."""
        hidden = READINGS if READINGS & item.model_fields_set else frozenset()
        shared = {name: getattr(self, name) for name in self.model_fields_set - hidden - {"items"}}
        return {**shared, **{name: getattr(item, name) for name in item.model_fields_set}}


class UsageObject(BaseModel):
    """OpenAI's usage, and the speaking rate."""

    input_tokens: int = Field(description="Tokens of the text", examples=[9])
    output_tokens: int = Field(description="Codec frames of 80 ms that were sent", examples=[25])
    total_tokens: int = Field(description="The sum of both", examples=[34])
    characters_per_minute: float | None = Field(description=RATE_CHARACTERS_ABOUT, examples=[1012.5])
    words_per_minute: float | None = Field(description=RATE_WORDS_ABOUT, examples=[187.5])


class WordObject(BaseModel):
    """A word of the text, and when the audio says it."""

    word: str = Field(description="The word, as it was written", examples=["Hello"])
    start: float | None = Field(description="Its beginning, in seconds of the file; null if unknown", examples=[0.11])
    end: float | None = Field(description="Its end, in seconds of the file; null if unknown", examples=[0.42])
    text_start: int = Field(description="Its first character in the text", examples=[0])
    text_end: int = Field(description="The character behind its last one", examples=[5])

    @staticmethod
    def of(word: Word) -> "WordObject":
        return WordObject.model_validate(word.fields())


class BatchResult(BaseModel):
    """The result of one item: its file in base64, or the error. `warnings` say what of the text is not spoken,
    `ignored` which fields the model cannot follow.

    `finish_reason` is "length" if the item's max_new_tokens ended its speech.
    """

    index: int = Field(description="Number of the item, from 0", examples=[0])
    status: Literal["success", "error"] = Field(description="Outcome of the item", examples=["success"])
    audio_data: str | None = Field(default=None, description="The file, in base64", examples=["UklGRiQAAABXQVZF"])
    media_type: str | None = Field(default=None, description="Media type of the file", examples=["audio/wav"])
    usage: UsageObject | None = Field(default=None, description="Usage of the item")
    finish_reason: Literal["stop", "length"] | None = Field(
        default=None, description="`length` if max_new_tokens ended the speech", examples=["stop"]
    )
    warnings: list[str] = Field(
        default=[],
        description="Sentences about what is not spoken as it was asked for",
        examples=[["漢字 is left out"]],
    )
    ignored: list[str] = Field(
        default=[], description="Fields that the model cannot follow", examples=[["instructions"]]
    )
    words: list[WordObject] | None = Field(
        default=None, description="The words and their times, if they were asked for; null if not"
    )
    status_code: int = Field(default=200, description="The status that a request of its own would have", examples=[200])
    error: ErrorDetail | None = Field(default=None, description="The error, if there is one")


class BatchResults(BaseModel):
    """One result for each item, in the items' order."""

    id: str = Field(description="Random name of this answer", examples=["batch-0f4c"])
    object: Literal["audio.speech.batch"] = Field(default="audio.speech.batch", description="Kind of the object")
    results: list[BatchResult] = Field(description="The results, in the items' order")
    total: int = Field(description="Number of items", examples=[2])
    succeeded: int = Field(description="Items that were spoken", examples=[2])
    failed: int = Field(description="Items that were not", examples=[0])


class Running:
    """The items of a batch that run. The batch has a place among its key's requests, which one of them takes."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._items = 0
        self.changed = asyncio.Condition()

    @property
    def has_place(self) -> bool:
        """True if the key may have one more item running."""
        return not self._items or self._caller.has_place

    def begin(self) -> None:
        self._caller.occupy(1 if self._items else 0)
        self._items += 1

    def end(self) -> None:
        self._items -= 1
        self._caller.occupy(-1 if self._items else 0)


class RowLimit:
    """Lets in as many items at once as the engine has rows and the key has places. The number of rows is settled when
    the model is loaded, which may be while items wait, so it is asked for whenever one leaves."""

    def __init__(self, engine: SpeechEngine, running: Running) -> None:
        self._engine = engine
        self._inside = 0
        self._running = running

    async def __aenter__(self) -> None:
        async with self._running.changed:
            await self._running.changed.wait_for(lambda: self._inside < self._engine.rows and self._running.has_place)
            self._inside += 1
            self._running.begin()

    async def __aexit__(self, *_: object) -> None:
        # Nothing is waited for here: an item that is cancelled must give its place back.
        self._inside -= 1
        self._running.end()
        async with self._running.changed:
            self._running.changed.notify_all()


class BatchResponse(SpokenResponse):
    """Speaks the items concurrently, at most one for each of the engine's rows, so that a long batch is not refused."""

    def __init__(self, service: Service, caller: Caller, requests: list[SpeechRequest], max_wait_s: float) -> None:
        super().__init__(service, caller, "application/json", cost=len(requests))
        self._requests = requests
        self._max_wait_s = max_wait_s
        running = Running(caller)
        self._rows = {model: RowLimit(engine, running) for model, engine in service.engines.items()}

    async def speak(self, send: Send) -> None:
        share = MAX_HELD_BYTES // len(self._requests)
        with ExitStack() as held:
            files = [held.enter_context(WholeFile(share)) for _ in self._requests]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._speak_item(*each)) for each in enumerate(files)]
            await self._send([task.result() for task in tasks], files, send)

    async def _send(self, results: list[BatchResult], files: list[WholeFile], send: Send) -> None:
        succeeded = sum(result.status == "success" for result in results)
        body = BatchResults(
            id=f"batch-{uuid.uuid4().hex}",
            results=results,
            total=len(results),
            succeeded=succeeded,
            failed=len(results) - succeeded,
        )
        parts: list[Part] = []
        rest = body.model_dump_json()
        for result, file in zip(results, files, strict=True):
            if result.audio_data is not None:
                before, _, rest = rest.partition(result.audio_data)
                parts += before.encode(), InBase64(file)
        await self.send_whole([*parts, rest.encode()], send)

    async def _speak_item(self, index: int, file: WholeFile) -> BatchResult:
        """Speaks an item into the file. In its result, a random word holds the place of the file's base64."""
        with current_line().begin("item", item=index).current() as line:
            try:
                result = await self._result_of(index, file)
                if result.error is not None:
                    line.note_error(result.error.code, result.error.param)
            finally:
                line.end()
        return result

    async def _result_of(self, index: int, file: WholeFile) -> BatchResult:
        request = self._requests[index]
        try:
            with self.service.metrics.admission():
                model, _ = self.service.find_model(request.model or None)
            async with self._rows[model]:
                job, cast, cost, words = await self._spoken(request, model, file)
        except (ApiError, EngineError) as error:
            status, detail = error_detail(error)
            return BatchResult(index=index, status="error", status_code=status, error=detail)
        usage = UsageObject(
            input_tokens=cost.input_tokens,
            output_tokens=cost.output_tokens,
            total_tokens=cost.total_tokens,
            characters_per_minute=cost.rate.characters_per_minute,
            words_per_minute=cost.rate.words_per_minute,
        )
        return BatchResult(
            index=index,
            status="success",
            audio_data=uuid.uuid4().hex,
            media_type=job.audio.media_type,
            usage=usage,
            finish_reason="length" if cost.is_cut_short else "stop",
            warnings=list(job.warnings_with(cast)),
            ignored=list(job.ignored_with(cast)),
            words=[WordObject.of(word) for word in words] if cast[0].word_times else None,
        )

    async def _spoken(
        self, request: SpeechRequest, model: str, file: WholeFile
    ) -> tuple[SpeechJob, Sequence[UtteranceOptions], Usage, list[Word]]:
        """Speaks an item into the file. Returns its job, the options of its turns, its usage, and its words."""
        meter = SpeechMeter(self.service.metrics, model)
        outcome: RequestOutcome = "disconnected"
        speech: Speech | None = None
        try:
            job = await prepare(request, self.service, self._max_wait_s).read()
            cast = await job.find_voices()
            phrases = self.service.phrases
            with (
                await phrases.find(job, phrases.key_of(job, cast)) as phrase,
                Speech(job, cast, meter, self.caller.client, phrase.submit) as speech,
            ):
                if phrases.is_on:
                    note(cache=phrase.source)
                cost = await speech.whole(file)
            outcome = "completed"
        except Exception as error:
            outcome = outcome_of(error, admitted=speech is not None)
            raise
        finally:
            if speech is None or outcome != "completed":
                meter.end(outcome)
            else:
                meter.end(outcome, speech.times.made_s, speech.times.made_frames, speech.times.rate)
        return job, cast, cost, speech.words


@router.post(
    "/audio/speech/batch",
    summary="Speak several texts",
    status_code=200,
    response_class=BatchResponse,
    responses={200: {"model": BatchResults, "headers": COMMON_HEADERS}, **ERROR_RESPONSES},
)
async def speak_batch(
    body: BatchRequest, service: ServiceDep, caller: CallerDep, max_wait_s: MaxWaitDep
) -> BatchResponse:
    """Speaks several texts. If one fails, the others continue, and its result contains the error."""
    if len(body.items) > service.config.max_batch_items:
        message = f"There are {len(body.items)} items; the most is {service.config.max_batch_items}"
        raise invalid("items", message, "array_above_max_length")
    requests = body.requests()
    check_pauses(requests)
    return BatchResponse(service, caller, requests, max_wait_s)


def check_pauses(items: list[SpeechRequest]) -> None:
    """Refuses a batch whose pauses are too many, or too long together. A wrong tag is an error of its item alone.

    Raises:
        ApiError: 400, names the item.
    """
    budget = PauseBudget()
    for index, item in enumerate(items):
        try:
            _take_pauses(item, budget)
        except ApiError as error:
            raise invalid(f"items[{index}].{error.detail.param}", error.detail.message, TOO_MANY_PAUSES) from None


def _take_pauses(item: SpeechRequest, budget: PauseBudget) -> None:
    """Counts the pauses of an item. Raises a 400 only if they are too many, or too long together."""
    texts = [item.input] if item.segments is None else [segment.text for segment in item.segments]
    for number, text in enumerate(texts):
        for tag in pause_tags(text):
            with nullcontext() if item.segments is None else naming_segment(number):
                try:
                    budget.take(tag)
                except ApiError as error:
                    if error.detail.code == TOO_MANY_PAUSES:
                        raise
    for seconds in pauses_between_turns(item):
        budget.take_seconds(seconds, "turn_pause_s")
