"""Weights in the form that the CPU's kernels read: PyTorch's modules go in, structures of cpu/library.py come out.

A matrix [inputs, outputs] is cut into blocks of 32 outputs, so that a product reads it from front to back. Weights that
are bfloat16 in the checkpoint stay so: two bytes instead of four are read, and no bit is lost. A module's weights are
dropped once they are packed, so that a model is not held twice.
"""

import ctypes
import hashlib
import math
import mmap
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.checkpoint.networks import CodecDecoderConfig, TransformerConfig
from vivavoce_engine.cpu import library as c
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.codec_decoder import (
    CausalConv,
    Code2Wav,
    CodecDecoder,
    LatentUpsampling,
    ResidualUnit,
    SnakeBeta,
    UpsamplingBlock,
    WindowTransformer,
)
from vivavoce_engine.models.layers import Transformer
from vivavoce_engine.models.talker import CONTROL_CODES, Talker

WeightsDtype = Literal["float32", "bfloat16", "int8"]
"""float32 changes no weight, and sums are float32. bfloat16 rounds weights that are not bfloat16: those of Code2Wav's
products to 11 bits with a scale for 64 of them, which is nearer to them, and the inputs to 16; others to bfloat16. int8
rounds the products of talker and code predictor to 8 bits, all of Code2Wav's to 11, the inputs of both to 16, and
tables to bfloat16."""
ALIGNMENT_BYTES = 64
"""Bytes of a cache line, and of the widest vector."""
ARENA_BYTES, ARENA_LEAST = 64 << 20, 256 << 10
"""Memory that arrays of ARENA_LEAST bytes and more share. A larger array has memory of its own."""
LARGE_PAGE_BYTES = 2 << 20
WHOLE_BLOCK = 64
"""Most inputs that share a scale of whole numbers. WHOLE_BLOCK of C++."""
WHOLE_MAX = {c.INT8: 127, c.INT11: 1023}
"""Kind → the largest of its weights."""
Structure = TypeVar("Structure", bound=ctypes.Structure)


def aligned(shape: Sequence[int], dtype: type[np.generic] = np.float32) -> NDArray[Any]:
    """Zeros at the beginning of a cache line. Memory is taken when it is first written."""
    item = np.dtype(dtype).itemsize
    size = int(np.prod(shape, dtype=np.int64)) * item
    raw = np.zeros(size + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size].view(dtype).reshape(shape)


def in_large_pages(size: int) -> NDArray[np.uint8]:
    """Zeros [size] that begin at a page of 2 MB, where the system has such pages. Memory is taken when it is written.

    Raises:
        MemoryError: the system does not give that much.
    """
    memory = private_memory(size + LARGE_PAGE_BYTES)
    with suppress(AttributeError, OSError):  # other systems, and kernels without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(memory, np.uint8, 1).ctypes.data % LARGE_PAGE_BYTES
    return np.frombuffer(memory, np.uint8, size, start)


def private_memory(size: int) -> mmap.mmap:
    """Memory of this process alone. Raises MemoryError."""
    try:
        return mmap.mmap(-1, size, access=mmap.ACCESS_COPY)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes of memory: {error}") from error


def sparse(shape: Sequence[int]) -> NDArray[np.float32]:
    """Zeros float32 at the beginning of a cache line. Only pages that are written take memory.

    For its own arrays numpy asks for pages of 2 MB. In a cache with a block for each row and layer, the first
    position of a row would take them all: 112 MB in a released model. The pages before and behind it cannot be touched:
    what reads or writes beyond it ends the process there, instead of changing what another array holds.

    Raises:
        MemoryError: the system does not give that much.
    """
    count = math.prod(shape)
    size = count * np.dtype(np.float32).itemsize
    room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = private_memory(mmap.PAGESIZE + room + mmap.PAGESIZE)
    with suppress(AttributeError, OSError):  # other systems, and kernels without large pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    for guard in (0, mmap.PAGESIZE + room):
        close_page(memory, guard)
    start = mmap.PAGESIZE + (room - size) // ALIGNMENT_BYTES * ALIGNMENT_BYTES  # the end is at the page behind
    return np.frombuffer(memory, np.float32, count, start).reshape(shape)


