"""The voices of a server in Wyoming's words: names that are unique over all models, and codes of languages."""

import asyncio
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from vivavoce_engine import SpeakerInfo, SpeechEngine

from vivavoce_server.errors import invalid
from vivavoce_server.service import Service
from vivavoce_server.text_parts import LANGUAGE_CODES
from vivavoce_server.voice_routes import find_store

ATTRIBUTION = {"name": "Vivavoce", "url": "https://github.com/vivavoce-speech/vivavoce"}
DEFAULT_CODE = "en"


@dataclass(frozen=True)
class Voice:
    """A voice of a model. `languages` maps ISO 639-1 codes to the model's names of them."""

    name: str
    model: str
    speaker: str
    languages: dict[str, str]
    sound: SpeakerInfo

    @property
    def description(self) -> str:
        """The text that Home Assistant shows for the voice: Heart (American, female)."""
        known = ", ".join(filter(None, (self.sound.accent, self.sound.sex)))
        return f"{self.name.capitalize()} ({known})" if known else self.name.capitalize()

    def language_name(self, code: str | None) -> str | None:
        """The model's name of a language, given as de or de-DE; None leaves it to the text."""
        return None if code is None else self.languages.get(short_code(code))


def short_code(code: str) -> str:
    """The code without its region: en for en-US."""
    return code.replace("_", "-").partition("-")[0].lower()


async def voices_of(service: Service) -> list[Voice]:
    """All voices: the first model's speakers, those of the others, then stored ones."""
    voices: dict[str, Voice] = {}
    for model, engine in service.speaking_engines().items():
        languages = _languages(engine)
        for speaker in engine.info.speakers:
            name = speaker if speaker not in voices else f"{model}/{speaker}"
            voices[name] = Voice(name, model, speaker, languages, engine.info.speaker_infos.get(speaker, SpeakerInfo()))
    store = find_store(service)
    for stored in [] if store is None else await asyncio.to_thread(store.all):
        size = stored.reference.embedding.size
        fitting = (name for name, engine in service.engines.items() if engine.info.embedding_size == size)
        if (first := next(fitting, None)) is not None and stored.name not in voices:
            languages = _languages(service.engines[first])
            voices[stored.name] = Voice(stored.name, first, stored.name, languages, SpeakerInfo())
    return list(voices.values())


def _languages(engine: SpeechEngine) -> dict[str, str]:
    return {LANGUAGE_CODES[name]: name for name in engine.info.languages if name in LANGUAGE_CODES}


def pick_voice(voices: list[Voice], name: str | None, language: str | None) -> Voice:
    """The voice with this name, or else the first one that speaks this language.

    Raises:
        ApiError: 400, there is no such voice; names the field.
    """
    for voice in voices:
        if name is not None and voice.name.casefold() == name.casefold():
            return voice
        if name is None and (language is None or short_code(language) in voice.languages):
            return voice
    if name is None and language is not None and voices:
        codes = ", ".join(sorted({code for voice in voices for code in voice.languages}))
        raise invalid("voice.language", f"No voice speaks {language!r} here; there are {codes}", "voice_not_found")
    known = ", ".join(voice.name for voice in voices[:24])
    message = f"There is no voice {name!r}; there are {known}" if voices else "No model here has a voice of its own"
    raise invalid("voice.name", message, "voice_not_found")


def info_of(voices: list[Voice]) -> dict[str, object]:
    """The data of an `info` event."""
    try:
        release = version("vivavoce-speech")
    except PackageNotFoundError:  # the source runs without being installed
        release = ""
    artifact: dict[str, object] = {"installed": True, "version": release, "attribution": ATTRIBUTION}
    program = {
        "name": "vivavoce",
        "description": "Vivavoce",
        "supports_synthesize_streaming": True,
        "voices": [
            {
                "name": voice.name,
                "description": voice.description,
                "languages": list(voice.languages) or [DEFAULT_CODE],
                **artifact,
            }
            for voice in voices
        ],
        **artifact,
    }
    return {"tts": [program]}
