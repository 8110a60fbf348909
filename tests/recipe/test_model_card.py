"""The model card's table comes from the runs that judged the voice."""

import json

import pytest
import vivavoce_voice
from vivavoce_eval.figures import load
from voice_recipe.model_card import HEADER, RUNS, table, with_table

CARD = vivavoce_voice.CHECKPOINT / "MODEL_CARD.md"


def test_figures_are_those_of_the_runs() -> None:
    cells = {line.split(" | ")[0].removeprefix("| "): line for line in table(vivavoce_voice.QUALITY)}
    runs = [json.loads((vivavoce_voice.QUALITY / file).read_text(encoding="utf-8")) for file in RUNS.values()]
    rates = [f"{run['figures']['word_error_rate']:.2f} %" for run in runs]
    assert cells["word error rate, Whisper base, greedy"].endswith(f"| {' | '.join(rates)} |")
    assert cells["stops by itself"] == "| stops by itself | 100 of 100 | 100 of 100 |  |"
    lowest = [
        min(voice.same for voice in load(vivavoce_voice.QUALITY / file).voices.values() if voice.same is not None)
        for file in RUNS.values()
    ]
    assert cells["same speaker, lowest of all"].endswith(f"| {' | '.join(f'{value:.3f}' for value in lowest)} |")
    assert cells["nearest two speakers"].count("(heart, bella)") == len(RUNS)


def test_only_the_table_of_the_card_changes() -> None:
    card = CARD.read_text(encoding="utf-8")
    before, after = card.split(HEADER)[0], card.split(HEADER)[1].partition("\n\n")[2]
    assert with_table(card, [HEADER, "new"]) == f"{before}{HEADER}\nnew\n\n{after}"
    with pytest.raises(ValueError, match="no table"):
        with_table("nothing", [HEADER])
