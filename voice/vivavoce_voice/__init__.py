"""The small voice that ships with Vivavoce, as a checkpoint folder in the Qwen3-TTS CustomVoice layout."""

from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"
