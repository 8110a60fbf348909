"""The small voice that ships with Vivavoce, as a checkpoint folder in the Qwen3-TTS CustomVoice layout."""

from pathlib import Path

NAME = "vivavoce-small-en"
"""Name of the model on a server."""
CHECKPOINT = Path(__file__).parent / "checkpoint"
HELD_OUT = Path(__file__).parent / "held_out" / "english.tsv"
"""Sentences that judge the voice and were never in its training. Each line is: category TAB text."""
LONG_TEXTS = Path(__file__).parent / "held_out" / "long.tsv"
"""Ten texts of 8 of those sentences each, of about 400 characters, in the same form."""
QUALITY = Path(__file__).parent / "quality"
"""Runs of `vivavoce eval quality`: of the teacher, and of this voice when it was shipped, in both text modes."""


def held_out_sentences() -> list[tuple[str, str]]:
    """Reads the category and text of each held-out sentence."""
    lines = HELD_OUT.read_text(encoding="utf-8").splitlines()
    return [(category, text) for category, _, text in (line.partition("\t") for line in lines if line.strip())]
