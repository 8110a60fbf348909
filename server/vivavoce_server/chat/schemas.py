"""Body of a chat request: OpenAI's fields. Those that this server cannot follow are refused by their names."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from vivavoce_server.errors import invalid
from vivavoce_server.schemas import MAX_NAME_CHARS, Fields, Name, NullIsDefault, Seed, SpeechSpeed, VoiceId

MAX_MESSAGES = 1024
MAX_PARTS = 256
"""Most parts of one message."""
MAX_TEXT_CHARS = 2**20
"""Longest text of a message, in characters. The model's context is shorter."""
MAX_MEDIA_CHARS = 2**24
"""10 MiB in base64, with line breaks or signs in percent code."""
MAX_TOKENS = 65_536
AnswerText = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
ChatFormat = Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]


class InputAudio(Fields):
    """A sound that the user says or plays."""

    data: Annotated[
        str,
        Field(max_length=MAX_MEDIA_CHARS, description="The file, in base64", examples=["UklGRiQAAABXQVZF"]),
    ]
    format: Annotated[
        Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None,
        Field(description="Its format, which is found in the file itself", examples=["wav", "mp3"]),
    ] = None


class ImageUrl(Fields):
    """A picture that the user shows."""

    url: Annotated[
        str,
        Field(
            max_length=MAX_MEDIA_CHARS,
            description="A `data:` URL, or an http(s) URL on a host that the operator allows",
            examples=["data:image/png;base64,iVBORw0KGgo="],
        ),
    ]
    detail: Annotated[
        Literal["auto", "low", "high"] | None,
        Field(description="Ignored: a picture has as many tokens as its size asks for", examples=["auto"]),
    ] = None


class ContentPart(Fields):
    """A part of a message: a text, a sound or a picture, in the field that its type names."""

    type: Annotated[
        Literal["text", "input_audio", "image_url", "refusal", "file"],
        Field(description="Kind of the part. A `file` is refused", examples=["text"]),
    ]
    text: Annotated[AnswerText | None, Field(description="Of type `text`", examples=["What is this?"])] = None
    input_audio: Annotated[
        InputAudio | None,
        Field(description="Of type `input_audio`", examples=[{"data": "UklGRiQAAABXQVZF", "format": "wav"}]),
    ] = None
    image_url: Annotated[
        ImageUrl | None,
        Field(description="Of type `image_url`", examples=[{"url": "data:image/png;base64,iVBORw0KGgo="}]),
    ] = None
    refusal: Annotated[AnswerText | None, Field(description="Of type `refusal`", examples=["I cannot say."])] = None
    file: Annotated[Any, Field(description="Refused: no file can be read", examples=[None])] = None


class SpokenBefore(Fields):
    """An answer of this server that was spoken."""

    id: Annotated[
        str, Field(max_length=MAX_NAME_CHARS, description="The `id` of the answer's `audio`", examples=["audio_1f0c"])
    ]


