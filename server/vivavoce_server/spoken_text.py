"""The answer to `"return": "text"`: what would be said of a text, instead of its speech."""

from itertools import groupby
from typing import Annotated

from pydantic import BaseModel, Field
from vivavoce_text import STAGES, Traced

from vivavoce_server.jobs import SpeechJob
from vivavoce_server.schemas import SpeechRequest
from vivavoce_server.turns import Script


class TextPart(BaseModel):
    """Text that would be one utterance."""

    text: str = Field(description="Words of one utterance", examples=["It costs five dollars."])


class TurnPart(TextPart):
    """Text of a dialogue."""

    voice: str | None = Field(
        description="Name of the voice that would say it; null for one that the request brings with it",
        examples=["heart"],
    )


class PausePart(BaseModel):
    """Silence between two texts."""

    pause_s: float = Field(description="Length of the silence, in seconds", examples=[0.5])


class CharacterCounts(BaseModel):
    """Lengths of the text as it is written, and as it is said."""

    input: int = Field(description="Characters of the text as it is written", examples=[12])
    output: int = Field(description="Characters of the text as it is said", examples=[22])


Run = Annotated[list[int], Field(min_length=4, max_length=4)]


class SpokenText(BaseModel):
    """The words that would be said of a text.

    `text` has pauses as tags, `parts` as numbers. The texts of segments follow each other in it. `language` is an ISO
    639-1 code, or null if the script of each piece of the text decides. `stages` are those that could change the text.
    `left_out` lists what cannot be said. `ignored` are the fields that the model cannot follow.

    `map` lists runs as [start, end, input start, input end]: the characters of `text` from `start` to `end` (exclusive)
    come from those of the input. Characters of the input that are in no run are not said.
    """

    text: str = Field(
        description="The words that would be said, with pauses as tags", examples=["It costs five dollars."]
    )
    parts: list[TurnPart | TextPart | PausePart] = Field(description="Utterances, and silences between them")
    language: str | None = Field(
        description="ISO 639-1 code; null if the script of each piece of the text decides", examples=["en"]
    )
    stages: list[str] = Field(description="Stages that could change the text", examples=[["clean", "numbers"]])
    left_out: list[str] = Field(description="Pieces of the text that cannot be said", examples=[["漢字"]])
    warnings: list[str] = Field(
        description="Sentences about what is not spoken as it was asked for", examples=[["漢字 is left out"]]
    )
    ignored: list[str] = Field(description="Fields that the model cannot follow", examples=[["instructions"]])
    characters: CharacterCounts = Field(description="Lengths of both texts")
    map: list[Run] = Field(
        description="Runs of characters: [start, end, input start, input end]",
        examples=[[[0, 9, 0, 9], [9, 22, 9, 12]]],
    )


def spoken_text(job: SpeechJob) -> SpokenText:
    """The answer for a job whose text has been read."""
    request, spoken, plan, script = job.request, job.spoken, job.text_plan, job.script
    assert isinstance(request, SpeechRequest)
    assert spoken is not None
    assert script is not None, "the text of the job has been read"
    return SpokenText(
        text=spoken.text,
        parts=[_part(script, number) for number in range(len(script.parts))],
        language=plan.language or None,
        stages=[stage for stage in STAGES if stage in plan.profile.stages],
        left_out=list(spoken.left_out),
        warnings=list(job.warnings),
        ignored=list(job.ignored),
        characters=CharacterCounts(input=len(request.written), output=len(spoken.text)),
        map=runs_of(spoken.traced),
    )


def _part(script: Script, number: int) -> TextPart | PausePart:
    part = script.parts[number]
    if not isinstance(part, str):
        return PausePart(pause_s=round(part.seconds / script.speed, 3))
    if not script.is_dialogue:
        return TextPart(text=part)
    return TurnPart(text=part, voice=script.turns[script.part_turns[number]].voice)


def runs_of(traced: Traced) -> list[list[int]]:
    """The runs of a text as [start, end, input start, input end]. Characters that stay as they are make one run."""
    runs: list[list[int]] = []
    goes_on = False
    at = 0
    for (start, end), same in groupby(zip(traced.starts, traced.ends, strict=True)):
        chars = sum(1 for _ in same)
        stays = chars == end - start == 1
        if stays and goes_on and runs[-1][3] == start:
            runs[-1][1], runs[-1][3] = at + 1, end
        else:
            runs.append([at, at + chars, start, end])
        goes_on = stays
        at += chars
    return runs
