"""Messages between the server and an engine's process: they are frozen, and carry an utterance whole."""

import pickle
from dataclasses import fields, replace
from typing import get_args

import pytest
from vivavoce_engine.batching.messages import AudioChunk, Failed, Finished
from vivavoce_engine.process.fronts import RemoteListener
from vivavoce_engine.process.host_wire import Need, ProcessStatus, Unanswered
from vivavoce_engine.process.wire import RemoteSubmit, ToServer, ToWorker

from tests.support.utterances import pending

MESSAGES = (*get_args(ToWorker), *get_args(ToServer), AudioChunk, Finished, Failed, Need, ProcessStatus, Unanswered)


@pytest.mark.parametrize("kind", MESSAGES)
def test_every_message_is_frozen(kind: type) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.parametrize("complete", [True, False])
def test_an_utterance_crosses_whole_but_for_its_listener(complete: bool) -> None:
    sent = replace(pending(7, client="ada", deadline_s=3.0, frames=2.5), seed=5, queued_s=1.0)
    prompt = replace(sent.prompt, trailing_ids=(4, 2))
    sent = replace(sent, prompt=prompt, trailing=type(sent.trailing)((4, 2), complete, prompt.text_tokens))
    message = pickle.loads(pickle.dumps(RemoteSubmit.of(sent)))
    listener = RemoteListener(7)
    received = message.pending(listener)
    assert received.stream is listener
    assert vars(received.trailing) == vars(sent.trailing)
    for name in {field.name for field in fields(sent)} - {"stream", "trailing"}:
        assert getattr(received, name) == getattr(sent, name), name


def test_text_that_is_appended_on_one_side_is_not_on_the_other() -> None:
    sent = pending(7, live=True)
    message = RemoteSubmit.of(replace(sent, prompt=replace(sent.prompt, trailing_ids=tuple(sent.trailing.ids))))
    received = message.pending(RemoteListener(7))
    received.trailing.append((1, 2), complete=False)
    assert message.pending(RemoteListener(7)).trailing.ids == sent.trailing.ids != received.trailing.ids
