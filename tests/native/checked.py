"""A plugin of pytest: the engine loads the kernels from the folder that VIVAVOCE_CHECKED_LIBRARIES names."""

import os
from pathlib import Path

from vivavoce_engine.cpu import library

library.FOLDER = Path(os.environ["VIVAVOCE_CHECKED_LIBRARIES"])
