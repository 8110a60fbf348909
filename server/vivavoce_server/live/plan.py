"""Translates the options of a live session into a plan for its utterances. All protocols share it."""

from dataclasses import dataclass, replace

from vivavoce_engine import SpeechEngine, UtteranceOptions

from vivavoce_server.audio import AudioOptions
from vivavoce_server.config import LeadingSilenceChoice
from vivavoce_server.containers import SharedEncoder
from vivavoce_server.jobs import prepare, voice_for_log
from vivavoce_server.reading import TextPlan
from vivavoce_server.schemas import SpeechOptions
from vivavoce_server.service import Service


@dataclass(frozen=True, slots=True)
class LivePlan:
    """The voice, options, audio format and reading of the next utterances."""

    model: str
    engine: SpeechEngine
    options: UtteranceOptions
    audio: AudioOptions
    text: TextPlan
    leading_silence: LeadingSilenceChoice
    max_part_chars: int | None
    """Most characters that the model speaks as one utterance of its own; None for any number."""
    warnings: tuple[str, ...] = ()
    """Sentences that say what of the options is ignored."""
    ignored: tuple[str, ...] = ()
    """Fields that the model cannot follow."""
    words: bool = False
    """True if the client asks for messages about words."""
    voice: str | None = None
    """Name of the voice, for the log."""
    file: SharedEncoder | None = None
    """The file that all utterances share; None if each is a file of its own."""

    def as_one_file(self, audio: AudioOptions) -> "LivePlan":
        """The same plan for utterances that are one new file, with this plan's mark."""
        audio = replace(audio, mark=self.audio.mark)
        return replace(self, audio=audio, file=audio.new_shared_encoder(self.engine.info.sample_rate))


async def plan_live(options: SpeechOptions, service: Service) -> LivePlan:
    """The plan for these options. POST /v1/audio/speech translates options in the same way.

    Raises:
        ApiError: an option cannot be served; names it.
        Overloaded: too many references are being processed.
    """
    job = prepare(options, service)
    voiced = await job.find_voice()
    return LivePlan(
        model=job.model,
        engine=job.engine,
        options=voiced,
        audio=job.audio,
        text=job.text_plan,
        leading_silence=job.leading_silence,
        max_part_chars=job.engine.info.max_utterance_chars,
        warnings=job.warnings,
        ignored=job.ignored_with(voiced),
        words=options.wants_words,
        voice=voice_for_log(job.request),
    )
