"""Code2Wav of the CPU's kernels: the modules' waveform, with the same bits for any pieces, rows and threads."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from vivavoce_bench.cards.layout import SHAPES
from vivavoce_bench.cards.random_codec import RELEASED_CODEC, random_decoder
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.checkpoint.networks import CodecDecoderConfig
from vivavoce_engine.cpu import library as c
from vivavoce_engine.cpu.decoding import Decoding
from vivavoce_engine.cpu.packing import Packer, address, aligned, pack_codec
from vivavoce_engine.models.codec_decoder import CodecDecoder, CodecRows
from vivavoce_engine.models.loader import load_models
from vivavoce_voice import CHECKPOINT

from tests.engine.conftest import Checkpoints
from tests.support.cpu_runners import skip_without_kernels

TOLERANCE = 1e-5
"""Largest difference of samples in [-1, 1] that the order of float32 sums may make."""
RANDOM_TOLERANCE = 5e-4
"""The same for random weights, which amplify every rounding: PyTorch's own float32 is off by 4e-5 to 9e-5."""
FRAMES = 45
"""They cross the place where the window moves in its cache twice, and the end of a tiny window five times."""
PIECES = (1, 2, 3, 4, 7, 8, 20)
CPU = torch.device("cpu")
MIDDLE_CODEC = replace(
    RELEASED_CODEC,
    transformer=replace(RELEASED_CODEC.transformer, hidden_size=40, num_hidden_layers=2),
    sliding_window=19,
    latent_dim=72,
    codebook_dim=48,
    decoder_dim=208,
    upsample_rates=(5, 4, 4, 6),
    upsampling_ratios=(3, 2),
    samples_per_frame=2880,
)
"""Widths that are no multiples of a vector, down to 13 channels, and a window longer than a pass."""


@dataclass
class Twin:
    """A decoder as kernels, codes [FRAMES, groups], and what the module makes of them."""

    codec: c.Codec
    memory: Packer
    codes: NDArray[np.int32]
    expected: NDArray[np.float32]

    def decoding(self, rows: int = 1) -> Decoding:
        return Decoding(c.load_library(), self.codec, rows)

    @cached_property
    def whole(self) -> NDArray[np.float32]:
        return self.decoding().decode(0, self.codes, None)


def twin_of(decoder: CodecDecoder, config: CodecDecoderConfig, frames: int = FRAMES) -> Twin:
    random = np.random.default_rng(3)
    codes = random.integers(0, config.codebook_size, (frames, config.num_quantizers), np.int32)
    with torch.inference_mode():
        rows = CodecRows(decoder, 1, decoder.final_conv.weight)
        expected = rows.decode(torch.tensor([0]), torch.from_numpy(codes.astype(np.int64))[None])[0].numpy()
        packer = Packer("float32")
        return Twin(pack_codec(packer, config, decoder), packer, codes, expected)


def loaded(folder: Path) -> Twin:
    checkpoint = read_checkpoint(folder)
    decoder = load_models(checkpoint, CPU, torch.float32)[2]
    assert isinstance(decoder, CodecDecoder)
    return twin_of(decoder, checkpoint.codec)


@pytest.fixture(scope="module")
def twins(checkpoints: Checkpoints) -> dict[str, Twin]:
    skip_without_kernels()
    found: dict[str, Twin] = {shape: loaded(checkpoints(shape, "custom_voice")) for shape in SHAPES}
    with torch.inference_mode():
        middle = twin_of(random_decoder(MIDDLE_CODEC, CPU), MIDDLE_CODEC)
    return {**found, "middle": middle, "voice": loaded(CHECKPOINT)}


@pytest.fixture
def pools() -> Iterator[Callable[[int], int]]:
    """Threads → a pool of them."""
    skip_without_kernels()
    functions, made = c.load_library().functions, []

    def pool(threads: int) -> int:
        made.append(functions.vivavoce_pool(threads))
        return int(made[-1])

    yield pool
    for each in made:
        functions.vivavoce_pool_end(each)


def in_pieces(decoding: Decoding, row: int, codes: NDArray[np.int32], cuts: Sequence[int]) -> NDArray[np.float32]:
    """Decodes a row's codes in the pieces between `cuts`."""
    pieces = [codes[start:stop] for start, stop in pairwise([0, *cuts, len(codes)])]
    return np.concatenate([decoding.decode(row, piece, None) for piece in pieces])


NAMES = (*SHAPES, "middle", "voice")


@pytest.mark.parametrize("name", NAMES)
def test_the_waveform_is_the_modules(twins: dict[str, Twin], name: str) -> None:
    twin = twins[name]
    assert np.abs(twin.expected).max() > 0.1
    assert np.abs(twin.whole - twin.expected).max() < (RANDOM_TOLERANCE if name == "middle" else TOLERANCE)


@pytest.mark.parametrize("size", PIECES)
@pytest.mark.parametrize("name", NAMES)
def test_pieces_join_into_the_whole_bit_for_bit(twins: dict[str, Twin], name: str, size: int) -> None:
    twin = twins[name]
    wave = in_pieces(twin.decoding(), 0, twin.codes, range(size, FRAMES, size))
    assert np.array_equal(wave, twin.whole)


