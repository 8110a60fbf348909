"""Code2Wav on a GPU: the modules of both families in Triton kernels, for CUDA graphs of any (batch, frames).

All state of a row is on the device, in tensors indexed by row: the last inputs of each convolution in one arena, the
attention's keys and values in rings, the position. A call copies the rows' histories to the fronts of the activation
buffers. Each kernel then writes where the next one reads. At its end the call copies the buffers' ends back to the
arena.
"""

from typing import cast

import torch
import triton
from torch import Tensor

from vivavoce_engine.gpu.codec.blocks import Attention, Block, Upsampling, pre_conv
from vivavoce_engine.gpu.codec.layers import (
    HISTORY_BLOCK,
    Begun,
    Buffer,
    Buffers,
    Product,
    Shape,
    Snake,
    normed_weight,
    packed,
    wide,
    window_weight,
)
from vivavoce_engine.gpu.codec.step_kernels import (
    depthwise_norm_kernel,
    dequantize_kernel,
    histories_kernel,
    waveform_kernel,
    window_attention_kernel,
)
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.models.codec_decoder import (
    Code2Wav,
    CodecDecoder,
    LatentUpsampling,
    OmniDecoder,
    UpsamplingBlock,
    WindowBlock,
    WindowTransformer,
)
from vivavoce_engine.models.layers import RMSNorm

FRAMES_AT_ONCE = 256
"""Calls with more frames are split, which bounds the activation buffers. This many fill a GPU. With few rows the limit
is half of `rows` times `max_frames`."""

WAVEFORM_ROWS = 64
"""Inputs of the last convolution that one program multiplies."""
DOT_MIN = 16
"""Least rows, columns and depth of a tensor-core product."""


