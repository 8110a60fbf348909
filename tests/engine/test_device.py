"""The current card of a thread, and copies where no memory can be pinned, on machines that this one is not."""

from typing import Any

import numpy as np
import pytest
import torch
from vivavoce_engine import EngineConfig, VoiceReference
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.device import staging, to_device, use_device
from vivavoce_engine.models import loader
from vivavoce_engine.models.reference_encoder import ReferenceEncoder

from tests.engine.conftest import Checkpoints

SILENCE = np.zeros(24000, np.float32)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The cards that have been made current."""
    made: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    return made


@pytest.mark.parametrize(
    ("name", "current"), [("cpu", []), ("cuda", []), ("cuda:0", ["cuda:0"]), ("cuda:1", ["cuda:1"])]
)
def test_a_named_card_becomes_the_current_one(name: str, current: list[str], cards: list[torch.device]) -> None:
    use_device(torch.device(name))
    assert [str(card) for card in cards] == current


class EncoderOnACard(ReferenceEncoder):
    """Encodes nothing; its first attempts end in `errors`."""

    def __init__(self, *errors: str) -> None:
        self._device = torch.device("cuda:1")
        self.errors = list(errors)
        self.attempts = 0

    def _encode(self, audio: np.ndarray[Any, Any]) -> VoiceReference:
        self.attempts += 1
        if self.errors:
            raise RuntimeError(self.errors.pop(0))
        return VoiceReference(np.ones(2, np.float32), None)


@pytest.fixture
def emptied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes that PyTorch has given memory back."""
    noted: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: noted.append("emptied"))
    return noted


def test_the_thread_that_encodes_uses_the_encoders_card(cards: list[torch.device], emptied: list[str]) -> None:
    encoder = EncoderOnACard()
    encoder.encode(SILENCE)
    assert [str(card) for card in cards] == ["cuda:1"]
    assert (encoder.attempts, emptied) == (1, [])


def test_an_encoder_without_memory_tries_once_more(cards: list[torch.device], emptied: list[str]) -> None:
    encoder = EncoderOnACard("CUDA error: out of memory")
    assert encoder.encode(SILENCE).embedding.tolist() == [1, 1]
    assert (encoder.attempts, emptied) == (2, ["emptied"])
    encoder = EncoderOnACard("CUDA error: out of memory", "CUDA out of memory. Tried to allocate 2.00 GiB")
    with pytest.raises(RuntimeError, match="Tried to allocate"):
        encoder.encode(SILENCE)
    assert encoder.attempts == 2


def test_another_error_of_an_encoder_is_not_tried_again(cards: list[torch.device], emptied: list[str]) -> None:
    encoder = EncoderOnACard("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal"):
        encoder.encode(SILENCE)
    assert (encoder.attempts, emptied) == (1, [])


class OnACard:
    """Stands for a tensor on a card, as far as `staging` asks."""

    is_cuda, dtype = True, torch.float32


def test_a_copy_goes_through_ordinary_memory_if_none_can_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here there is no card, so PyTorch itself refuses to pin."""
    refused: list[bool] = []
    real = torch.empty

    def empty(*shape: Any, pin_memory: bool = False, **rest: Any) -> torch.Tensor:
        if pin_memory:
            refused.append(True)
            raise RuntimeError("CUDA error: out of memory")
        return real(*shape, **rest)

    monkeypatch.setattr(torch, "empty", empty)
    host = staging((2, 3), OnACard())  # type: ignore[arg-type]
    assert refused == [True]
    assert (tuple(host.shape), host.dtype, host.is_pinned()) == ((2, 3), torch.float32, False)
    assert staging((2,), torch.zeros(1, dtype=torch.int64)).dtype == torch.int64
    assert refused == [True], "on a CPU nothing is pinned"


def test_an_upload_does_without_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    sent: list[tuple[list[float], torch.device, bool]] = []

    def to(host: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        sent.append((host.tolist(), device, non_blocking))
        return host

    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    monkeypatch.setattr(torch.Tensor, "to", to)
    to_device(torch.ones(2), torch.device("cuda:1"))
    assert sent == [([1, 1], torch.device("cuda:1"), True)]


def test_weights_that_find_no_memory_are_not_called_unfit(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(loader, "_project_codes", refuse)
    checkpoint = read_checkpoint(checkpoints("tiny", "custom_voice"))
    with pytest.raises(RuntimeError, match="out of memory"):
        loader.load_models(checkpoint, torch.device("cpu"), torch.float32)


def test_a_step_of_the_plain_runner_uses_the_card_on_any_thread(
    checkpoints: Checkpoints, cards: list[torch.device]
) -> None:
    config = EngineConfig(max_streams=1, max_context=64, device="cpu", dtype="float32")
    runner = TorchRunner("tiny", read_checkpoint(checkpoints("tiny", "custom_voice")), config)
    runner.device = torch.device("cuda:1")
    runner.run(Plan((), (), ()))
    assert [str(card) for card in cards] == ["cuda:1"]
