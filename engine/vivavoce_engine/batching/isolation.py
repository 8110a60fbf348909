"""Work on several utterances at once, where a fault of one utterance fails that utterance alone."""

import logging
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager

from vivavoce_engine.batching.faults import failure_of
from vivavoce_engine.batching.runner import Outcome
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.errors import is_device_lost, is_out_of_memory

log = logging.getLogger(__name__)

Stage = Callable[[SequenceOf[Sequence], Outcome], None]


def isolated(stage: Stage, sequences: SequenceOf[Sequence], outcome: Outcome) -> None:
    """Runs a stage for all sequences at once and, if that fails, for one after the other.

    So a fault fails its own row alone. A stage may be repeated because it changes a row's state last, when nothing can
    fail any more. An error of the CUDA context is no single row's fault, and is raised.
    """
    alive = [sequence for sequence in sequences if sequence.utterance_id not in outcome.failed]
    if not alive:
        return
    try:
        stage(alive, outcome)
    except Exception as error:
        if is_device_lost(error):
            raise
        if len(alive) == 1:
            log.exception("utterance %d failed", alive[0].utterance_id)
            outcome.failed[alive[0].utterance_id] = failure_of(error)
            return
        log.warning("%d utterances failed together, and go on one by one", len(alive), exc_info=True)
        for sequence in alive:
            isolated(stage, [sequence], outcome)


@contextmanager
def failing_for_memory(sequences: SequenceOf[Sequence], outcome: Outcome) -> Iterator[None]:
    """Fails all `sequences` if the work in this context finds no memory, because another process may have taken it.

    For work that must not be repeated, as it changes rows in place. Any other error is raised.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        log.exception("%d utterances failed for lack of memory", len(sequences))
        outcome.failed.update({sequence.utterance_id: failure_of(error) for sequence in sequences})
