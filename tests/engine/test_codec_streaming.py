"""Code2Wav in pieces of any size, in any rows, is bit for bit the whole sequence decoded at once, and the reference's
waveform.

tests/golden/codec.* holds the reference decoder's output for random codes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from vivavoce_bench.cards.layout import SHAPES, ShapeName
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.models.codec_decoder import Code2Wav, CodecRows
from vivavoce_engine.models.loader import load_models

from tests.engine.conftest import Checkpoints
from tests.support.golden import load_golden, thin

CPU = torch.device("cpu")
GOLDEN = load_golden("codec")
EXACT = 1e-12
"""Windows of other lengths are added up in another order. In float64, what is left beyond that is a fault."""
SAMPLES = 1920
REFERENCE_TOLERANCE = 1e-4
FRAMES = GOLDEN.info["frames"]


class Codec:
    """A decoder, and what it makes of whole sequences in one pass."""

    def __init__(self, decoder: Code2Wav) -> None:
        self.decoder = decoder
        self.once = cache(self._once)

    def rows(self, count: int = 1) -> CodecRows:
        return CodecRows(self.decoder, count, self.decoder.final_conv.weight)

    def _once(self, name: str) -> Tensor:
        return decode(self.rows(), 0, codes_of(name), [])


def codes_of(name: str) -> Tensor:
    return torch.from_numpy(GOLDEN.tensors[name].astype(np.int64))


def decode(rows: CodecRows, row: int, codes: Tensor, cuts: Sequence[int]) -> Tensor:
    """Decodes a row's codes [T, groups] in the pieces between `cuts`."""
    bounds = [0, *cuts, len(codes)]
    index = torch.tensor([row])
    return torch.cat([rows.decode(index, codes[None, start:stop])[0] for start, stop in pairwise(bounds)])


def random_cuts(seed: int, frames: int, largest: int) -> Iterator[int]:
    position = 0
    for raw in np.random.PCG64(seed).random_raw(frames):
        position += 1 + int(raw) % largest
        if position >= frames:
            return
        yield position


def difference(actual: Tensor, expected: Tensor) -> float:
    assert actual.shape == expected.shape
    return (actual - expected).abs().max().item()


def reference_difference(wave: Tensor, name: str) -> float:
    return difference(torch.from_numpy(thin(wave.float().numpy())), torch.from_numpy(GOLDEN.tensors[name]))


@pytest.fixture(scope="module", autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@dataclass(frozen=True)
class Codecs:
    """The decoder of each shape in float32, as it runs, and in float64."""

    single: dict[ShapeName, Codec]
    double: dict[ShapeName, Codec]


@pytest.fixture(scope="module")
def codecs(checkpoints: Checkpoints) -> Codecs:
    def load(dtype: torch.dtype) -> dict[ShapeName, Codec]:
        folders = {shape: read_checkpoint(checkpoints(shape, "custom_voice")) for shape in SHAPES}
        return {shape: Codec(load_models(folder, CPU, dtype)[2]) for shape, folder in folders.items()}

    return Codecs(load(torch.float32), load(torch.float64))


@pytest.mark.parametrize("shape", SHAPES)
def test_one_pass_is_the_references_waveform(shape: ShapeName, codecs: Codecs) -> None:
    wave = codecs.single[shape].once(f"{shape}/codes")
    assert len(wave) == FRAMES * SAMPLES
    assert reference_difference(wave, f"{shape}/wave") < REFERENCE_TOLERANCE


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "cuts",
    [range(1, FRAMES), [1, 2, 4, 8, *range(16, FRAMES, 8)], [FRAMES - 1], [1], list(random_cuts(1, FRAMES, 13))],
    ids=["every_frame", "ramp", "last_alone", "first_alone", "random"],
)
def test_pieces_join_into_one_pass(shape: ShapeName, cuts: Sequence[int], codecs: Codecs) -> None:
    codes = codes_of(f"{shape}/codes")
    for codec in (codecs.single[shape], codecs.double[shape]):
        wave = decode(codec.rows(), 0, codes, cuts)
        assert torch.equal(wave, codec.once(f"{shape}/codes"))
        assert reference_difference(wave, f"{shape}/wave") < REFERENCE_TOLERANCE


@given(cuts=st.sets(st.integers(1, 23), max_size=12))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_any_cuts_join_into_one_pass(cuts: set[int], codecs: Codecs) -> None:
    """24 frames: three times this decoder's attention window."""
    codec = codecs.single["tiny"]
    with torch.inference_mode():
        wave = decode(codec.rows(), 0, codes_of("tiny/codes")[:24], sorted(cuts))
    assert torch.equal(wave, codec.once("tiny/codes")[: 24 * SAMPLES])


