"""Code2Wav's Triton kernels against the PyTorch module, for any pieces, rows and batches.

On a machine without a GPU Triton's interpreter runs the kernels; it knows no bfloat16, so float16 stands for it there.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from vivavoce_bench.cards.random_codec import random_decoder
from vivavoce_engine.checkpoint.networks import CodecDecoderConfig, RopeConfig, TransformerConfig
from vivavoce_engine.models.codec_decoder import CodecDecoder, CodecRows

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from vivavoce_engine.gpu.card import Card  # noqa: E402
from vivavoce_engine.gpu.codec import layers as codec_layers  # noqa: E402
from vivavoce_engine.gpu.codec.decoder import GpuCodec  # noqa: E402
from vivavoce_engine.gpu.codec.kernels import _snake  # noqa: E402
from vivavoce_engine.gpu.codec.layers import Buffer, Buffers, Product, Shape  # noqa: E402
from vivavoce_engine.gpu.codec.step_kernels import (  # noqa: E402
    inverse_rms_kernel,
    waveform_kernel,
    window_attention_kernel,
)
from vivavoce_engine.gpu.codec.tiles import Tiles  # noqa: E402
from vivavoce_engine.gpu.launch import Launcher  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter

LAUNCH = Launcher(replace(Card.of(DEVICE), dependent_launch=False))
needs_card = pytest.mark.skipif(DEVICE.type != "cuda", reason="the interpreter knows no instructions of a card")
TOLERANCE = 1e-4
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
WINDOW, CODES, GROUPS, MAX_FRAMES = 4, 32, 3, 3
WIDE = CodecDecoderConfig(  # of 192 and 96 channels, which are no powers of 2
    transformer=TransformerConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=1e4, head_dim=16),
    ),
    sliding_window=WINDOW,
    latent_dim=32,
    codebook_dim=32,
    codebook_size=CODES,
    num_quantizers=GROUPS,
    num_semantic_quantizers=1,
    decoder_dim=192,
    upsample_rates=(2,),
    upsampling_ratios=(2, 2),
    sample_rate=24000,
    samples_per_frame=8,
)


@pytest.fixture(scope="module", autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    return random_decoder(WIDE, DEVICE)


def codes_of(seed: int, batch: int, frames: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(CODES, (batch, frames, GROUPS), generator=generator).to(DEVICE)


def index(*rows: int) -> Tensor:
    return torch.tensor(rows, device=DEVICE)


def in_pieces(codec: GpuCodec, rows: Tensor, codes: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return torch.cat([codec.decode(rows, piece) for piece in torch.split(codes, list(sizes), dim=1)], dim=1)


def whole(decoder: CodecDecoder, codes: Tensor) -> Tensor:
    rows = CodecRows(decoder, len(codes), decoder.final_conv.weight)
    return rows.decode(torch.arange(len(codes), device=DEVICE), codes)


def difference(actual: Tensor, expected: Tensor) -> float:
    assert actual.shape == expected.shape
    return (actual - expected).abs().max().item()


@pytest.mark.parametrize(("fuse", "described"), [(True, True), (True, False), (False, True)])
def test_pieces_of_any_size_are_the_module_s_audio(
    decoder: CodecDecoder, fuse: bool, described: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the window and once around the ring; with the residual units in one kernel, too, and with descriptors."""
    if fuse and DEVICE.type == "cuda":
        pytest.skip("float32 units in one kernel do not fit the registers")
    if described and DEVICE.type == "cuda":
        pytest.skip("a card's tiles are taller than the steps of this decoder")
    height, made = (8 if described else 32), list[bool]()
    if fuse:
        monkeypatch.setattr(codec_layers, "choose_unit", lambda *_: Tiles(height, 64, 32, 16, 4, 2))
    if described:
        monkeypatch.setattr(codec_layers, "choose", lambda *_: Tiles(height, 32, 0, 16, 4, 2))
        usual = codec_layers.described

        def noted(card: Card, shape: Shape, x: Buffer, weight: Tensor, tiles: Tiles) -> codec_layers.Descriptors:
            made.append(usual(card, shape, x, weight, tiles)[0] is not None)
            return usual(card, shape, x, weight, tiles)

        monkeypatch.setattr(codec_layers, "described", noted)
    codes = codes_of(1, 2, 9)
    codec = GpuCodec(decoder, 3, MAX_FRAMES, launch=Launcher(replace(LAUNCH.card, descriptors=described)))
    audio = in_pieces(codec, index(2, 0), codes, (1, 3, 2, 1, 2))
    assert audio.dtype == torch.float32
    expected = whole(decoder, codes)
    assert 0.05 < expected.square().mean().sqrt() < 0.7
    assert difference(audio, expected) < TOLERANCE
    assert set(made) == ({True, False} if described else set())


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_waveform_is_the_convolution_of_its_inputs(dtype: torch.dtype) -> None:
    """Over several tiles and rows, with a last tile that is not full, and clamped. Of a weight hardly any is lost."""
    batch, steps, channels, taps = 2, 40, 24, 7
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(batch, taps - 1 + steps, channels, generator=generator).to(DEVICE, dtype)
    weight = (0.05 * torch.randn(taps, channels, generator=generator)).to(DEVICE)
    bias, out = torch.full((1,), 0.125, device=DEVICE), torch.empty(batch, steps, device=DEVICE)
    LAUNCH(
        waveform_kernel,
        (-(-steps // 10), batch),
        x,
        weight,
        bias,
        out,
        steps,
        CHANNELS=channels,
        TAPS=taps,
        BM=16,
        BLOCK=32,
        COLUMNS=16,
        PRECISION="ieee",
        num_warps=4,
    )
    sums = torch.nn.functional.conv1d(x.double().transpose(1, 2), weight.double().T[None])[:, 0] + 0.125
    assert (sums.abs() > 1).any()
    # Two bfloat16 hold 16 bits of a weight; one alone would be off by 1e-3.
    assert difference(out.double(), sums.clamp(-1, 1)) < (2e-6 if dtype == torch.float32 else 2e-5)


def test_a_row_s_norm_is_that_of_its_own_values() -> None:
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(8)).to(DEVICE, HALF)
    out = torch.empty(5, device=DEVICE)
    LAUNCH(inverse_rms_kernel, (5,), x, out, 1e-5, CHANNELS=48, BLOCK=64, num_warps=1)
    assert torch.allclose(out, (x.float().square().mean(1) + 1e-5).rsqrt(), rtol=1e-6)


@pytest.mark.parametrize("half", [16, 32])
def test_gates_meet_what_they_multiply(half: int) -> None:
    """In blocks that divide the columns, and in blocks that do not."""
    buffers = Buffers(5)
    x, out = buffers.add(32, 1), buffers.add(48, 1)
    buffers.allocate(torch.empty(0, device=DEVICE))
    generator = torch.Generator().manual_seed(9)
    x.memory[: 5 * 32] = torch.randn(5 * 32, generator=generator)
    weight = (torch.randn(96, 32, generator=generator) / 6).to(DEVICE)
    product = Product(weight=weight, norm_eps=1e-5, activation="swiglu")
    product(LAUNCH, Shape(5, 1), x, out, tiles=Tiles(16, half, half, 16, 4, 2))
    rows = x.memory[: 5 * 32].view(5, 32)
    gate, up = (rows * (rows.square().mean(1, keepdim=True) + 1e-5).rsqrt() @ weight.T).chunk(2, dim=1)
    assert difference(out.memory[: 5 * 48].view(5, 48), torch.nn.functional.silu(gate) * up) < TOLERANCE


def attended(qkv: Tensor, sizes: tuple[int, ...], rows: list[int]) -> Tensor:
    """The window attention of qkv [B, T, 3, heads, head_dim] in calls of `sizes` frames → [B, T, heads, head_dim]."""
    batch, _, _, heads, head_dim = qkv.shape
    length = WINDOW - 1 + MAX_FRAMES
    ring = torch.zeros(max(rows) + 1, length, 2, heads, head_dim, device=DEVICE)
    position = torch.zeros(len(ring), dtype=torch.int64, device=DEVICE)
    frequency = torch.rand(head_dim // 2, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    out = []
    for piece in torch.split(qkv, list(sizes), dim=1):
        out.append(torch.empty(batch, piece.shape[1], heads, head_dim, device=DEVICE))
        LAUNCH(
            window_attention_kernel,
            (batch, heads),
            piece.contiguous(),
            ring,
            index(*rows),
            position,
            frequency,
            out[-1],
            piece.shape[1],
            HEADS=heads,
            HEAD_DIM=head_dim,
            WINDOW=WINDOW,
            RING=length,
            KEYS=max(16, triton.next_power_of_2(length)),
            STEPS=16,
            PRECISION="ieee",
            num_warps=4,
        )
        position[rows] += piece.shape[1]
    return torch.cat(out, dim=1)


def test_a_frame_attends_bit_for_bit_alike_in_any_call() -> None:
    """Past the window and around the ring, in pieces of any size, in any row, alone and beside others."""
    qkv = torch.randn(3, 11, 3, 2, 16, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    frame_by_frame = attended(qkv, (1,) * 11, [0, 1, 2])
    assert frame_by_frame.abs().max() > 0.5
    for sizes in ((3, 3, 3, 2), (2, 1, 3, 3, 1, 1), (1, 2, 3, 3, 2)):
        assert torch.equal(attended(qkv, sizes, [2, 0, 3]), frame_by_frame)
        assert torch.equal(attended(qkv[1:2], sizes, [2]), frame_by_frame[1:2])


@pytest.mark.skipif(DEVICE.type != "cuda", reason="the interpreter knows no bfloat16, and multiplies by NumPy")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_frame_has_the_same_samples_in_any_call(decoder: CodecDecoder, dtype: torch.dtype) -> None:
    """Bit for bit."""
    codes = codes_of(5, 8, 12)
    codec = GpuCodec(decoder, 8, MAX_FRAMES, dtype, launch=LAUNCH)
    frame_by_frame = [in_pieces(codec, index(row), codes[row : row + 1], (1,) * 12)[0] for row in range(8)]
    for batch in (1, 2, 3, 8):
        for sizes in ((3, 3, 3, 3), (1, 2, 3, 3, 2, 1)):
            for row in range(8):
                codec.reset(row)
            audio = in_pieces(codec, torch.arange(batch, device=DEVICE), codes[:batch], sizes)
            assert torch.equal(audio, torch.stack(frame_by_frame[:batch]))


def test_rows_keep_their_own_state(decoder: CodecDecoder) -> None:
    """Rows join, rest, and are used again; a row does the same bits whoever else is in its batch of that size."""
    codes = codes_of(2, 3, 6)
    codec = GpuCodec(decoder, 3, MAX_FRAMES, launch=LAUNCH)
    first = codec.decode(index(1, 0), codes[:2, :3])
    other = codec.decode(index(2, 0), torch.stack([codes[2, :2], codes[1, 3:5]]))
    codec.reset(2)
    second = codec.decode(index(2, 1), torch.stack([codes[2, :3], codes[0, 3:]]))
    expected = whole(decoder, codes)
    assert difference(torch.cat([first[0], second[1]]), expected[0]) < TOLERANCE
    assert difference(torch.cat([first[1], other[1]]), expected[1, : len(first[1]) + len(other[1])]) < TOLERANCE
    assert difference(second[0], expected[2, : len(second[0])]) < TOLERANCE
    assert difference(other[0], expected[2, : len(other[0])]) < TOLERANCE


def test_padding_rows_disturb_nobody(decoder: CodecDecoder) -> None:
    codes = codes_of(3, 1, 2)
    alone, padded = GpuCodec(decoder, 2, MAX_FRAMES, launch=LAUNCH), GpuCodec(decoder, 2, MAX_FRAMES, launch=LAUNCH)
    junk = torch.full((2, 2, GROUPS), 1 << 40, device=DEVICE)
    expected = alone.decode(index(1), codes)
    audio = padded.decode(index(1, 2, 2), torch.cat([codes, junk]))
    assert difference(audio[:1], expected) < TOLERANCE
    assert difference(padded.decode(index(1), codes), alone.decode(index(1), codes)) < TOLERANCE
    fresh = GpuCodec(decoder, 2, MAX_FRAMES, launch=LAUNCH).decode(index(0), codes)
    assert torch.equal(padded.decode(index(0), codes), fresh)


@pytest.mark.parametrize("frames", [1, 19])
def test_a_primed_row_goes_on_as_if_it_had_spoken(decoder: CodecDecoder, frames: int) -> None:
    """Fewer frames than the convolutions remember, and more."""
    assert 1 < decoder.memory_frames < 19
    codes = codes_of(4, 1, frames + 2)
    codec = GpuCodec(decoder, 2, MAX_FRAMES, launch=LAUNCH)
    codec.prime(1, codes[0, :frames])
    audio = codec.decode(index(1), codes[:, frames:])
    assert difference(audio, whole(decoder, codes)[:, -audio.shape[1] :]) < TOLERANCE


def test_a_large_call_in_pieces_of_rows(decoder: CodecDecoder) -> None:
    codes = codes_of(5, 3, 2)
    codec = GpuCodec(decoder, 3, MAX_FRAMES, frames_at_once=4, launch=LAUNCH)
    assert difference(codec.decode(index(0, 1, 2), codes), whole(decoder, codes)) < TOLERANCE


def test_half_precision_is_no_worse_than_the_module_s(decoder: CodecDecoder) -> None:
    codes = codes_of(6, 2, 3)
    expected = whole(decoder, codes)
    audio = GpuCodec(decoder, 2, MAX_FRAMES, dtype=HALF, launch=LAUNCH).decode(index(0, 1), codes)
    module = whole(random_decoder(WIDE, DEVICE).to(HALF), codes).float()
    error, usual = (x.sub(expected).norm() / expected.norm() for x in (audio, module))
    assert 0 < error < 1.1 * usual < 0.1


def test_more_frames_than_asked_for(decoder: CodecDecoder) -> None:
    with pytest.raises(ValueError, match="4 frames in a call, but at most 3"):
        GpuCodec(decoder, 1, MAX_FRAMES, launch=LAUNCH).decode(index(0), codes_of(7, 1, 4))


@triton.jit  # type: ignore[untyped-decorator]
def snake_kernel(x, frequency, out, SIZE: tl.constexpr, FAST: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    i = tl.arange(0, SIZE)
    tl.store(out + i, _snake(tl.load(x + i), 2.0 * tl.load(frequency + i), 0.5, FAST))


@pytest.mark.parametrize("fast", [False, pytest.param(True, marks=needs_card)])
@pytest.mark.parametrize("frequency", [1.0, 30.0, 3000.0])
def test_snake_of_large_angles(frequency: float, fast: bool) -> None:
    """The angle is rounded to float32, as in the module; its sine is right all the same. The card's cosine is off by
    what the angle's own rounding is off."""
    x = torch.linspace(-8, 8, 4096, device=DEVICE)
    rate = torch.full_like(x, frequency)
    out = torch.empty_like(x)
    snake_kernel[(1,)](x, rate, out, SIZE=4096, FAST=fast)
    expected = x.double() + (x * rate).double().sin().square()
    assert (out.double() - expected).abs().max() < (2e-6 + 2 * frequency * 8 * 2**-23 if fast else 2e-6)
    assert math.isclose((out - x).max().item(), 1, abs_tol=1e-3)
