"""The options of a live session → what its utterances are to be. Shared by all protocols."""

from vivavoce_engine import SynthesisRequest

from vivavoce_server.errors import invalid
from vivavoce_server.jobs import job_of
from vivavoce_server.schemas import SpeechOptions, SpeechRequest
from vivavoce_server.service import Service
from vivavoce_server.session import Plan

NO_TEXT = "live"
"""Stands for the text, which comes later."""


async def plan_of(options: SpeechOptions, service: Service) -> Plan:
    """What POST /v1/audio/speech would make of these options: one translation for both.

    Raises:
        ApiError: an option cannot be served; names it.
        Overloaded: too many references are on their way.
    """
    if options.normalize:
        raise invalid("normalize", "Text that arrives in fragments cannot be normalized", "not_available")
    if options.non_streaming_mode:
        raise invalid("non_streaming_mode", "Live text is always spoken as it comes", "not_available")
    fields = options.model_dump(include=set(SpeechOptions.model_fields))
    job = await job_of(SpeechRequest.model_validate({**fields, "input": NO_TEXT}), service)
    (request,) = job.parts
    assert isinstance(request, SynthesisRequest)
    return Plan(job.model, job.engine, request, job.audio)