def close_page(memory: mmap.mmap, start: int) -> None:
    """Lets nobody read or write the page of `memory` that begins at `start`. Does nothing on Windows.

    Raises:
        MemoryError: the system keeps no account of one more piece of memory.
    """
    if os.name != "posix":
        return
    begin = np.frombuffer(memory, np.uint8, 1, start).ctypes.data
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    if protect(ctypes.c_void_p(begin), ctypes.c_size_t(mmap.PAGESIZE), ctypes.c_int(0)):  # PROT_NONE
        raise MemoryError(f"a page beside a cache: {os.strerror(ctypes.get_errno())}")


def address(array: NDArray[Any] | ctypes.Array[Any] | ctypes.Structure) -> int:
    """The address of contiguous memory. Its owner must outlive every use of it."""
    if isinstance(array, np.ndarray):
        assert array.flags.c_contiguous
        return array.ctypes.data
    return ctypes.addressof(array)


class Embeddings:
    """A table [rows, width] of float32, or of bfloat16 as uint16."""

    def __init__(self, values: NDArray[np.float32] | NDArray[np.uint16]) -> None:
        self.values = values

    def look_up(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """ids [n] → [n, width] float32.

        Raises:
            IndexError: the table has no such row.
        """
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self.values):
            raise IndexError(f"an id of {ids.min()} to {ids.max()} is not in a table of {len(self.values)} rows")
        found = self.values[ids]
        if found.dtype == np.float32:
            return cast("NDArray[np.float32]", found)
        return (found.astype(np.uint32) << 16).view(np.float32)

    def digest(self) -> str:
        """SHA-256 of its values, in hexadecimal."""
        return hashlib.sha256(self.values.data).hexdigest()

    def structure(self) -> c.Table:
        kind = c.FLOAT32 if self.values.dtype == np.float32 else c.BFLOAT16
        return c.Table(address(self.values), *self.values.shape, kind)


@dataclass(frozen=True, slots=True)
class Networks:
    """The packed networks of a checkpoint. `memory` owns all that the structures point to."""

    talker: c.Talker
    predictor: c.Predictor
    codec: c.Codec
    text: Embeddings
    codes: Embeddings
    """Embeddings of code 0 and of the control codes."""
    later: tuple[Embeddings, ...]
    """Embeddings of the later codes, in the talker's width."""
    inputs: tuple[Embeddings, ...]
    """Embeddings of all codes but the last, in the code predictor's width."""
    memory: tuple[object, ...]


def pack(
    checkpoint: Checkpoint, modules: tuple[Talker, CodePredictor, Code2Wav], positions: int, packer: "Packer"
) -> Networks:
    """Packs modules of any dtype, and drops their weights. `positions` of the talker's cache belong to each row."""
    talker, predictor, decoder = modules
    assert isinstance(decoder, CodecDecoder), "the kernels know Qwen3-TTS alone"
    with torch.inference_mode():
        codec = pack_codec(packer, checkpoint.codec, decoder)
        text = packer.embeddings(talker.text_embedding)
        codes = packer.embeddings(talker.codec_embedding)
        later = tuple(packer.embeddings(cast("nn.Embedding", table)) for table in predictor.codec_embedding)
        inputs = (codes, *later[:-1])
        if checkpoint.talker.has_projection:
            inputs = tuple(packer.embeddings(cast("nn.Embedding", table)) for table in predictor.input_embedding)
        return Networks(
            _talker(packer, checkpoint, talker, positions, (text, codes, later)),
            _predictor(packer, checkpoint, predictor, inputs),
            codec,
            text,
            codes,
            later,
            inputs,
            tuple(packer.memory),
        )


