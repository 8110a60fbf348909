"""Adds the recipe's folder to the path, because the recipe is not an installed package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "voice" / "recipe"))
