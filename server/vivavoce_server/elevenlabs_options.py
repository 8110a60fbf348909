"""ElevenLabs' names of formats, languages, models and voices, for its routes and its sockets.

A client of ElevenLabs sends options that mean nothing here, and model and voice ids of ElevenLabs' own. Options without
a meaning are ignored. Ids of models (eleven_*) mean the first model. A voice id means, in this order: the voice that
`voice_aliases` names; a voice of this server; and, if it has the form of ElevenLabs' ids, the default voice, with a
warning, unless the server is strict. Any other name is refused.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from vivavoce_engine import SEED_MAX, SpeechEngine

from vivavoce_server.audio import AudioOptions
from vivavoce_server.config import ServerConfig
from vivavoce_server.errors import ApiError, invalid, validation_detail
from vivavoce_server.openai_voices import voice_aliases
from vivavoce_server.reading import normalize_of
from vivavoce_server.references import is_voice
from vivavoce_server.schemas import MAX_NAME_CHARS, SpeechOptions, Speed
from vivavoce_server.service import Service
from vivavoce_server.text_parts import LANGUAGE_CODES, language_of_code

DEFAULT_FORMAT = "mp3_44100_128"
OWN_MODELS = "eleven_"
OWN_VOICE = re.compile(r"[A-Za-z0-9]{20}")
"""The form of ElevenLabs' voice ids."""
SEED = re.compile(r"[0-9]{1,19}", re.ASCII)
"""The seed in an address. Python reads the digits of other scripts, too, and fails at thousands of digits."""
PCM_RATES = (8000, 16000, 22050, 24000, 32000, 44100, 48000)


def _output_formats() -> dict[str, AudioOptions]:
    formats = {f"{kind}_{rate}": AudioOptions(kind, sample_rate=rate) for kind in ("pcm", "wav") for rate in PCM_RATES}
    for rate, kbits in ((22050, (32,)), (24000, (48,)), (44100, (32, 64, 96, 128, 192))):
        formats |= {f"mp3_{rate}_{k}": AudioOptions("mp3", sample_rate=rate, bit_rate=1000 * k) for k in kbits}
    for k in (32, 64, 96, 128, 192):
        formats[f"opus_48000_{k}"] = AudioOptions("opus", sample_rate=48000, bit_rate=1000 * k)
    formats["mp3_44100"] = formats[DEFAULT_FORMAT]
    formats["ulaw_8000"] = AudioOptions("g711_ulaw")
    formats["alaw_8000"] = AudioOptions("g711_alaw")
    return formats


OUTPUT_FORMATS = _output_formats()
"""ElevenLabs' output_format → the audio, at its sample rate and bit rate."""


class VoiceSettings(BaseModel):
    """Settings of a voice. All others of ElevenLabs are ignored."""

    model_config = ConfigDict(extra="allow")

    speed: Speed | None = Field(
        default=None, description="Factor of the speaking rate, at the same pitch", examples=[1.0]
    )


@dataclass(frozen=True, slots=True)
class VoiceChoice:
    """The name of a voice here; None for the voice of a model that has no names. `warnings` say what was replaced."""

    name: str | None
    warnings: tuple[str, ...] = ()


def audio_of(output_format: str | None, speed: float | None) -> AudioOptions:
    """The audio that `output_format` names.

    Raises:
        ApiError: 400, there is no such format.
    """
    name = output_format or DEFAULT_FORMAT
    known = OUTPUT_FORMATS.get(name)
    if known is None:
        formats = ", ".join(OUTPUT_FORMATS)
        raise invalid("output_format", f"There is no format {name[:MAX_NAME_CHARS]!r} here; there are {formats}")
    return AudioOptions(known.format, 1.0 if speed is None else speed, known.sample_rate, known.bit_rate)


def model_of(model_id: str | None) -> str | None:
    return None if not model_id or model_id.startswith(OWN_MODELS) else model_id


def language_of(code: str | None) -> str | None:
    """The name of the language of a code such as `en` or `en-US`.

    Raises:
        ApiError: 400, no model speaks it.
    """
    if not code:
        return None
    name = language_of_code(code)
    if name not in LANGUAGE_CODES:
        known = ", ".join(LANGUAGE_CODES.values())
        raise invalid("language_code", f"There is no language {code[:MAX_NAME_CHARS]!r}; there are {known}")
    return name


