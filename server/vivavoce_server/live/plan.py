"""The options of a live session → how its utterances are to be spoken. Shared by all protocols."""

from dataclasses import dataclass, replace

from vivavoce_engine import SpeechEngine, UtteranceOptions

from vivavoce_server.audio import AudioOptions
from vivavoce_server.jobs import prepare
from vivavoce_server.schemas import SpeechOptions
from vivavoce_server.service import Service


@dataclass(frozen=True, slots=True)
class LivePlan:
    """How the next utterances are to sound."""

    model: str
    engine: SpeechEngine
    options: UtteranceOptions
    audio: AudioOptions

    def with_sample_rate(self, sample_rate: int) -> "LivePlan":
        """Any rate, where HTTP offers a few."""
        return replace(self, audio=replace(self.audio, sample_rate=sample_rate))


async def plan_live(options: SpeechOptions, service: Service) -> LivePlan:
    """What POST /v1/audio/speech would make of these options: one translation for both.

    Raises:
        ApiError: an option cannot be served; names it.
        Overloaded: too many references are on their way.
    """
    job = prepare(options, service)
    return LivePlan(job.model, job.engine, await job.find_voice(), job.audio)
