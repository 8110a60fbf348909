"""POST /v1/chat/completions."""

from fastapi import APIRouter

from vivavoce_server.access import CallerDep
from vivavoce_server.chat.completions import ChatCompletion
from vivavoce_server.chat.jobs import prepare_chat
from vivavoce_server.chat.responses import EVENTS, ChatResponse
from vivavoce_server.chat.schemas import ChatRequest
from vivavoce_server.deadlines import MaxWaitDep
from vivavoce_server.http import COMMON_HEADERS, ERROR_RESPONSES, Responses, ServiceDep
from vivavoce_server.streaming import SpeechRoute

router = APIRouter(prefix="/v1", route_class=SpeechRoute, tags=["Chat"])
RESPONSES: Responses = {
    200: {
        "description": "The answer, whole or in events",
        "headers": COMMON_HEADERS,
        "content": {EVENTS: {"schema": {"type": "string", "description": "Chunks of OpenAI's, then `[DONE]`"}}},
        "model": ChatCompletion,
    },
    **ERROR_RESPONSES,
}


@router.post(
    "/chat/completions",
    summary="Answer a conversation",
    status_code=200,
    response_class=ChatResponse,
    responses=RESPONSES,
)
async def complete(body: ChatRequest, service: ServiceDep, caller: CallerDep, max_wait_s: MaxWaitDep) -> ChatResponse:
    """Answers a conversation in text, or in speech while the text is still being thought.

    With `audio` in `modalities`, the answer is spoken: `transcript` is the text that its audio says.
    """
    return ChatResponse(service, caller, prepare_chat(body, service, max_wait_s))
