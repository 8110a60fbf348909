"""The engine says what the reference package says: greedy codes token by token, and its waveform.

The reference's outputs are in tests/golden; its README tells how they were made.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_bench.cards.layout import Kind, ShapeName
from vivavoce_engine import SynthesisRequest
from vivavoce_engine.checkpoint.files import Checkpoint, read_checkpoint
from vivavoce_engine.text.prompt import TextFrontend, Tokenizer
from vivavoce_voice import CHECKPOINT

from tests.support.golden import Golden, load_golden, thin
from tests.support.speaking import GREEDY, Speech, load, running, speak
from tests.support.tiny_checkpoints import write_checkpoint

WAVE_TOLERANCE = 1e-4
CHECKPOINTS: list[tuple[Kind, ShapeName]] = [
    ("custom_voice", "tiny"),
    ("custom_voice", "tiny_noproj"),
    ("custom_voice", "tiny_32"),
    ("voice_design", "tiny"),
    ("voice_design", "tiny_32"),
]


def request_of(call: dict[str, Any]) -> SynthesisRequest:
    return SynthesisRequest(
        text=call["text"],
        speaker=call.get("speaker", ""),
        language=call.get("language", "Auto"),
        instructions=call.get("instruct", ""),
        sampling=GREEDY,
        streaming_text=not call["non_streaming_mode"],
        max_frames=call["max_new_tokens"] - 1,  # the reference never completes the frame of the last code it draws
    )


def servable(golden: Golden, checkpoint: Checkpoint) -> dict[str, SynthesisRequest]:
    """The golden calls that the engine takes. It refuses what the reference quietly drops: instructions on a model
    that was not trained with them (here they are left out), and a voice design that describes nothing."""
    requests = {}
    for name, call in golden.calls.items():
        request = request_of(call)
        if not checkpoint.takes_instructions:
            request = replace(request, instructions="")
        if checkpoint.task != "voice_design" or request.instructions:
            requests[name] = request
    assert len(requests) >= 8
    return requests


def assert_same_codes(name: str, actual: NDArray[np.int16], expected: NDArray[np.int16]) -> None:
    frames = min(len(actual), len(expected))
    different = np.argwhere(actual[:frames] != expected[:frames])
    if len(different):
        frame, codebook = different[0]
        pytest.fail(
            f"{name}: frame {frame}, codebook {codebook}: {actual[frame, codebook]}, "
            f"the reference has {expected[frame, codebook]}"
        )
    assert len(actual) == len(expected), f"{name}: {len(actual)} frames, the reference has {len(expected)}"


def assert_as_reference(golden_name: str, checkpoint: Path) -> None:
    """All calls of a golden file at once, in one batch of mixed lengths and modes."""
    golden = load_golden(golden_name)
    requests = servable(golden, read_checkpoint(checkpoint))
    with running(load(checkpoint, max_streams=4)) as engine:
        speeches = dict(zip(requests, speak(engine, *requests.values()), strict=True))
    waves = 0
    for name, speech in speeches.items():
        call = golden.calls[name]
        assert_same_codes(name, speech.codes, golden.tensors[f"{name}/codes"])
        assert speech.finished.reason == ("stop" if call["ended"] else "length"), name
        assert len(speech.pcm) == call["samples"], name
        waves += compare_wave(name, speech, golden.tensors.get(f"{name}/wave"))
    assert waves >= 2


def compare_wave(name: str, speech: Speech, expected: NDArray[np.float32] | None) -> int:
    if expected is None:
        return 0
    difference = np.abs(thin(speech.pcm) - expected).max()
    assert difference < WAVE_TOLERANCE, f"{name}: the waveform differs by {difference}"
    return 1


@pytest.mark.parametrize(("kind", "shape"), CHECKPOINTS)
def test_codes_and_waveform_equal_the_reference(kind: Kind, shape: ShapeName, tmp_path: Path) -> None:
    assert_as_reference(f"{kind}-{shape}", write_checkpoint(tmp_path / "checkpoint", shape, kind))


def test_the_shipped_voice_equals_the_reference() -> None:
    assert_as_reference("shipped_voice", CHECKPOINT)


def test_token_ids_equal_the_reference(tmp_path: Path) -> None:
    """Except that the names of special tokens are text here, where the reference takes them for the tokens."""
    folder = write_checkpoint(tmp_path / "checkpoint", "tiny", "custom_voice")
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    special = {int(token_id) for token_id in settings["added_tokens_decoder"]}
    tokenizer, naming_special = Tokenizer(folder), 0
    for entry in load_golden("text_ids").info["texts"]:
        ids = tokenizer.encode(entry["text"])
        if special.isdisjoint(entry["ids"]):
            assert ids == entry["ids"], entry["text"]
        else:
            assert special.isdisjoint(ids), entry["text"]
            naming_special += 1
    assert naming_special >= 3


@pytest.mark.parametrize(("kind", "shape"), CHECKPOINTS)
def test_prompt_ids_equal_the_reference(kind: Kind, shape: ShapeName, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_checkpoint(tmp_path / "checkpoint", shape, kind))
    frontend = TextFrontend(checkpoint, Tokenizer(checkpoint.path))
    golden = load_golden(f"{kind}-{shape}")
    for name, request in servable(golden, checkpoint).items():
        call, prompt = golden.calls[name], frontend.prompt(request)
        instruct, text = call["instruct_ids"] or [], call["input_ids"][3:-5]
        assert list(prompt.text_ids[: len(instruct)]) == instruct, name
        assert list(prompt.text_ids[len(instruct) : len(instruct) + 3]) == call["input_ids"][:3], name
        if call["non_streaming_mode"]:
            assert list(prompt.text_ids[-2 - len(text) : -2]) == text, name
            assert prompt.trailing_ids == (), name
        else:
            assert [prompt.text_ids[-1], *prompt.trailing_ids] == [*text, checkpoint.tts_eos_token_id], name
