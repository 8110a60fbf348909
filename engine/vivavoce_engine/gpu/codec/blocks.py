"""Parts of Code2Wav with packed weights and buffers, made from the parts of the modules."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from vivavoce_engine.gpu.codec.layers import (
    Buffer,
    Buffers,
    Product,
    Snake,
    Unit,
    normed_weight,
    packed,
    wide,
    window_weight,
)
from vivavoce_engine.models.codec_decoder import (
    CausalTransposedConv,
    CodecDecoder,
    LatentUpsampling,
    ResidualUnit,
    SnakeBeta,
    UpsamplingBlock,
    WindowBlock,
)
from vivavoce_engine.models.layers import RMSNorm


@dataclass(frozen=True, slots=True)
class Attention:
    """One block of the window transformer."""

    qkv: Product
    o: Product
    gate_up: Product
    down: Product

    @classmethod
    def of(cls, module: WindowBlock, dtype: torch.dtype) -> "Attention":
        first, second = module.input_layernorm, module.post_attention_layernorm
        gate_up = module.mlp.gate_up_proj.weight
        return cls(
            Product(weight=normed_weight(module.self_attn.qkv_proj.weight, first.weight, dtype), norm_eps=first.eps),
            Product(weight=packed(module.self_attn.o_proj.weight, dtype), scale=wide(module.self_attn_layer_scale)),
            Product(weight=normed_weight(gate_up, second.weight, dtype), norm_eps=second.eps, activation="swiglu"),
            Product(weight=packed(module.mlp.down_proj.weight, dtype), scale=wide(module.mlp_layer_scale)),
        )


@dataclass(frozen=True, slots=True)
class Upsampling:
    """A LatentUpsampling: its products, and the depthwise convolution and norm between them."""

    conv: Product
    depthwise: tuple[Tensor, Tensor, Tensor, Tensor]
    """Weight [taps, channels] and bias of the convolution, then the norm's weight and bias; flat float32."""
    taps: int
    eps: float
    widen: Product
    narrow: Product
    upsampled: Buffer
    normed: Buffer
    middle: Buffer
    out: Buffer

    @classmethod
    def of(
        cls,
        module: LatentUpsampling,
        buffers: Buffers,
        rate: int,
        out_keep: int,
        dtype: torch.dtype,
        norm: RMSNorm | None = None,
    ) -> "Upsampling":
        """Packs a stage. `rate`: steps a frame, after this stage's upsampling; `norm`: of its input."""
        block, conv = module.block, module.block.dwconv
        taps, channels = conv.weight.shape
        return cls(
            conv=transposed(module.conv, dtype, norm=norm),
            depthwise=(wide(conv.weight), wide(conv.bias), wide(block.norm.weight), wide(block.norm.bias)),
            taps=taps,
            eps=block.norm.eps,
            widen=Product(weight=packed(block.pwconv1.weight, dtype), bias=wide(block.pwconv1.bias), activation="gelu"),
            narrow=Product(
                weight=packed(block.pwconv2.weight, dtype), bias=wide(block.pwconv2.bias), scale=wide(block.gamma)
            ),
            upsampled=buffers.add(channels, rate, taps - 1),
            normed=buffers.add(channels, rate),
            middle=buffers.add(block.pwconv1.out_features, rate),
            out=buffers.add(channels, rate, out_keep),
        )


@dataclass(frozen=True, slots=True)
class Block:
    """An UpsamplingBlock. `inputs` are the units' inputs after their first snakes; `out` is the next block's input."""

    upsample: Product
    units: list[Unit]
    inputs: list[Buffer]
    raw: Buffer
    hidden: Buffer
    out: Buffer

    @classmethod
    def of(
        cls,
        module: UpsamplingBlock,
        after: SnakeBeta,
        buffers: Buffers,
        rate: int,
        out_keep: int,
        dtype: torch.dtype,
    ) -> "Block":
        """Packs a block. `rate`: steps a frame before its upsampling; `after`: the snake behind the block."""
        upsample, units = module.upsample, [cast(ResidualUnit, unit) for unit in module.units]
        channels = upsample.channels
        rate *= upsample.stride
        snakes = [*(unit.act1 for unit in units), after]
        return cls(
            upsample=transposed(upsample, dtype, snakes[0], quiet=units[0].conv1.slot.begins // upsample.stride),
            units=[Unit.of(unit, snake, dtype) for unit, snake in zip(units, snakes[1:], strict=True)],
            inputs=[buffers.add(channels, rate, unit.conv1.slot.keep) for unit in units],
            raw=buffers.add(channels, rate, shared="raw"),
            hidden=buffers.add(channels, rate, shared="hidden"),
            out=buffers.add(channels, rate, out_keep),
        )


def transposed(
    module: CausalTransposedConv,
    dtype: torch.dtype,
    snake: SnakeBeta | None = None,
    quiet: int = 0,
    norm: RMSNorm | None = None,
) -> Product:
    """Packs a transposed convolution: one window gives all samples of its stride, side by side. The first `quiet` of a
    row give silence. A `norm` of its input wants windows of one step."""
    weight = window_weight(module.conv)
    assert norm is None or weight.shape[1] == len(norm.weight)
    return Product(
        weight=packed(weight, dtype) if norm is None else normed_weight(weight, norm.weight, dtype),
        taps=module.conv.kernel_size,
        norm_eps=None if norm is None else norm.eps,
        bias=wide(module.conv.bias),
        snake=Snake.of(snake, module.stride) if snake else None,
        quiet=quiet,
    )


def pre_conv(decoder: CodecDecoder, dtype: torch.dtype) -> Product:
    """Packs the first convolution, with the codebooks' projections folded in. Its input is sums of codebook vectors,
    [semantic | acoustic]."""
    conv, book = decoder.pre_conv, decoder.quantizer
    projection = torch.cat([book.semantic_proj.weight, book.acoustic_proj.weight], dim=1).double()
    weight = window_weight(conv).double()
    taps = weight.view(len(weight), conv.kernel_size, -1)
    return Product(weight=packed((taps @ projection).flatten(1), dtype), taps=conv.kernel_size, bias=wide(conv.bias))
