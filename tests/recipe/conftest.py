"""The recipe is no installed package: it is run from its folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "voice" / "recipe"))
