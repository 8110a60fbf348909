"""The settings that the recipe writes beside the weights."""

import json

import vivavoce_voice
from voice_recipe.export import GENERATION


def test_the_shipped_settings_are_those_of_the_recipe() -> None:
    shipped = json.loads((vivavoce_voice.CHECKPOINT / "generation_config.json").read_text(encoding="utf-8"))
    assert shipped == GENERATION