async def choose_voice(voice_id: str, model_id: str | None, service: Service) -> VoiceChoice:
    """The voice that a client of ElevenLabs means; see the module. A voice that does not exist is refused later.

    Raises:
        ApiError: 404, the model does not exist.
    """
    _, engine = service.find_model(model_of(model_id))
    wanted = aliases_of(service.config).get(voice_id, voice_id)
    is_strict = service.config.strict
    if is_strict or not OWN_VOICE.fullmatch(wanted) or await asyncio.to_thread(is_voice, wanted, engine):
        return VoiceChoice(wanted)
    default = default_voice(engine)
    spoken_by = "the model's own voice" if default is None else repr(default)
    warning = f"There is no voice {wanted!r}; {spoken_by} speaks. The setting voice_aliases chooses another"
    return VoiceChoice(default, (warning,))


def default_voice(engine: SpeechEngine) -> str | None:
    """The first speaker, or else any name for a model that designs its voice. None for a model that has no voice."""
    return next(iter([*engine.info.speakers, *voice_aliases(engine.info)]), None)


def aliases_of(config: ServerConfig) -> dict[str, str]:
    """Maps the names of the setting `voice_aliases` to voices."""
    pairs = (entry.split("=", 1) for entry in config.voice_aliases)
    return {name.strip(): voice.strip() for name, voice in pairs}


def speech_fields(given: Mapping[str, Any], voice: VoiceChoice, speed: float | None) -> dict[str, Any]:
    """The fields of SpeechOptions that say what ElevenLabs' fields say. The audio format is not among them.

    Raises:
        ApiError: 400, a value cannot be served.
    """
    seed = given.get("seed")
    return {
        "model": model_of(given.get("model_id")),
        "voice": voice.name,
        "language": language_of(given.get("language_code")),
        "speed": 1.0 if speed is None else speed,
        "normalize": normalize_of(given.get("apply_text_normalization")),
        "seed": seed_of(seed) if isinstance(seed, str) else seed,
    }


def seed_of(seed: str) -> int:
    """The seed in an address.

    Raises:
        ApiError: 400, it is none.
    """
    if not SEED.fullmatch(seed) or int(seed) > SEED_MAX:
        raise invalid("seed", f"seed is a whole number from 0 to {SEED_MAX}")
    return int(seed)


Options = TypeVar("Options", bound=SpeechOptions)


def validated(kind: type[Options], fields: dict[str, Any]) -> Options:
    """The options with these fields. Raises a 400 if one of them is invalid."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise api_error(error) from None


def api_error(error: ValidationError) -> ApiError:
    """A 400 that names the first field at fault."""
    first = error.errors()[0]
    detail = validation_detail(first["loc"], first["type"], first["msg"])
    return ApiError(400, detail.message, detail.param, detail.code or "invalid_value")


class ElevenLabsLanguage(BaseModel):
    """A language of a model."""

    language_id: str = Field(description="ISO 639-1 code", examples=["en"])
    name: str = Field(description="Name of the language", examples=["English"])


class ElevenLabsModel(BaseModel):
    """ElevenLabs' fields of a model."""

    model_id: str = Field(description="Name of the model in requests", examples=["vivavoce-small-en"])
    name: str = Field(description="The same name", examples=["vivavoce-small-en"])
    can_do_text_to_speech: bool = Field(default=True, description="True", examples=[True])
    can_do_voice_conversion: bool = Field(default=False, description="False", examples=[False])
    languages: list[ElevenLabsLanguage] = Field(description="Languages that it speaks")
    maximum_text_length_per_request: int = Field(description="Most characters of a text", examples=[4096])


def elevenlabs_models(service: Service) -> list[ElevenLabsModel]:
    """The models of this server, as ElevenLabs lists models."""
    return [
        ElevenLabsModel(
            model_id=name,
            name=name,
            languages=[
                ElevenLabsLanguage(language_id=LANGUAGE_CODES[language.casefold()], name=language.capitalize())
                for language in engine.info.languages
                if language.casefold() in LANGUAGE_CODES
            ],
            maximum_text_length_per_request=service.config.max_input_chars,
        )
        for name, engine in service.speaking_engines().items()
    ]