class Packer:
    """Packs weights in `dtype`, and keeps the memory that the structures point to."""

    def __init__(self, dtype: WeightsDtype) -> None:
        self.memory: list[object] = []
        self._dtype = dtype
        self._arena = aligned((0,), np.uint8)
        """The rest of the last piece of shared memory."""

    def array(self, structure: type[Structure], items: Sequence[Structure]) -> int:
        """The address of an array of structures."""
        made = (structure * len(items))(*items)
        self.memory.append(made)
        return address(made)

    def floats(self, values: Tensor | None, length: int | None = None) -> int | None:
        """The address of values in float32, filled up with zeros to `length`."""
        if values is None:
            return None
        flat = values.detach().float().reshape(-1).numpy()
        return address(self._keep(flat, length or len(flat)))

    def embeddings(self, module: nn.Embedding) -> Embeddings:
        found = self.table(module.weight)
        drop(module)
        return found

    def table(self, weight: Tensor) -> Embeddings:
        """A table [rows, width] in plain order."""
        values = bfloat16_bits(weight) if self._fits_bfloat16(weight) else weight.detach().float().numpy()
        kept = self._room(values.shape, values.dtype.type)
        kept[:] = values
        return Embeddings(kept)

    def linear(self, module: nn.Linear, rounds: bool = False) -> c.Matrix:
        """The product of a linear layer. `rounds` says that it may be int8, which is coarse."""
        made = self.matrix(module.weight.detach().t(), module.bias, rounds)
        drop(module)
        return made

    def matrix(self, weight: Tensor, bias: Tensor | None, rounds: bool = False, taps: int = 1) -> c.Matrix:
        """A product of `taps` taps, weight [inputs, outputs].

        `rounds` says that it is of talker or code predictor, and may be int8, which is coarse.
        """
        inputs, outputs = weight.shape
        length = -(-outputs // c.BLOCK) * c.BLOCK
        kind, block = self._kind_of(weight, rounds, inputs // taps)
        scales: int | None = None
        packed: NDArray[Any]
        if kind in WHOLE_MAX:
            packed, scale = whole(blocks_of(weight), block, kind)
            scales = address(self._keep(scale.reshape(-1)))
        elif kind == c.BFLOAT16:
            packed = paired(bfloat16_bits(blocks_of(weight)))
        else:
            packed = blocks_of(weight).numpy()
        kept = self._keep(packed.reshape(-1))
        return c.Matrix(address(kept), scales, self.floats(bias, length), inputs, outputs, kind, block)

    def _kind_of(self, weight: Tensor, rounds: bool, per_tap: int) -> tuple[int, int]:
        """The kind of a product's weights, and the inputs that share a scale."""
        block = math.gcd(per_tap, WHOLE_BLOCK)
        if self._dtype == "int8" and block > 1:
            return (c.INT8 if rounds else c.INT11), block
        if self._dtype == "bfloat16" and not rounds and block > 1 and not self._is_bfloat16(weight):
            return c.INT11, block
        return (c.BFLOAT16 if self._fits_bfloat16(weight) else c.FLOAT32), block

    def _is_bfloat16(self, weight: Tensor) -> bool:
        return is_bfloat16(weight)

    def stack(
        self, module: Transformer | WindowTransformer, config: TransformerConfig, positions: int, rounds: bool
    ) -> c.Stack:
        """A transformer of models/layers.py, or that of the codec's decoder, whose branches have scales."""
        layers = []
        for block in cast("Iterable[Any]", module.layers):
            attention, mlp = block.self_attn, block.mlp
            qk_norm = getattr(attention, "qk_norm", None)
            layers.append(
                c.Layer(
                    self.linear(attention.qkv_proj, rounds),
                    self.linear(attention.o_proj, rounds),
                    self.linear(mlp.gate_up_proj, rounds),
                    self.linear(mlp.down_proj, rounds),
                    self.floats(block.input_layernorm.weight),
                    self.floats(block.post_attention_layernorm.weight),
                    None if qk_norm is None else self.floats(qk_norm.weight),
                    self.floats(getattr(block, "self_attn_layer_scale", None)),
                    self.floats(getattr(block, "mlp_layer_scale", None)),
                )
            )
        return c.Stack(
            self.array(c.Layer, layers),
            self.floats(module.norm.weight),
            self.floats(module.rope.inverse_frequency),
            len(layers),
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            positions,
            config.rms_norm_eps,
        )

    def snake(self, module: SnakeBeta) -> c.Snake:
        return c.Snake(self.floats(module.frequency), self.floats(module.magnitude))

    def conv(self, module: CausalConv) -> c.Conv:
        taps, inputs, outputs = module.weight.shape
        made = self.matrix(module.weight.detach().reshape(taps * inputs, outputs), module.bias, taps=taps)
        drop(module)
        return c.Conv(made, taps, module.dilation, inputs, outputs)

    def _fits_bfloat16(self, weight: Tensor) -> bool:
        """True if the weights are to be bfloat16: they are, or the dtype rounds them."""
        return self._dtype != "float32" or is_bfloat16(weight)

    def _keep(self, values: NDArray[Any], length: int | None = None) -> NDArray[Any]:
        """A copy of values [n], aligned and filled up with zeros."""
        kept = self._room((length or len(values),), values.dtype.type)
        kept[: len(values)] = values
        return kept

    def _room(self, shape: Sequence[int], dtype: type[np.generic]) -> NDArray[Any]:
        """Zeros that live as long as the structures.

        Matrices lie in large pages, one behind the other: in pages of 4 KB a core reads a sixth fewer bytes a second.
        Small arrays have memory of their own, in which a sanitizer sees what reads beyond them.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size < ARENA_LEAST:
            self.memory.append(made := aligned(shape, dtype))
            return made
        taken = -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if taken > len(self._arena):
            self.memory.append(arena := in_large_pages(max(ARENA_BYTES, taken)))
            if taken > ARENA_BYTES:  # what is left of the arena is for others
                return arena[:size].view(dtype).reshape(shape)
            self._arena = arena
        part, self._arena = self._arena[:size], self._arena[taken:]
        return part.view(dtype).reshape(shape)


def is_bfloat16(weight: Tensor) -> bool:
    """True if each weight is a bfloat16, whatever the dtype that it lies in."""
    return weight.dtype == torch.bfloat16 or torch.equal(weight.to(torch.bfloat16).float(), weight.float())


def drop(module: nn.Module) -> None:
    """Drops a module's own weights."""
    for name in list(module._parameters):
        module.register_parameter(name, None)


def bfloat16_bits(values: Tensor) -> NDArray[np.uint16]:
    """The nearest bfloat16 of each value, as uint16."""
    return values.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint16)


def paired(bits: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """[..., 32] → words of 32 bits whose low half is output j and whose high half is output j + 16."""
    halves = bits.reshape(*bits.shape[:-1], 2, c.BLOCK // 2)
    return np.ascontiguousarray(halves.swapaxes(-1, -2))


def blocks_of(weight: Tensor) -> Tensor:
    """weight [inputs, outputs] → [blocks, inputs, 32] float32, the last block filled up with zeros."""
    inputs, outputs = weight.shape
    blocks = -(-outputs // c.BLOCK)
    made = torch.zeros(blocks, inputs, c.BLOCK)
    for block in range(blocks):
        part = weight[:, block * c.BLOCK : (block + 1) * c.BLOCK]
        made[block, :, : part.shape[1]] = part
    return made


def whole(blocks: Tensor, block: int, kind: int) -> tuple[NDArray[np.int8] | NDArray[np.int16], NDArray[np.float32]]:
    """blocks [blocks, inputs, 32] → whole numbers [blocks, inputs / 2, 32, 2]; scales [inputs / block, blocks * 32]."""
    count, inputs, _ = blocks.shape
    groups = blocks.view(count, inputs // block, block, c.BLOCK)
    scale = (groups.abs().amax(2) / WHOLE_MAX[kind]).clamp(min=torch.finfo(torch.float32).tiny)
    values = (groups / scale[:, :, None]).round_().clamp_(-WHOLE_MAX[kind], WHOLE_MAX[kind])
    pairs = values.view(count, inputs // 2, 2, c.BLOCK).transpose(2, 3)
    stored = pairs.to(torch.int8 if kind == c.INT8 else torch.int16).contiguous().numpy()
    return stored, np.ascontiguousarray(scale.transpose(0, 1).numpy())


def _talker(
    packer: Packer,
    checkpoint: Checkpoint,
    talker: Talker,
    positions: int,
    tables: tuple[Embeddings, Embeddings, tuple[Embeddings, ...]],
) -> c.Talker:
    config, alignment = checkpoint.talker, checkpoint.alignment
    text, codes, later = tables
    return c.Talker(
        packer.stack(talker.transformer, config.transformer, positions, rounds=True),
        packer.linear(talker.codec_head, rounds=True),
        text.structure(),
        codes.structure(),
        packer.array(c.Table, [table.structure() for table in later]),
        config.num_code_groups,
        config.codec_eos_token_id,
        config.vocab_size - CONTROL_CODES,
        checkpoint.tts_pad_token_id,
        -1 if alignment is None else alignment.layer,
        -1 if alignment is None else alignment.head,
    )


def _predictor(
    packer: Packer, checkpoint: Checkpoint, predictor: CodePredictor, inputs: Sequence[Embeddings]
) -> c.Predictor:
    config = checkpoint.talker
    for table in predictor.input_embedding:
        drop(table)
    projection = c.Matrix()
    if isinstance(predictor.projection, nn.Linear):
        projection = packer.linear(predictor.projection, rounds=True)
    heads = [packer.linear(cast("nn.Linear", head), rounds=True) for head in predictor.lm_head]
    return c.Predictor(
        packer.stack(predictor.transformer, config.predictor, config.num_code_groups, rounds=True),
        projection,
        packer.array(c.Matrix, heads),
        packer.array(c.Table, [table.structure() for table in inputs]),
        config.num_code_groups,
        config.has_projection,
    )


def pack_codec(packer: Packer, config: CodecDecoderConfig, decoder: CodecDecoder) -> c.Codec:
    """Code2Wav alone, whose weights are dropped."""
    final = decoder.final_conv
    quantizer, transformer = decoder.quantizer, decoder.pre_transformer
    latents = [_latent(packer, cast("LatentUpsampling", stage)) for stage in decoder.upsample]
    blocks = [_upsampling(packer, cast("UpsamplingBlock", block)) for block in decoder.blocks]
    return c.Codec(
        packer.array(c.Table, [packer.table(book).structure() for book in quantizer.codebooks]),
        packer.linear(quantizer.semantic_proj),
        packer.linear(quantizer.acoustic_proj),
        packer.conv(decoder.pre_conv),
        packer.linear(transformer.input_proj),
        packer.linear(transformer.output_proj),
        packer.stack(transformer, config.transformer, config.sliding_window, rounds=False),
        packer.array(c.Latent, latents),
        packer.conv(decoder.head),
        packer.array(c.Upsampling, blocks),
        packer.snake(decoder.final_act),
        packer.floats(final.weight),
        float(final.bias),
        len(quantizer.codebooks),
        quantizer.semantic,
        config.sliding_window,
        len(latents),
        len(blocks),
        final.weight.shape[1],
        config.samples_per_frame,
        decoder.memory_frames,
    )


def _latent(packer: Packer, stage: LatentUpsampling) -> c.Latent:
    block = stage.block
    return c.Latent(
        packer.conv(stage.conv.conv),
        stage.conv.stride,
        stage.conv.channels,
        packer.floats(block.dwconv.weight),
        packer.floats(block.dwconv.bias),
        packer.floats(block.norm.weight),
        packer.floats(block.norm.bias),
        packer.floats(block.gamma),
        packer.linear(block.pwconv1),
        packer.linear(block.pwconv2),
    )


def _upsampling(packer: Packer, block: UpsamplingBlock) -> c.Upsampling:
    units = [_unit(packer, cast("ResidualUnit", unit)) for unit in block.units]
    return c.Upsampling(
        packer.snake(block.act),
        packer.conv(block.upsample.conv),
        block.upsample.stride,
        block.upsample.channels,
        (c.Unit * len(units))(*units),
    )


def _unit(packer: Packer, unit: ResidualUnit) -> c.Unit:
    return c.Unit(packer.snake(unit.act1), packer.snake(unit.act2), packer.conv(unit.conv1), packer.conv(unit.conv2))