@pytest.mark.parametrize("cuts", [(1, 2, 4, 8, 16, 24, 32), (1, 3, 7, 15, 16, 24), (15, 17), (44,)])
def test_mixed_pieces_join_into_the_whole_bit_for_bit(twins: dict[str, Twin], cuts: Sequence[int]) -> None:
    twin = twins["voice"]
    assert np.array_equal(in_pieces(twin.decoding(), 0, twin.codes, cuts), twin.whole)


@pytest.mark.parametrize("name", ["tiny", "middle", "voice"])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(twins: dict[str, Twin], pools: Callable[[int], int], name: str, threads: int) -> None:
    twin, pool = twins[name], pools(threads)
    assert np.array_equal(twin.decoding().decode(0, twin.codes, pool), twin.whole)
    alone = twin.decoding().decode(0, twin.codes[:1], pool)
    assert np.array_equal(alone, twin.whole[: len(alone)])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", [1, 5, 16, 31, 40])
def test_a_primed_row_speaks_on_as_one_that_was_decoded(twins: dict[str, Twin], name: str, before: int) -> None:
    """Frames before those that the convolutions remember move the latents alone."""
    twin, decoding = twins[name], twins[name].decoding(2)
    decoding.begin(1, twin.codes[:before], None)
    wave = decoding.decode(1, twin.codes[before:], None)
    assert np.array_equal(wave, twin.whole[before * twin.codec.samples_per_frame :])


def test_rows_do_not_touch_each_other_and_begin_new(twins: dict[str, Twin]) -> None:
    twin = twins["tiny"]
    decoding = twin.decoding(3)
    nothing = twin.codes[:0]
    first = in_pieces(decoding, 0, twin.codes[:20], [3])
    other = decoding.decode(2, twin.codes[5:25], None)
    rest = decoding.decode(0, twin.codes[20:], None)
    assert np.array_equal(np.concatenate([first, rest]), twin.whole)
    decoding.begin(2, nothing, None)
    assert np.array_equal(decoding.decode(2, twin.codes[5:25], None), other)


def test_a_code_outside_its_table_counts_as_the_nearest(twins: dict[str, Twin]) -> None:
    """The end's id is such a code, in a frame that nobody hears."""
    twin = twins["tiny"]
    size = c.Table.from_address(twin.codec.codebooks).rows
    wild, nearest = twin.codes.copy(), twin.codes.copy()
    wild[3, 0], wild[4, 1], wild[5, -1] = size, -1, np.iinfo(np.int32).max
    nearest[3, 0], nearest[4, 1], nearest[5, -1] = size - 1, 0, size - 1
    assert np.array_equal(twin.decoding().decode(0, wild, None), twin.decoding().decode(0, nearest, None))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e-42, 3e38])
def test_odd_weights_harm_nothing_but_the_sound(twins: dict[str, Twin], value: float) -> None:
    """A checkpoint can hold any bits."""
    twin = twins["tiny"]
    changed = c.Codec.from_buffer_copy(twin.codec)
    frequencies, magnitudes = (np.full(twin.codec.channels, value, np.float32) for _ in range(2))
    changed.snake = c.Snake(address(frequencies), address(magnitudes))
    wave = Decoding(c.load_library(), changed, 1).decode(0, twin.codes, None)
    assert len(wave) == len(twin.expected)


@pytest.mark.parametrize(
    ("frames", "groups", "position", "reason"),
    [
        (0, 8, 0, "nothing to do"),
        (2, 1, 0, "shape"),
        (2, 33, 0, "shape"),
        (2, 8, -1, "position"),
        (2, 8, 2**31, "position"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(
    twins: dict[str, Twin], frames: int, groups: int, position: int, reason: str
) -> None:
    library, codec = c.load_library(), twins["voice"].codec
    functions = library.functions
    codes, audio = np.zeros((2, 33), np.int32), np.full(2 * codec.samples_per_frame, 7, np.float32)
    state = aligned((functions.vivavoce_code2wav_state(address(codec)),))
    scratch = aligned((functions.vivavoce_code2wav_scratch(address(codec), 2),))
    places = (address(codes), address(audio), address(scratch))
    result = functions.vivavoce_code2wav(address(codec), None, address(state), position, frames, groups, *places)
    with pytest.raises(c.Refused, match=reason):
        library.check(result)
    assert not state.any()
    assert (audio == 7).all()


def test_layers_that_do_not_follow_each_other_are_refused(twins: dict[str, Twin]) -> None:
    changed = c.Codec.from_buffer_copy(twins["voice"].codec)
    changed.head.matrix.outputs += 32
    with pytest.raises(c.Refused, match="shape"):
        c.load_library().check(c.load_library().functions.vivavoce_code2wav_state(address(changed)))


def test_scratch_does_not_grow_with_a_piece(twins: dict[str, Twin]) -> None:
    scratch, codec = c.load_library().functions.vivavoce_code2wav_scratch, address(twins["voice"].codec)
    assert scratch(codec, 1) < scratch(codec, 8) == scratch(codec, 1000)


@pytest.mark.long
def test_the_released_shape(pools: Callable[[int], int]) -> None:
    with torch.inference_mode():
        twin = twin_of(random_decoder(RELEASED_CODEC, CPU), RELEASED_CODEC, frames=20)
    whole = twin.decoding().decode(0, twin.codes, pools(2))
    assert np.abs(whole - twin.expected).max() < RANDOM_TOLERANCE
    assert np.array_equal(in_pieces(twin.decoding(), 0, twin.codes, [1, 4, 12, 19]), whole)
