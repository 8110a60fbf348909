"""A listener's encoder and effects take no threads of their own, on a machine with any number of cores."""

from pathlib import Path

import numpy as np
import pytest
from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.formats import FORMATS, FormatName

TASKS = Path("/proc/self/task")
pytestmark = pytest.mark.skipif(not TASKS.exists(), reason="threads are counted by Linux's /proc")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("speed", [1.0, 1.5])
def test_an_encoder_starts_no_threads(name: FormatName, speed: float) -> None:
    before = set(TASKS.iterdir())
    encoder = SpeechEncoder(AudioOptions(name, speed, 16000), 24000)
    encoder.feed(np.zeros(24000, np.float32))
    # Which threads began, not how many there are: one that an earlier test left behind may end meanwhile.
    assert not set(TASKS.iterdir()) - before
    encoder.flush()
