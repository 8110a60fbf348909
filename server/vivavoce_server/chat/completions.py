"""Bodies of chat answers, whole and in chunks, as OpenAI's clients read them."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from vivavoce_server.speaking_rate import RATE_CHARACTERS_ABOUT, RATE_WORDS_ABOUT

FinishReason = Literal["stop", "length"]


class PromptTokens(BaseModel):
    """Tokens of the conversation, by their kind."""

    text_tokens: int = Field(description="Tokens of text, control tokens included", examples=[21])
    audio_tokens: int = Field(description="Tokens of sounds, about 13 a second", examples=[0])
    image_tokens: int = Field(description="Tokens of pictures", examples=[0])
    cached_tokens: int = Field(default=0, description="Always 0", examples=[0])


class AnswerTokens(BaseModel):
    """Tokens of the answer, by their kind."""

    text_tokens: int = Field(description="Tokens of its text", examples=[12])
    audio_tokens: int = Field(description="Codec frames of its speech, 12.5 a second", examples=[40])
    reasoning_tokens: int = Field(default=0, description="Always 0", examples=[0])
    accepted_prediction_tokens: int = Field(default=0, description="Always 0", examples=[0])
    rejected_prediction_tokens: int = Field(default=0, description="Always 0", examples=[0])


class ChatUsage(BaseModel):
    """Tokens in and out, and the speaking rate of the answer."""

    prompt_tokens: int = Field(description="Tokens of the conversation", examples=[21])
    completion_tokens: int = Field(description="Tokens of the answer: of its text and its speech", examples=[52])
    total_tokens: int = Field(description="Their sum", examples=[73])
    prompt_tokens_details: PromptTokens = Field(description="Tokens of the conversation, by their kind")
    completion_tokens_details: AnswerTokens = Field(description="Tokens of the answer, by their kind")
    characters_per_minute: float | None = Field(description=RATE_CHARACTERS_ABOUT, examples=[1012.5])
    words_per_minute: float | None = Field(description=RATE_WORDS_ABOUT, examples=[187.5])


class AnswerAudio(BaseModel):
    """The speech of an answer."""

    id: str = Field(description="Its name in later requests", examples=["audio_1f0c"])
    data: str = Field(description="The file, in base64", examples=["UklGRiQAAABXQVZF"])
    expires_at: int = Field(
        description="End of the time for which the id is known, in seconds since 1970", examples=[1796000000]
    )
    transcript: str = Field(description="The text that is spoken", examples=["Good morning."])
    unspoken: str | None = Field(
        default=None,
        description="The rest of the answer, which its voice left out. Absent if all of it is spoken",
        examples=[None],
    )


class AnswerMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"] = Field(default="assistant", description="Its speaker")
    content: str | None = Field(description="Its text; null if it is spoken", examples=["Good morning."])
    refusal: str | None = Field(default=None, description="Always null", examples=[None])
    audio: AnswerAudio | None = Field(default=None, description="Its speech; absent without `audio` in `modalities`")


class Choice(BaseModel):
    """The one choice of an answer."""

    index: int = Field(default=0, description="Always 0", examples=[0])
    message: AnswerMessage = Field(description="The answer")
    logprobs: None = Field(default=None, description="Always null", examples=[None])
    finish_reason: FinishReason = Field(
        description="`length` if the longest length ended it, otherwise `stop`", examples=["stop"]
    )


class ChatCompletion(BaseModel):
    """A whole answer."""

    id: str = Field(description="Its name", examples=["chatcmpl-1f0c"])
    object: Literal["chat.completion"] = Field(default="chat.completion", description="Kind of the object")
    created: int = Field(description="Time of the request, in seconds since 1970", examples=[1_796_000_000])
    model: str = Field(description="The model that answered", examples=["qwen3-omni"])
    choices: list[Choice] = Field(description="The answer, alone in a list")
    usage: ChatUsage = Field(description="Tokens in and out")
    system_fingerprint: None = Field(default=None, description="Always null", examples=[None])


def chunk(head: dict[str, Any], delta: dict[str, Any], finish_reason: FinishReason | None = None) -> dict[str, Any]:
    """A chunk of a streamed answer. `head` has its id, time and model."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {**head, "object": "chat.completion.chunk", "choices": [choice]}
