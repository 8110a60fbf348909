"""How many inputs: a few in every run of the tests, FUZZ_EXAMPLES of each kind in `make fuzz`."""

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
FUZZED = settings(
    # Without a wish for more, the same inputs every time: a run that fails today failed yesterday.
    max_examples=EXAMPLES or 20,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
