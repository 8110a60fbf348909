"""The small voice that ships with Vivavoce, as a checkpoint folder in the Qwen3-TTS CustomVoice layout."""

from pathlib import Path

NAME = "vivavoce-small-en"
"""The model's name on a server."""
CHECKPOINT = Path(__file__).parent / "checkpoint"
QUALITY = Path(__file__).parent / "quality"
"""Runs of `vivavoce eval quality`: of the teacher, and of this voice as it was shipped in both text modes."""
