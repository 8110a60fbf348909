"""POST /v1/audio/speech/batch: several texts in one request, spoken concurrently, with one JSON answer."""

import asyncio
import base64
import uuid
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.types import Send
from vivavoce_engine import EngineError, SpeechEngine

from vivavoce_server.access import Caller, CallerDep
from vivavoce_server.deadlines import MaxWaitDep
from vivavoce_server.errors import ApiError, ErrorDetail, error_detail, invalid
from vivavoce_server.http import ERROR_RESPONSES, ServiceDep
from vivavoce_server.jobs import SpeechJob, prepare
from vivavoce_server.metrics import RequestOutcome, SpeechMeter, outcome_of
from vivavoce_server.schemas import InputText, SpeechOptions, SpeechRequest
from vivavoce_server.service import Service
from vivavoce_server.speech import Speech, Usage
from vivavoce_server.streaming import SpeechRoute, SpokenResponse

router = APIRouter(prefix="/v1", route_class=SpeechRoute)

READINGS = frozenset({"normalize", "normalization_options"})
"""Fields that say the same. An item with either of them overrides both of the batch's."""


class BatchItem(SpeechOptions):
    """One text. Its options override the batch's."""

    input: InputText


class BatchRequest(SpeechOptions):
    """Items, and the default options for all of them."""

    items: list[BatchItem] = Field(min_length=1)

    def requests(self) -> list[SpeechRequest]:
        shared = self.model_dump(exclude_unset=True, exclude={"items"})
        requests = []
        for item in self.items:
            own = item.model_dump(exclude_unset=True)
            hidden = READINGS if READINGS & own.keys() else frozenset()
            options = {name: value for name, value in shared.items() if name not in hidden}
            requests.append(SpeechRequest.model_validate({**options, **own}))
        return requests


class UsageObject(BaseModel):
    input_tokens: int
    output_tokens: int
    total_tokens: int


class BatchResult(BaseModel):
    """The result of one item: its file in base64, or the error. `warnings` say what of the text is not spoken.

    `finish_reason` is "length" if the item's max_new_tokens ended its speech.
    """

    index: int
    status: Literal["success", "error"]
    audio_data: str | None = None
    media_type: str | None = None
    usage: UsageObject | None = None
    finish_reason: Literal["stop", "length"] | None = None
    warnings: list[str] = []
    status_code: int = 200
    error: ErrorDetail | None = None


class BatchResults(BaseModel):
    """One result for each item, in the items' order."""

    id: str
    object: Literal["audio.speech.batch"] = "audio.speech.batch"
    results: list[BatchResult]
    total: int
    succeeded: int
    failed: int


class RowLimit:
    """Lets in as many at once as the engine has rows. That number is settled when the model is loaded, which may be
    while items wait, so it is asked for whenever one leaves."""

    def __init__(self, engine: SpeechEngine) -> None:
        self._engine = engine
        self._inside = 0
        self._left = asyncio.Condition()

    async def __aenter__(self) -> None:
        async with self._left:
            await self._left.wait_for(lambda: self._inside < self._engine.rows)
            self._inside += 1

    async def __aexit__(self, *_: object) -> None:
        async with self._left:
            self._inside -= 1
            self._left.notify_all()


class BatchResponse(SpokenResponse):
    """Speaks the items concurrently, at most one for each of the engine's rows, so that a long batch is not refused."""

    def __init__(self, service: Service, caller: Caller, requests: list[SpeechRequest], max_wait_s: float) -> None:
        super().__init__(service, caller, "application/json", cost=len(requests))
        self._requests = requests
        self._max_wait_s = max_wait_s
        self._rows = {model: RowLimit(engine) for model, engine in service.engines.items()}

    async def speak(self, send: Send) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._speak_item(index)) for index in range(len(self._requests))]
        results = [task.result() for task in tasks]
        succeeded = sum(result.status == "success" for result in results)
        body = BatchResults(
            id=f"batch-{uuid.uuid4().hex}",
            results=results,
            total=len(results),
            succeeded=succeeded,
            failed=len(results) - succeeded,
        )
        content = body.model_dump_json().encode()
        self.headers["Content-Length"] = str(len(content))
        await self.start(send)
        await send({"type": "http.response.body", "body": content})

    async def _speak_item(self, index: int) -> BatchResult:
        request = self._requests[index]
        try:
            with self.service.metrics.admission():
                model, _ = self.service.find_model(request.model)
            async with self._rows[model]:
                audio, job, cost = await self._spoken(request, model)
        except (ApiError, EngineError) as error:
            status, detail = error_detail(error)
            return BatchResult(index=index, status="error", status_code=status, error=detail)
        usage = UsageObject(
            input_tokens=cost.input_tokens, output_tokens=cost.output_tokens, total_tokens=cost.total_tokens
        )
        audio_data = base64.b64encode(audio).decode()
        return BatchResult(
            index=index,
            status="success",
            audio_data=audio_data,
            media_type=job.audio.media_type,
            usage=usage,
            finish_reason="length" if cost.is_cut_short else "stop",
            warnings=list(job.warnings),
        )

    async def _spoken(self, request: SpeechRequest, model: str) -> tuple[bytes, SpeechJob, Usage]:
        """An item's file, its job, and its usage."""
        meter = SpeechMeter(self.service.metrics, model)
        outcome: RequestOutcome = "disconnected"
        admitted = False
        try:
            job = await prepare(request, self.service, self._max_wait_s).read()
            with Speech(job, await job.find_voice(), meter, self.caller.client) as speech:
                admitted = True
                audio, cost = await speech.whole()
            outcome = "completed"
        except Exception as error:
            outcome = outcome_of(error, admitted)
            raise
        finally:
            meter.end(outcome)
        return audio, job, cost


@router.post(
    "/audio/speech/batch",
    status_code=200,
    response_class=BatchResponse,
    responses={200: {"model": BatchResults}, **ERROR_RESPONSES},
)
async def speak_batch(
    body: BatchRequest, service: ServiceDep, caller: CallerDep, max_wait_s: MaxWaitDep
) -> BatchResponse:
    """Speaks several texts. If one fails, the others continue, and its result contains the error."""
    if len(body.items) > service.config.max_batch_items:
        message = f"There are {len(body.items)} items; the most is {service.config.max_batch_items}"
        raise invalid("items", message, "array_above_max_length")
    return BatchResponse(service, caller, body.requests(), max_wait_s)
