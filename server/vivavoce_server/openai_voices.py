"""Maps OpenAI's voice names to speakers of a checkpoint. The same name always means the same speaker."""

from vivavoce_engine import ModelInfo

OPENAI_VOICES: dict[str, tuple[str, ...]] = {
    "alloy": ("heart", "serena", "chelsie"),
    "ash": ("michael", "ryan", "ethan"),
    "ballad": ("george", "eric", "ethan"),
    "coral": ("bella", "vivian", "chelsie"),
    "echo": ("michael", "aiden"),
    "fable": ("george", "dylan", "ethan"),
    "onyx": ("fenrir", "uncle_fu", "ethan"),
    "nova": ("bella", "sohee", "chelsie"),
    "sage": ("emma", "serena", "chelsie"),
    "shimmer": ("heart", "ono_anna", "chelsie"),
    "verse": ("fenrir", "aiden"),
    "marin": ("emma", "vivian", "chelsie"),
    "cedar": ("michael", "ryan", "ethan"),
}
"""OpenAI's name → similar speakers of the shipped voice, of Qwen's CustomVoice and of Qwen3-Omni. The first that exists
is used."""


def voice_aliases(info: ModelInfo) -> dict[str, str]:
    """Maps OpenAI's names to this checkpoint's speakers. On an unknown checkpoint, the names spread over its speakers.

    A model that designs its voice has no speakers. All names then mean the voice that `instructions` describe, because
    OpenAI's clients always send a name.
    """
    names = {speaker.casefold() for speaker in info.speakers}
    aliases: dict[str, str] = {}
    for index, (alias, preferred) in enumerate(OPENAI_VOICES.items()):
        if alias not in names:
            spread = info.speakers[index % len(info.speakers)] if info.speakers else ""
            aliases[alias] = next((name for name in preferred if name in names), spread)
    return aliases
