"""The options of a live session → how its utterances are to be spoken. Shared by all protocols."""

from vivavoce_server.jobs import prepare
from vivavoce_server.live.session import Plan
from vivavoce_server.schemas import SpeechOptions
from vivavoce_server.service import Service


async def plan_of(options: SpeechOptions, service: Service) -> Plan:
    """What POST /v1/audio/speech would make of these options: one translation for both.

    Raises:
        ApiError: an option cannot be served; names it.
        Overloaded: too many references are on their way.
    """
    job = prepare(options, service)
    return Plan(job.model, job.engine, await job.find_voice(), job.audio)
