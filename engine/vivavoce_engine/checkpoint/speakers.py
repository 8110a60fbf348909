"""Speakers of the released CustomVoice and Qwen3-Omni checkpoints, whose files do not describe them."""

from collections.abc import Mapping

from vivavoce_engine.request import SpeakerInfo

RELEASED: dict[tuple[str, int], SpeakerInfo] = {
    ("serena", 3066): SpeakerInfo("female", None, "chinese", "Young, warm and gentle"),
    ("vivian", 3065): SpeakerInfo("female", None, "chinese", "Young and bright, with a slight edge"),
    ("uncle_fu", 3010): SpeakerInfo("male", None, "chinese", "Experienced, low and mellow"),
    ("ryan", 3061): SpeakerInfo("male", None, "english", "Dynamic, with a strong rhythm"),
    ("aiden", 2861): SpeakerInfo("male", "American", "english", "Sunny, with clear middle tones"),
    ("ono_anna", 2873): SpeakerInfo("female", None, "japanese", "Playful, light and nimble"),
    ("sohee", 2864): SpeakerInfo("female", None, "korean", "Warm, rich in emotion"),
    ("eric", 2875): SpeakerInfo("male", "Sichuan", "chinese", "Lively, bright and a little husky"),
    ("dylan", 2878): SpeakerInfo("male", "Beijing", "chinese", "Young, clear and natural"),
    ("chelsie", 2301): SpeakerInfo("female", None, None, "Soft, warm and clear"),
    ("ethan", 2302): SpeakerInfo("male", None, None, "Bright, lively and warm"),
    ("aiden", 2303): SpeakerInfo("male", "American", None, "Relaxed and boyish"),
}
"""(Name, id in spk_id or speaker_id) → the sound, as the model cards of Qwen3-TTS-12Hz-1.7B-CustomVoice and
Qwen3-Omni-30B-A3B-Instruct have it."""


def released_speakers(spk_id: Mapping[str, int]) -> dict[str, SpeakerInfo]:
    """The released speakers among those of a checkpoint. A fine-tuned speaker of the same name has another id."""
    return {name: RELEASED[name, number] for name, number in spk_id.items() if (name, number) in RELEASED}
