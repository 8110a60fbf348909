"""The end of an utterance reports its wait for a row."""

from dataclasses import replace

from vivavoce_engine import EngineConfig
from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.batching.loop import EngineLoop
from vivavoce_engine.batching.messages import Delivery, Finished, Submit
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner

from tests.support.utterances import pending


def test_the_wait_is_from_the_queue_to_the_row() -> None:
    now_s = 100.0
    heard: list[Delivery] = []
    config = EngineConfig(max_streams=1)
    loop = EngineLoop(FakeRunner(), config, Admission(config, FAKE_INFO.frame_s), heard.extend, lambda: now_s)
    loop.apply(Submit(replace(pending(number), queued_s=now_s)) for number in (1, 2))
    now_s = 100.5
    while not any(isinstance(event, Finished) for _, event in heard):
        loop.step()
    now_s = 104.0
    while loop.step():
        pass
    waits = {stream.utterance_id: event.queue_wait_s for stream, event in heard if isinstance(event, Finished)}
    assert waits == {1: 0.5, 2: 4.0}