class GpuCodec:
    """Code2Wav with the state of `rows` rows, and of a dummy row, number `rows`, that pads batches.

    A call decodes at most `max_frames` frames of each row. Weights are copied from `decoder` to `dtype`. Give `decoder`
    in float32, so that the parameters of the snakes keep their precision.
    """

    def __init__(
        self,
        decoder: Code2Wav,
        rows: int,
        max_frames: int,
        dtype: torch.dtype | None = None,
        frames_at_once: int = FRAMES_AT_ONCE,
        *,
        launch: Launcher,
    ) -> None:
        like = decoder.final_conv.weight
        self.dtype = dtype or like.dtype
        self._like = torch.empty(0, dtype=self.dtype, device=like.device)
        # The activation buffers are large, and rarely do more than half of the rows decode a longest piece at once.
        self._max_frames, self._at_once = max_frames, max(min(frames_at_once, rows * max_frames // 2), max_frames)
        self._memory_frames = decoder.memory_frames
        self.weight_bytes = sum(weight.numel() for weight in decoder.parameters()) * self.dtype.itemsize
        self.launch = launch
        self.fuse_units = True
        with torch.no_grad():
            self._allocate(decoder, self._build(decoder), rows)

    # ---- what a runner calls ----------------------------------------------------------------------------------

    def reset(self, row: int) -> None:
        """Makes a row fresh for another utterance. Its histories and rings keep their values, which are not read at
        position 0."""
        assert 0 <= row < len(self._position)
        self._position[row].zero_()

    def prime(self, row: int, codes: Tensor) -> None:
        """Moves a fresh row on by codes [T, groups] int64, whose audio is not needed.

        Not for speech whose first samples are no audio: it goes on from no other.
        """
        assert self.lookahead_samples == 0
        self._arena[row].zero_()  # convolutions that skip the first frames read it
        rows = torch.full((1,), row, device=codes.device)
        old = max(0, len(codes) - self._memory_frames)  # the convolutions behind the transformer forget these
        for piece in torch.split(codes[:old], self._max_frames) if old else ():
            self._move(rows, Shape(1, len(piece)), piece[None], None)
        for piece in torch.split(codes[old:], self._max_frames):
            self.decode(rows, piece[None])

    def decode(self, rows: Tensor, codes: Tensor) -> Tensor:
        """codes [B, T, groups] int64 of `rows` [B] int64 → audio [B, T * samples_per_frame] float32 in [-1, 1].

        The first `lookahead_samples` of a row's first frame are no audio.
        A call can be captured: it neither synchronises nor depends on values. Other rows are untouched. Only the dummy
        row may occur in a batch more than once.

        Raises:
            ValueError: a row has more than `max_frames` frames.
        """
        batch, frames = codes.shape[:2]
        if frames > self._max_frames:
            raise ValueError(f"{frames} frames in a call, but at most {self._max_frames} were asked for")
        assert rows.shape == (batch,)
        assert rows.dtype == codes.dtype == torch.int64
        groups = codes.shape[2]
        assert self._semantic < groups <= len(self._codebooks) if self._semantic else groups == len(self._codebooks)
        audio = torch.empty(batch, frames * self.samples_per_frame, dtype=torch.float32, device=codes.device)
        size = self._at_once // frames
        pieces = zip(*(torch.split(x, size) for x in (rows, codes.contiguous(), audio)), strict=True)
        for some_rows, some_codes, some_audio in pieces:
            shape = Shape(len(some_rows), frames, Begun(some_rows, self._position))
            self._move(some_rows, shape, some_codes, some_audio)
        return audio

    # ---- a call -----------------------------------------------------------------------------------------------

    def _move(self, rows: Tensor, shape: Shape, codes: Tensor, audio: Tensor | None) -> None:
        """Decodes frames. Without `audio` it stops after the transformer."""
        self._histories(rows, shape, audio is None, save=False)
        self._latents(rows, shape, codes)
        if audio is not None:
            self._waveform(shape, audio)
        self._histories(rows, shape, audio is None, save=True)

    def _histories(self, rows: Tensor, shape: Shape, latents_only: bool, save: bool) -> None:
        table = self._latent_table if latents_only else self._table
        self.launch(
            histories_kernel,
            (len(table), shape.batch),
            self._arena,
            self._memory,
            rows,
            self._position,
            table,
            shape.frames,
            self._arena.shape[1],
            SAVE=save,
            BLOCK=HISTORY_BLOCK,
        )

    def _latents(self, rows: Tensor, shape: Shape, codes: Tensor) -> None:
        """codes [B, T, groups] → the transformer's output, in the input buffer of the first upsampling."""
        _, size, width = self._codebooks.shape
        self.launch(
            dequantize_kernel,
            (shape.batch * shape.frames,),
            codes,
            self._codebooks,
            self._vectors.memory,
            shape.frames,
            codes.shape[2],
            self._vectors.keep,
            size - 1,
            WIDTH=width,
            SEMANTIC=self._semantic,
            BLOCK=triton.next_power_of_2(width),
            num_warps=4,
        )
        if self._projections is not None:
            convolve, narrow, _ = self._projections
            self._product(shape, convolve, self._vectors, self._latent)
            self._product(shape, narrow, self._latent, self._residual)
        for layer, ring in zip(self._layers, self._rings, strict=True):
            self._product(shape, layer.qkv, self._residual, self._qkv)
            self._attend(rows, shape, ring)
            self._product(shape, layer.o, self._attended, self._residual, self._residual)
            self._product(shape, layer.gate_up, self._residual, self._gated)
            self._product(shape, layer.down, self._gated, self._residual, self._residual)
        if self._projections is not None:
            self._product(shape, self._projections[2], self._residual, self._latent)

    def _attend(self, rows: Tensor, shape: Shape, ring: Tensor) -> None:
        _, length, _, heads, head_dim = ring.shape
        assert length >= self._window - 1 + shape.frames, (
            "new keys must not overwrite those that the window still shows"
        )
        self.launch(
            window_attention_kernel,
            (shape.batch, heads),
            self._qkv.memory,
            ring,
            rows,
            self._position,
            self._inverse_frequency,
            self._attended.memory,
            shape.frames,
            HEADS=heads,
            HEAD_DIM=head_dim,
            WINDOW=self._window,
            RING=length,
            KEYS=max(DOT_MIN, triton.next_power_of_2(length)),
            STEPS=max(DOT_MIN, triton.next_power_of_2(self._max_frames)),
            PRECISION="ieee" if self.dtype == torch.float32 else "tf32",
            num_warps=4,
        )

    def _waveform(self, shape: Shape, audio: Tensor) -> None:
        """The transformer's output → audio [B, T * samples_per_frame]."""
        x = self._latent
        for stage in self._upsamplings:
            self._product(shape, stage.conv, x, stage.upsampled)
            self._depthwise(shape, stage)
            self._product(shape, stage.widen, stage.normed, stage.middle)
            self._product(shape, stage.narrow, stage.middle, stage.out, stage.upsampled)
            x = stage.out
        self._product(shape, self._head, x, self._blocks_in)
        x = self._blocks_in
        for block in self._blocks:
            self._product(shape, block.upsample, x, block.inputs[0], None, block.raw)
            outs = [*block.inputs[1:], block.out]
            for unit, x, out in zip(block.units, block.inputs, outs, strict=True):
                last = out is block.out
                unit(self.launch, shape, x, out, block.raw, block.hidden, last, fuse=self.fuse_units)
            x = block.out
        taps = x.keep + 1
        self.launch(
            waveform_kernel,
            (-(-shape.steps(x) // (WAVEFORM_ROWS - x.keep)), shape.batch),
            x.memory,
            self._final_weight,
            self._final_bias,
            audio,
            shape.steps(x),
            CHANNELS=x.channels,
            TAPS=taps,
            BM=WAVEFORM_ROWS,
            BLOCK=max(DOT_MIN, triton.next_power_of_2(x.channels)),
            COLUMNS=max(DOT_MIN, triton.next_power_of_2(taps)),
            PRECISION="ieee" if self.dtype == torch.float32 else "tf32",
            num_warps=4,
        )

    def _product(
        self,
        shape: Shape,
        product: Product,
        x: Buffer,
        out: Buffer,
        residual: Buffer | None = None,
        raw: Buffer | None = None,
    ) -> None:
        product(self.launch, shape, x, out, residual, raw)

    def _depthwise(self, shape: Shape, stage: Upsampling) -> None:
        x = stage.upsampled
        self.launch(
            depthwise_norm_kernel,
            (shape.rows(x),),
            x.memory,
            *stage.depthwise,
            stage.normed.memory,
            shape.steps(x),
            x.keep,
            stage.eps,
            CHANNELS=x.channels,
            TAPS=stage.taps,
            BLOCK=triton.next_power_of_2(x.channels),
            num_warps=4,
        )

    # ---- set-up -----------------------------------------------------------------------------------------------

    def _build(self, decoder: Code2Wav) -> Buffers:
        """Packs the weights, and lays out the buffers."""
        buffers, dtype = Buffers(self._at_once), self.dtype
        self.lookahead_samples = decoder.lookahead_samples
        norm = self._build_front(decoder, buffers)
        stages = cast(list[LatentUpsampling], list(decoder.upsample))
        blocks = cast(list[UpsamplingBlock], list(decoder.blocks))
        rate, self._upsamplings = 1, list[Upsampling]()
        for index, stage in enumerate(stages):
            rate *= stage.conv.stride
            last = index + 1 == len(stages)
            keep = decoder.head.slot.keep if last else 0
            self._upsamplings.append(Upsampling.of(stage, buffers, rate, keep, dtype, None if index else norm))
        self._head = Product(
            weight=packed(window_weight(decoder.head), dtype),
            taps=decoder.head.kernel_size,
            bias=wide(decoder.head.bias),
            snake=Snake.of(blocks[0].act),
        )
        self._blocks_in = x = buffers.add(len(decoder.head.bias), rate, blocks[0].upsample.conv.slot.keep)
        self._blocks: list[Block] = []
        for index, block in enumerate(blocks):
            rest = blocks[index + 1 :]
            after = rest[0].act if rest else decoder.final_act
            keep = (rest[0].upsample.conv if rest else decoder.final_conv).slot.keep
            self._blocks.append(Block.of(block, after, buffers, x.rate, keep, dtype))
            x = self._blocks[-1].out
        self._final_weight, self._final_bias = wide(decoder.final_conv.weight), wide(decoder.final_conv.bias)
        self.samples_per_frame = x.rate
        return buffers

    def _build_front(self, decoder: Code2Wav, buffers: Buffers) -> RMSNorm | None:
        """Packs what turns codes into latents. Returns the norm that is left to the first upsampling, if any."""
        if isinstance(decoder, OmniDecoder):
            self._codebooks, self._semantic = packed(decoder.embedding.weight, self.dtype), 0
            self._projections: tuple[Product, Product, Product] | None = None
            self._build_transformer(decoder.pre_transformer, buffers)
            self._vectors = self._latent = self._residual
            return decoder.pre_transformer.norm
        assert isinstance(decoder, CodecDecoder)
        self._codebooks = packed(torch.stack(list(decoder.quantizer.codebooks)), self.dtype)
        self._semantic = decoder.quantizer.semantic
        self._vectors = buffers.add(2 * self._codebooks.shape[2], 1, decoder.pre_conv.slot.keep)  # first: see `_move`
        module = decoder.pre_transformer
        self._latent = buffers.add(module.input_proj.in_features, 1)
        self._projections = (
            pre_conv(decoder, self.dtype),
            Product(weight=packed(module.input_proj.weight, self.dtype), bias=wide(module.input_proj.bias)),
            Product(
                weight=normed_weight(module.output_proj.weight, module.norm.weight, self.dtype),
                norm_eps=module.norm.eps,
                bias=wide(module.output_proj.bias),
            ),
        )
        self._build_transformer(module, buffers)
        return None

    def _build_transformer(self, module: WindowTransformer, buffers: Buffers) -> None:
        dtype = self.dtype
        layers = cast(list[WindowBlock], list(module.layers))
        config = layers[0].self_attn
        width = config.heads * config.head_dim
        self._window = module.history + 1
        self._inverse_frequency = wide(module.rope.inverse_frequency).to(self._like.device)
        self._layers = [Attention.of(layer, dtype) for layer in layers]
        self._residual = buffers.add(len(module.norm.weight), 1)
        self._qkv, self._attended = buffers.add(3 * width, 1), buffers.add(width, 1)
        self._gated = buffers.add(layers[0].mlp.down_proj.in_features, 1)

    def _allocate(self, decoder: Code2Wav, buffers: Buffers, rows: int) -> None:
        attention = cast(WindowBlock, cast(WindowTransformer, decoder.pre_transformer).layers[0]).self_attn
        self._memory = buffers.allocate(self._like)
        table, size = buffers.histories()
        latent_table, _ = buffers.histories(1)
        device = self._like.device
        self._table = torch.tensor(table, dtype=torch.int32, device=device)
        self._latent_table = torch.tensor(latent_table, dtype=torch.int32, device=device)
        self._arena = self._like.new_zeros(rows + 1, size)
        length = self._window - 1 + self._max_frames
        self._rings = self._like.new_zeros(len(self._layers), rows + 1, length, 2, attention.heads, attention.head_dim)
        self._position = torch.zeros(rows + 1, dtype=torch.int64, device=device)
