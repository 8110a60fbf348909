"""A Base checkpoint clones as the reference package does: equal encodings of a recording, prompts, and speech.

The reference's outputs are in tests/golden; its README tells how they were made.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from vivavoce_bench.cards.layout import SHAPES, ShapeName
from vivavoce_engine import Engine, EngineConfig, SynthesisRequest, VoiceReference
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.models.codec_decoder import Code2Wav, CodecRows
from vivavoce_engine.models.loader import load_models
from vivavoce_engine.models.prompts import embed_prompt
from vivavoce_engine.models.reference_encoder import ReferenceEncoder
from vivavoce_engine.models.speaker_encoder import LogMel
from vivavoce_engine.text.prompt import TextFrontend, Tokenizer
from vivavoce_engine.voices.reference_audio import read_samples

from tests.engine.conftest import Checkpoints
from tests.support.golden import Golden, load_golden, thin
from tests.support.recordings import reference_wav
from tests.support.reference_audio import REFERENCES, ReferenceName
from tests.support.speaking import GREEDY, Speech, load, running, speak

pytestmark = pytest.mark.long

EMBEDDING_TOLERANCE = 1e-4
PROMPT_TOLERANCE = 2e-6
WAVE_TOLERANCE = 1e-4
CPU = torch.device("cpu")


def request_of(call: dict[str, Any], reference: VoiceReference) -> SynthesisRequest:
    return SynthesisRequest(
        call["text"],
        language=call["language"],
        sampling=GREEDY,
        streaming_text=not call["non_streaming_mode"],
        max_frames=call["max_new_tokens"] - 1,  # the reference never completes the frame of the last code it draws
        reference=reference,
    )


def golden_requests(golden: Golden) -> dict[str, SynthesisRequest]:
    """All calls, with the voices that the reference heard."""
    requests = {}
    for name, call in golden.calls.items():
        embedding = golden.tensors[f"references/{call['reference']}/x_vector"]
        codes = golden.tensors[f"references/{call['reference']}/codes"] if "ref_text" in call else None
        requests[name] = request_of(call, VoiceReference(embedding, codes, call.get("ref_text", "")))
    assert len(requests) == 12
    return requests


# ---- what is heard in a recording


@pytest.mark.parametrize("name", REFERENCES)
def test_the_mel_spectrum_of_a_file_equals_the_reference(name: ReferenceName) -> None:
    golden = load_golden("audio")
    samples = read_samples(reference_wav(name))
    assert len(samples) == golden.info[name]["samples"]
    if f"{name}/resampled" in golden.tensors:
        assert np.abs(thin(samples) - golden.tensors[f"{name}/resampled"]).max() < 1e-6
    mel = LogMel(128)(torch.from_numpy(samples)[None])[0].T.numpy()
    assert len(mel) == golden.info[name]["mel_frames"]
    assert np.abs(mel[:: golden.info["mel_stride"][name]] - golden.tensors[f"{name}/mel"]).max() < 1e-4


@pytest.mark.parametrize("shape", SHAPES)
def test_embedding_and_codes_of_a_file_equal_the_reference(shape: ShapeName, checkpoints: Checkpoints) -> None:
    """`long` is longer than the window that newer versions of Mimi apply, and that the reference does not have."""
    golden = load_golden(f"base-{shape}")
    encoder = ReferenceEncoder(read_checkpoint(checkpoints(shape, "base")), CPU)
    for name in REFERENCES:
        heard = encoder.encode(read_samples(reference_wav(name)))
        assert heard.codes is not None
        assert str(heard.codes.dtype) == "int16"
        assert str(heard.embedding.dtype) == "float32"
        assert np.array_equal(heard.codes, golden.tensors[f"references/{name}/codes"]), name
        difference = np.abs(heard.embedding - golden.tensors[f"references/{name}/x_vector"]).max()
        assert difference < EMBEDDING_TOLERANCE, f"{name}: the speaker embedding differs by {difference}"


# ---- the prompts


@pytest.mark.parametrize("shape", SHAPES)
def test_prompt_embeddings_equal_the_reference(shape: ShapeName, checkpoints: Checkpoints) -> None:
    checkpoint = read_checkpoint(checkpoints(shape, "base"))
    talker, predictor, _ = load_models(checkpoint, CPU, torch.float32)
    frontend = TextFrontend(checkpoint, Tokenizer(checkpoint.path))
    golden = load_golden(f"base-{shape}")
    prompts = {name: frontend.prompt(request) for name, request in golden_requests(golden).items()}
    with torch.inference_mode():
        embedded = [embed_prompt(prompt, talker, predictor)[0] for prompt in prompts.values()]
    compared = 0
    for x, (name, prompt) in zip(embedded, prompts.items(), strict=True):
        if f"{name}/prefill" not in golden.tensors:
            continue
        expected = golden.tensors[f"{name}/prefill"]
        assert prompt.prefill_tokens == len(x) == len(expected), name
        assert np.abs(x.numpy() - expected).max() < PROMPT_TOLERANCE, name
        trailing = talker.text_embedding(torch.tensor([*prompt.trailing_ids, checkpoint.tts_pad_token_id])).numpy()
        expected = golden.tensors[f"{name}/trailing"]  # in some modes without the tts_pad that follows
        assert len(trailing) - len(expected) in (0, 1), name
        assert np.abs(trailing[: len(expected)] - expected).max() < PROMPT_TOLERANCE, name
        compared += 1
    assert compared == 6


# ---- what is said


@pytest.mark.parametrize("shape", SHAPES)
def test_codes_and_waveform_equal_the_reference(shape: ShapeName, checkpoints: Checkpoints) -> None:
    """From the encoded recording to the waveform, all calls at once, in one batch of mixed lengths, tasks and modes."""
    golden = load_golden(f"base-{shape}")
    with running(load(checkpoints(shape, "base"), max_streams=5)) as engine:
        requests = golden_requests(golden)
        speeches = dict(zip(requests, speak(engine, *requests.values()), strict=True))
    waves = 0
    for name, speech in speeches.items():
        assert np.array_equal(speech.codes, golden.tensors[f"{name}/codes"]), name
        assert speech.finished.reason == ("stop" if golden.calls[name]["ended"] else "length"), name
        # The reference cuts at a rounded share of the samples, which can be one sample late.
        assert 0 <= golden.calls[name]["samples"] - len(speech.pcm) <= 1, name
        if f"{name}/wave" in golden.tensors:
            expected = golden.tensors[f"{name}/wave"]
            difference = np.abs(thin(speech.pcm) - expected[: len(thin(speech.pcm))]).max()
            assert difference < WAVE_TOLERANCE, f"{name}: the waveform differs by {difference}"
            waves += 1
    assert waves == 6


@pytest.fixture(scope="module")
def spoken(checkpoints: Checkpoints) -> Callable[[int, int], dict[str, Speech]]:
    """(first_chunk_frames, max_chunk_frames) → what is said by all calls of the tiny checkpoint."""
    requests = golden_requests(load_golden("base-tiny"))
    checkpoint = read_checkpoint(checkpoints("tiny", "base"))

    @cache
    def say(first: int, largest: int) -> dict[str, Speech]:
        config = EngineConfig(max_streams=4, max_context=512, max_chunk_frames=largest, device="cpu", dtype="float32")
        with running(Engine(TorchRunner("base", checkpoint, config), config)) as engine:
            cut = [replace(request, first_chunk_frames=first) for request in requests.values()]
            return dict(zip(requests, speak(engine, *cut), strict=True))

    return say


@pytest.mark.parametrize(("first", "largest"), [(1, 1), (1, 8), (7, 7), (40, 40)])
def test_any_chunking_is_decoding_all_and_cutting_the_reference_off(
    first: int, largest: int, spoken: Callable[[int, int], dict[str, Speech]], checkpoints: Checkpoints
) -> None:
    golden = load_golden("base-tiny")
    checkpoint = read_checkpoint(checkpoints("tiny", "base"))
    _, _, decoder = load_models(checkpoint, CPU, torch.float32)
    for name, speech in spoken(first, largest).items():
        call = golden.calls[name]
        codes = golden.tensors[f"{name}/codes"]
        assert np.array_equal(speech.codes, codes), name
        prefix = golden.tensors[f"references/{call['reference']}/codes"] if "ref_text" in call else codes[:0]
        whole = decode_whole(decoder, np.concatenate([prefix, codes]))
        cut = whole[len(prefix) * checkpoint.codec.samples_per_frame :]
        assert np.abs(speech.pcm - cut).max() < WAVE_TOLERANCE, name


def decode_whole(decoder: Code2Wav, codes: NDArray[np.int16]) -> NDArray[np.float32]:
    """In one pass, from nothing."""
    rows = CodecRows(decoder, 1, torch.zeros(()))
    with torch.inference_mode():
        return rows.decode(torch.tensor([0]), torch.tensor(codes, dtype=torch.int64)[None])[0].numpy()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("frames", [1, 5, 11, 90])
def test_a_primed_row_is_as_one_that_decoded_the_reference(
    shape: ShapeName, frames: int, checkpoints: Checkpoints
) -> None:
    """Although the audio of nearly all its frames is never computed."""
    checkpoint = read_checkpoint(checkpoints(shape, "base"))
    _, _, decoder = load_models(checkpoint, CPU, torch.float32)
    assert decoder.memory_frames < 11
    random = np.random.default_rng(frames)
    codes = torch.tensor(
        random.integers(0, checkpoint.codec.codebook_size, (frames + 4, checkpoint.talker.num_code_groups))
    )
    rows = CodecRows(decoder, 3, torch.zeros(()))
    with torch.inference_mode():
        rows.decode(torch.tensor([0]), codes[None, :frames])
        rows.prime(2, codes[:frames])
        heard, primed = rows.decode(torch.tensor([0, 2]), codes[frames:].expand(2, -1, -1))
    assert (heard - primed).abs().max() < 1e-5
    assert heard.abs().max() > 0.05
