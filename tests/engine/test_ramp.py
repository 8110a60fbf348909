"""Length of audio chunks during playback: an engine's loop, with the clock of the test."""

from collections.abc import Callable

import pytest
from vivavoce_engine import EngineConfig
from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.batching.capacity import DEVICE, HOST
from vivavoce_engine.batching.listener import Playback
from vivavoce_engine.batching.loop import EngineLoop
from vivavoce_engine.batching.messages import AppendText, AudioChunk, Delivery, Submit
from vivavoce_engine.batching.runner import Step
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner
from vivavoce_engine.text.prompt import NO_ID

from tests.support.stepping import BesideRunner, LateRunner
from tests.support.utterances import pending


class TimedRunner(LateRunner):
    """Its steps take the times that it is given, one after the other, and the last for ever; and as a host's, longer by
    `decoding_ms` for each frame that they decode."""

    def __init__(self, steps_ahead: int, *steps_ms: float, decoding_ms: float = 0.0) -> None:
        super().__init__(FakeRunner(), DEVICE if steps_ahead else HOST)
        self.now_s = 1000.0
        self._steps_ms = list(steps_ms)
        self._decoding_ms = decoding_ms
        self._free_s = 0.0

    def launch(self, plan: Plan) -> Step:
        step = super().launch(plan)
        took_ms = self._steps_ms.pop(0) if len(self._steps_ms) > 1 else self._steps_ms[0]
        step.outcome.decoding_s = sum(frames for _, frames in plan.vocode) * self._decoding_ms / 1000
        done_s = self._free_s = max(self._free_s, self.now_s) + took_ms / 1000 + step.outcome.decoding_s

        def wait() -> None:
            self.now_s = max(self.now_s, done_s)
            step.wait()

        return Step(step.outcome, wait)


class Spoken:
    """One utterance of so many frames, and the pieces in which it is heard; `again`, another after it."""

    def __init__(self, runner: TimedRunner | BesideRunner, frames: int, live: bool = False) -> None:
        self._runner = runner
        config = EngineConfig()
        self.loop = EngineLoop(runner, config, Admission(config, FAKE_INFO.frame_s), self._hear, lambda: runner.now_s)
        self.again(frames, live)

    def again(self, frames: int, live: bool = False) -> None:
        self.pieces: list[int] = []
        self.stalled_s = 0.0
        self._playback = Playback()
        utterance = pending(1, live=live)
        utterance.trailing.text_tokens = frames
        self.loop.apply([Submit(utterance)])

    def _hear(self, deliveries: list[Delivery]) -> None:
        for _, event in deliveries:
            if isinstance(event, AudioChunk):
                self.pieces.append(event.frames)
                self.stalled_s += self._playback.add_audio(self._runner.now_s, event.frames * FAKE_INFO.frame_s)

    def run(self) -> list[int]:
        while self.loop.step():
            pass
        return self.pieces


@pytest.mark.parametrize(("steps_ahead", "largest"), [(0, 4), (1, 8)])
@pytest.mark.parametrize("step_ms", [0, 5, 20, 39])
def test_they_double_where_frames_are_made_in_less_than_half_their_time(
    steps_ahead: int, largest: int, step_ms: float
) -> None:
    expected = [1, 1, 2, 4, *[largest] * 4]
    assert Spoken(TimedRunner(steps_ahead, step_ms), sum(expected)).run() == expected


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_they_are_short_where_a_longer_one_would_come_too_late(steps_ahead: int) -> None:
    pieces = Spoken(TimedRunner(steps_ahead, 70), 50).run()
    assert sum(pieces) == 50
    assert pieces[:10] == [1] * 10
    assert pieces[:-1] == sorted(pieces[:-1]), "they grow with what is left to play"
    assert pieces[-2] > 1


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_they_are_long_where_none_would_come_in_time(steps_ahead: int) -> None:
    assert Spoken(TimedRunner(steps_ahead, 200), 16).run()[:4] == [1, 1, 2, 4]


@pytest.mark.parametrize("decoding_ms", [1, 8, 16, 24, 30])
@pytest.mark.parametrize("frame_ms", [5, 25, 45])
def test_nobody_waits_for_what_a_host_decodes_at_once(frame_ms: float, decoding_ms: float) -> None:
    """What most steps take, a frame alone, says nothing of the one that decodes four."""
    spoken = Spoken(TimedRunner(0, frame_ms, decoding_ms=decoding_ms), 60)
    spoken.run()
    spoken.again(60)
    spoken.run()
    assert spoken.stalled_s == 0.0
    assert spoken.pieces[-2] > 1


@pytest.mark.parametrize("decoding_ms", [1, 8, 16, 24, 30, 60])
@pytest.mark.parametrize("frame_ms", [5, 25, 45])
def test_nobody_waits_for_what_is_decoded_beside_the_frames(frame_ms: float, decoding_ms: float) -> None:
    spoken = Spoken(BesideRunner(FakeRunner(), frame_ms, decoding_ms), 60)
    spoken.run()
    spoken.again(60)
    spoken.run()
    assert spoken.stalled_s == 0.0
    assert spoken.pieces[-2] > 1


def test_frames_are_made_while_a_whole_piece_is_decoded() -> None:
    """Pieces of four take 40 ms of one core, their frames 40 of the other."""
    runner = BesideRunner(FakeRunner(), 10, 10)
    spoken = Spoken(runner, 84)
    begun_s = runner.now_s
    assert spoken.run() == [1, 1, 2, *[4] * 20]
    assert runner.now_s - begun_s < 1.1 * 84 * 0.010
    assert 2 < runner.most_underway <= 5


def test_one_slow_step_is_no_reason() -> None:
    """The first of a process takes longer than others."""
    assert Spoken(TimedRunner(0, 300, 20), 16).run() == [1, 1, 2, 4, 4, 4]


def test_a_delay_is_made_up_for() -> None:
    """The ninth frame takes 500 ms, of which 480 can be played. It is sent with the tenth, not when there are four."""
    pieces = Spoken(TimedRunner(0, *[20] * 8, 500, 20), 40).run()
    assert sum(pieces) == 40
    assert pieces[:6] == [1, 1, 2, 4, 2, 4]


def test_speech_goes_on_with_its_first_frame_when_text_comes_after_a_pause() -> None:
    runner = TimedRunner(0, 20)
    spoken = Spoken(runner, 30, live=True)
    assert spoken.run() == [1]
    runner.now_s += 3
    spoken.loop.apply([AppendText(1, (NO_ID,) * 20, complete=True)])
    spoken.loop.step()
    assert spoken.pieces == [1, 1]


@pytest.mark.parametrize("made", [lambda: TimedRunner(0, 20), lambda: BesideRunner(FakeRunner(), 10, 10)])
def test_a_live_text_that_is_there_is_decoded_in_pieces_as_long_as_those_of_a_request(
    made: Callable[[], TimedRunner | BesideRunner],
) -> None:
    spoken = Spoken(made(), 1, live=True)
    spoken.loop.apply([AppendText(1, (NO_ID,) * 24, complete=True)])
    assert spoken.run()[:7] == Spoken(made(), 24).run()[:7] == [1, 1, 2, 4, 4, 4, 4]
