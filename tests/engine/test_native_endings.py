"""A model of the CPU's kernels goes away while a thread still decodes."""

import gc
import threading
import weakref
from functools import partial

import numpy as np
import pytest
from vivavoce_engine import EngineConfig
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.cpu.decoders import Job
from vivavoce_engine.cpu.decoding import Decoding
from vivavoce_engine.cpu.native_runner import NativeRunner

from tests.engine.conftest import Checkpoints
from tests.support.cpu_runners import skip_without_kernels
from tests.support.waiting import HUNG_S


@pytest.fixture(autouse=True)
def _kernels() -> None:
    skip_without_kernels()


def test_the_weights_live_as_long_as_a_thread_decodes_with_them(checkpoints: Checkpoints) -> None:
    others = set(threading.enumerate())
    checkpoint = read_checkpoint(checkpoints("tiny", "custom_voice"))
    runner = NativeRunner("x", checkpoint, EngineConfig(device="cpu", threads=2, max_streams=1, max_context=64))
    weights = [weakref.ref(each) for each in runner._networks.memory if isinstance(each, np.ndarray)]
    assert len(weights) > 10
    codes = np.zeros((2, checkpoint.talker.num_code_groups), np.int32)
    begun, goes_on, samples = threading.Event(), threading.Event(), list[int]()

    def work(decoding: Decoding, thread: int) -> None:
        begun.set()
        assert goes_on.wait(HUNG_S)
        samples.append(len(decoding.decode(0, codes, None, thread=thread)))

    runner._decoders.put([Job(0, 1, partial(work, runner._decoding))])
    assert begun.wait(HUNG_S)
    (thread,) = (each for each in set(threading.enumerate()) - others if each.name.startswith("vivavoce-code2wav"))
    del runner
    gc.collect()
    assert all(each() is not None for each in weights)
    goes_on.set()
    thread.join(HUNG_S)
    gc.collect()
    assert samples == [2 * checkpoint.codec.samples_per_frame]
    assert not any(each() is not None for each in weights), "they are held for ever"
