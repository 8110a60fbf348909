"""Python runs this first in each process that has its folder in PYTHONPATH: the engine loads the checked kernels."""

import os
from pathlib import Path

from vivavoce_engine.cpu import library

library.FOLDER = Path(os.environ["CHECKED_LIBRARIES"])