@pytest.mark.parametrize("window", [1, 7, 9, 72])
def test_the_attention_window_is_the_configs(window: int, checkpoints: Checkpoints, codecs: Codecs) -> None:
    """The stored waveform is that of a window of 8 frames, the frame itself included, and tells it from others."""
    checkpoint = read_checkpoint(checkpoints("tiny", "custom_voice"))
    assert checkpoint.codec.sliding_window == 8
    other = replace(checkpoint, codec=replace(checkpoint.codec, sliding_window=window))
    codec = Codec(load_models(other, CPU, torch.float64)[2])
    wave = decode(codec.rows(), 0, codes_of("tiny/codes"), [5, 30])
    assert reference_difference(wave, "tiny/wave") > 10 * REFERENCE_TOLERANCE
    first = min(window, 8) * SAMPLES  # until then both see all there is
    assert difference(wave[:first], codecs.double["tiny"].once("tiny/codes")[:first]) < EXACT


def test_beyond_the_references_chunks_pieces_still_join_into_one_pass(codecs: Codecs) -> None:
    """The reference decodes more than 300 frames in chunks with 25 frames of context, which is not the same."""
    name = "tiny_noproj/chunked_codes"
    codec, codes = codecs.double["tiny_noproj"], codes_of(name)
    whole = codec.once(name)
    assert len(codes) == GOLDEN.info["chunked_frames"]
    wave = decode(codec.rows(), 0, codes, list(random_cuts(2, len(codes), 40)))
    assert torch.equal(wave, whole)
    assert reference_difference(whole[300 * SAMPLES :], "tiny_noproj/chunked_wave") > 10 * REFERENCE_TOLERANCE
    chunk = decode(codec.rows(), 0, codes[275:], [])[25 * SAMPLES :]
    assert reference_difference(chunk, "tiny_noproj/chunked_wave") < REFERENCE_TOLERANCE


# ---- rows


def test_rows_at_different_places_share_calls(codecs: Codecs) -> None:
    """Three utterances in five rows, two of them a few frames ahead, in batches that change."""
    codec, codes = codecs.single["tiny"], codes_of("tiny/codes")
    spoken = {4: codes[:40], 0: codes[20:60], 2: codes[40:80]}
    alone = {row: decode(codec.rows(), 0, part, []) for row, part in spoken.items()}
    rows, position, pieces = (
        codec.rows(5),
        dict.fromkeys(spoken, 0),
        {row: [torch.empty(0)] for row in spoken},
    )
    batches = [((4,), 3), ((4, 0), 2), ((0, 4, 2), 7), ((2, 0), 1), ((2,), 9), ((4, 2, 0), 8), ((0,), 5)]
    for batch, frames in batches:
        new = torch.stack([spoken[row][position[row] : position[row] + frames] for row in batch])
        wave = rows.decode(torch.tensor(batch), new)
        for number, row in enumerate(batch):
            pieces[row].append(wave[number])
            position[row] += frames
    for row in spoken:
        joined = torch.cat(pieces[row])
        assert len(joined) == position[row] * SAMPLES > 15 * SAMPLES
        assert torch.equal(joined, alone[row][: len(joined)]), row


def test_rows_outside_a_call_keep_their_state_bit_for_bit(codecs: Codecs) -> None:
    codec, codes = codecs.double["tiny"], codes_of("tiny/codes")
    rows = codec.rows(4)
    for row in range(4):
        decode(rows, row, codes[row * 5 : row * 5 + 9], [4])
    flat, position = rows._flat.clone(), rows._position.clone()
    rows.decode(torch.tensor([2, 0]), codes[None, 30:33].expand(2, -1, -1))
    rows.reset(torch.tensor([0]))
    for row in (1, 3):
        assert torch.equal(rows._flat[row], flat[row])
        assert rows._position[row] == position[row] == 9
    assert not torch.equal(rows._flat[2], flat[2])
    assert rows._position.tolist() == [0, 9, 12, 9]


def test_a_reset_row_is_as_fresh_as_a_new_one(codecs: Codecs) -> None:
    codec, codes = codecs.double["tiny"], codes_of("tiny/codes")
    rows = codec.rows(2)
    decode(rows, 1, codes[50:80], [])
    stale = decode(rows, 1, codes[:6], [])
    rows.reset(torch.tensor([1]))
    fresh = decode(rows, 1, codes[:6], [])
    assert torch.equal(fresh, decode(codec.rows(), 0, codes[:6], []))
    assert difference(fresh, stale) > 1e-2


def test_audio_stays_in_range_and_no_later_frame_changes_it(codecs: Codecs) -> None:
    codec, codes = codecs.double["tiny"], codes_of("tiny/codes").clone()
    before = codec.once("tiny/codes")
    assert before.abs().max().item() <= 1
    codes[40:] = 3
    after = decode(codec.rows(), 0, codes, [])
    assert torch.equal(after[: 40 * SAMPLES], before[: 40 * SAMPLES])
    assert difference(after[40 * SAMPLES :], before[40 * SAMPLES :]) > 1e-2
