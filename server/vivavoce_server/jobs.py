"""From a request to what the engine is to do: the same for every route."""

from collections.abc import Callable
from dataclasses import replace

from vivavoce_engine import ModelInfo, SpeechEngine, SynthesisRequest

from vivavoce_server.errors import invalid
from vivavoce_server.schemas import TASK_NAMES, SpeechRequest
from vivavoce_server.service import Service
from vivavoce_server.speech import SpeechJob


async def job_of(request: SpeechRequest, service: Service) -> SpeechJob:
    """What is to be said, in which voice, by which model.

    Raises:
        ApiError: a field's value cannot be served; names the field.
        Overloaded: too many references are on their way.
    """
    return await voiced(job_without_voice(request, service), request, service)


def job_without_voice(request: SpeechRequest, service: Service) -> SpeechJob:
    """What can be told at once of a job. Raises ApiError as above."""
    model, engine = service.find_model(request.model)
    _check_task(request, model, engine, service)
    return request.to_job(model, engine, service.config)


async def voiced_if_room(job: SpeechJob, request: SpeechRequest, service: Service) -> SpeechJob:
    """The same for speech that is to begin by `job.start_by_s`: if that is refused, no reference is fetched for it.

    Raises:
        NotServing, Overloaded: as `submit` would.
    """
    if request.ref_audio is not None:
        job.engine.check_room(job.max_wait_s)
    return await voiced(job, request, service)


async def voiced(job: SpeechJob, request: SpeechRequest, service: Service) -> SpeechJob:
    """The job with its voice. A reference may take seconds to fetch and encode. Raises as above."""
    speaker, reference = await service.references.voice_of(request, job.engine)
    parts = tuple(
        replace(part, speaker=speaker, reference=reference) if isinstance(part, SynthesisRequest) else part
        for part in job.parts
    )
    return replace(job, parts=parts)


def _check_task(request: SpeechRequest, model: str, engine: SpeechEngine, service: Service) -> None:
    """Raises a 400 that says which model can, if this one cannot."""
    task = request.task_type
    if task is not None and task != TASK_NAMES[engine.info.task]:
        can = _models_that(service, lambda info: TASK_NAMES[info.task] == task) or f"a {task} model"
        raise invalid("task_type", f"The model {model!r} does {TASK_NAMES[engine.info.task]}, not {task}; {can} does")
    if request.ref_audio is not None and not engine.info.clones:
        can = _models_that(service, lambda info: info.clones) or "a Base model"
        message = f"The model {model!r} does not clone voices from audio; {can} does"
        raise invalid("ref_audio", message, "not_available")


def _models_that(service: Service, can: Callable[[ModelInfo], bool]) -> str:
    return " or ".join(repr(name) for name, engine in service.engines.items() if can(engine.info))
