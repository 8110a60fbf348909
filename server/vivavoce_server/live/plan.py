"""Translates the options of a live session into a plan for its utterances. All protocols share it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from vivavoce_engine import SpeechEngine, UtteranceOptions

from vivavoce_server.audio import AudioOptions
from vivavoce_server.config import LeadingSilenceChoice
from vivavoce_server.containers import SharedEncoder
from vivavoce_server.jobs import prepare
from vivavoce_server.reading import TextPlan
from vivavoce_server.references import Chosen
from vivavoce_server.schemas import SpeechOptions
from vivavoce_server.service import Service
from vivavoce_server.turns import names_of, turn_pause_s


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
    voice_of_tag: Callable[[str], Awaitable[Chosen]]
    """Finds the voice of a tag in the text, as SpeechJob.voice_of_tag."""
    turn_pause_s: float
    """Seconds of silence between the turns of two voices."""
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
    cast = await job.find_voices()
    return LivePlan(
        model=job.model,
        engine=job.engine,
        options=cast[0],
        audio=job.audio,
        text=job.text_plan,
        leading_silence=job.leading_silence,
        max_part_chars=job.engine.info.max_utterance_chars,
        voice_of_tag=job.voice_of_tag,
        turn_pause_s=turn_pause_s(options),
        warnings=job.warnings_with(cast),
        ignored=job.ignored_with(cast),
        words=options.wants_words,
        voice=names_of(job.request),
    )