class Message(Fields):
    """A turn of the conversation."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool", "function"],
        Field(
            description="Its speaker; `developer` is the same as `system`. `tool` and `function` are refused",
            examples=["user"],
        ),
    ]
    content: Annotated[
        AnswerText | Annotated[list[ContentPart], Field(fail_fast=True, max_length=MAX_PARTS)] | None,
        Field(description="Its text, or its parts in order", examples=["Good morning!"]),
    ] = None
    audio: Annotated[
        SpokenBefore | None,
        Field(description="Of an assistant: the spoken answer, instead of its text", examples=[{"id": "audio_1f0c"}]),
    ] = None
    name: Annotated[Name | None, Field(description="Ignored", examples=["ada"])] = None
    refusal: Annotated[AnswerText | None, Field(description="Of an assistant: said in place of an answer")] = Field(
        default=None, examples=["I cannot say."]
    )
    tool_calls: Annotated[Any, Field(description="Refused, unless empty", examples=[None])] = None
    function_call: Annotated[Any, Field(description="Refused", examples=[None])] = None
    tool_call_id: Annotated[Any, Field(description="Refused", examples=[None])] = None


class AudioChoice(Fields):
    """The voice of the answer, and the format of its audio. `speed` and `sample_rate` are extensions."""

    voice: Annotated[
        Name | VoiceId,
        Field(description="A speaker of the model, or one of OpenAI's names", examples=["ethan", "alloy"]),
    ]
    format: Annotated[ChatFormat, Field(description="Format of the audio. Each of them streams", examples=["pcm16"])]
    speed: SpeechSpeed = 1.0
    sample_rate: Annotated[
        Literal[8000, 16000, 24000, 48000] | None,
        Field(description="Sample rate of the audio, in Hz. The default suits the format", examples=[24000]),
    ] = None

    @property
    def voice_name(self) -> str:
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice


class StreamOptions(Fields):
    """Options of a streamed answer."""

    include_usage: Annotated[
        bool | None, Field(description="True sends the usage in a last chunk without choices", examples=[True])
    ] = None
    include_obfuscation: Annotated[
        bool | None, Field(description="Ignored: chunks have no padding", examples=[False])
    ] = None


class ChatRequest(Fields):
    """A conversation to answer. Fields of OpenAI's that are not here are refused, unless they ask for nothing."""

    HARMLESS: ClassVar[dict[str, tuple[object, ...]]] = {
        "n": (1,),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "stop": ([], ""),
        "logit_bias": ({},),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
        "prediction": (),
        "web_search_options": (),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "store": (False,),
        "metadata": ({},),
        "service_tier": ("auto", "default"),
    }
    """Fields that are not supported → their values that ask for nothing. null does so in all of them."""
    IGNORED: ClassVar[frozenset[str]] = frozenset(
        {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
    )
    """Fields about the caller, which change no answer."""

    messages: Annotated[
        list[Message],
        Field(
            fail_fast=True,
            min_length=1,
            max_length=MAX_MESSAGES,
            description="The conversation, oldest first. Its last turn is the user's",
            examples=[[{"role": "user", "content": "Good morning!"}]],
        ),
    ]
    model: Annotated[
        Name | None,
        Field(description="A served model that chats, or one of OpenAI's names", examples=["gpt-audio"]),
    ] = None
    modalities: Annotated[
        list[Literal["text", "audio"]],
        Field(min_length=1, max_length=2, description="`audio` speaks the answer", examples=[["text", "audio"]]),
        NullIsDefault(),
    ] = Field(default=["text"])
    audio: Annotated[
        AudioChoice | None,
        Field(description="Voice and format, required for audio", examples=[{"voice": "ethan", "format": "pcm16"}]),
    ] = None
    stream: Annotated[
        bool, Field(description="True sends the answer in events while it is made", examples=[True]), NullIsDefault()
    ] = False
    stream_options: Annotated[
        StreamOptions | None, Field(description="Options of events", examples=[{"include_usage": True}])
    ] = None
    max_completion_tokens: Annotated[
        Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None,
        Field(description="Longest answer, in tokens of its text", examples=[256]),
    ] = None
    max_tokens: Annotated[
        Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None,
        Field(description="The older name of `max_completion_tokens`", examples=[256]),
    ] = None
    temperature: Annotated[
        float | None,
        Field(ge=0, le=2, description="Of the text. The default is the thinker's own", examples=[0.6]),
    ] = None
    top_p: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        Field(description="Of the text: keeps the likeliest tokens, of this probability together", examples=[0.95]),
    ] = None
    seed: Annotated[Seed | None, Field(description="Seed of the random numbers, of text and speech", examples=[42])] = (
        None
    )

    @model_validator(mode="before")
    @classmethod
    def _without_unsupported(cls, given: object) -> object:
        """Raises an ApiError that names a field which asks for something that is not supported."""
        if not isinstance(given, Mapping):
            return given
        for name, harmless in cls.HARMLESS.items():
            if (value := given.get(name)) is not None and not any(_is_same(value, each) for each in harmless):
                raise invalid(name, f"{name} is not supported here; leave it out", "unsupported_parameter")
        return {name: value for name, value in given.items() if name not in cls.HARMLESS | dict.fromkeys(cls.IGNORED)}

    @property
    def speaks(self) -> bool:
        return "audio" in self.modalities


def _is_same(value: object, other: object) -> bool:
    """Equality in JSON's sense: true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
