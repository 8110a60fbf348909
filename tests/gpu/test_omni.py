"""The speech side of Qwen3-Omni by kernels, against the PyTorch modules: experts, three axes, Code2Wav's silent start.

Without a GPU, Triton's interpreter runs the kernels.
"""

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from vivavoce_bench.cards.random_codec import OMNI_CODEC, random_code2wav  # noqa: E402
from vivavoce_bench.cards.shapes import OMNI, talker_config  # noqa: E402
from vivavoce_engine.checkpoint.files import Checkpoint  # noqa: E402
from vivavoce_engine.checkpoint.networks import (  # noqa: E402
    ExpertsConfig,
    RopeConfig,
    TalkerConfig,
    TransformerConfig,
)
from vivavoce_engine.config import EngineConfig  # noqa: E402
from vivavoce_engine.gpu.card import H200, Card  # noqa: E402
from vivavoce_engine.gpu.codec import layers as codec_layers  # noqa: E402
from vivavoce_engine.gpu.codec.decoder import GpuCodec  # noqa: E402
from vivavoce_engine.gpu.codec.tiles import Tiles  # noqa: E402
from vivavoce_engine.gpu.frame import FrameModel  # noqa: E402
from vivavoce_engine.gpu.heads import AXES  # noqa: E402
from vivavoce_engine.gpu.launch import Launcher  # noqa: E402
from vivavoce_engine.gpu.memory import Counter  # noqa: E402
from vivavoce_engine.gpu.starts import TOKEN_FIELDS, RowStart, Starts  # noqa: E402
from vivavoce_engine.models.code_predictor import CodePredictor  # noqa: E402
from vivavoce_engine.models.codec_decoder import CodecRows, OmniDecoder  # noqa: E402
from vivavoce_engine.models.layers import KVCache, RowView  # noqa: E402
from vivavoce_engine.models.talker import Talker  # noqa: E402
from vivavoce_engine.text.prompt import NO_ID  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
LAUNCH = Launcher(replace(Card.of(DEVICE), dependent_launch=False))
CODES, GROUPS, HIDDEN, TEXTS, POSITIONS = 32, 3, 64, 12, 32
END, PAD = CODES + 2, 7
GREEDY = (0.0, 50.0, 1.0, 1.0)
PROMPT, PICTURE, SHIFT = 14, (2, 4), -4
"""Tokens of a prompt, rows and columns of the picture in it, and what it takes from the positions behind it."""


def config() -> TalkerConfig:
    stack = TransformerConfig(
        HIDDEN, 64, 2, 8, 1, 1e-6, RopeConfig(1e4, 16, sections=(4, 2, 2)), ExpertsConfig(6, 2, 16, 24, normalised=True)
    )
    return TalkerConfig(
        transformer=stack,
        predictor=TransformerConfig(HIDDEN, 64, 1, 4, 2, 1e-6, RopeConfig(1e4, 16)),
        predictor_vocab_size=CODES,
        num_code_groups=GROUPS,
        vocab_size=CODES + 1024,
        text_vocab_size=TEXTS,
        text_hidden_size=16,
        text_projection_size=16,
        codec_pad_id=CODES,
        codec_bos_id=CODES + 1,
        codec_eos_token_id=END,
        codec_think_id=None,
        codec_nothink_id=CODES + 4,
        codec_think_bos_id=CODES + 5,
        codec_think_eos_id=CODES + 6,
        codec_language_id={},
        spk_id={},
        spk_is_dialect={},
        reads_hidden_states=True,
    )


def picture_axes() -> Tensor:
    """Positions on three axes [AXES, PROMPT] of a prompt with a picture behind its third token."""
    rows, columns = PICTURE
    axes = torch.arange(PROMPT).repeat(AXES, 1)
    grid = torch.arange(rows * columns)
    axes[:, 3 : 3 + len(grid)] = 3 + torch.stack([0 * grid, grid // columns, grid % columns])
    axes[:, 3 + len(grid) :] += SHIFT
    assert int(axes.max()) + 1 - PROMPT == SHIFT
    return axes


class Networks:
    """Random networks, and one row of them by modules."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.config = config()
        self.talker, self.predictor = Talker(self.config), CodePredictor(self.config)
        for network in (self.talker, self.predictor):
            for name, parameter in network.named_parameters():
                scale = 0.1 if "norm" in name else 1.0 if "embedding" in name else 2 * parameter.shape[-1] ** -0.5
                parameter.data = ("norm" in name) + scale * torch.randn(parameter.shape)
            network.to(DEVICE).requires_grad_(False)
        self.like = self.talker.codec_head.weight
        self.cache = KVCache(self.config.transformer, 1, POSITIONS, self.like)

    def step(self, x: Tensor, at: int, positions: Tensor) -> Tensor:
        """x [T, hidden] at the places from `at` on, positions [AXES, T] → the last hidden state."""
        view = RowView(self.cache, [0], [at], len(x), positions=positions[:, None].to(DEVICE))
        hidden: Tensor = self.talker(x[None], view)[0, -1]
        return hidden

    def model(self) -> FrameModel:
        model = FrameModel(
            self.talker, self.predictor, self.config, rows=2, batch=2, prompt_tokens=PROMPT + 2, positions=POSITIONS,
            ring=2, pad_id=PAD, deterministic=True, launch=LAUNCH,
        )  # fmt: skip
        assert model.tables.shifts is not None
        return model


def start(model: FrameModel, networks: Networks, pieces: tuple[int, ...], text: Tensor, media: Tensor) -> None:
    """Runs a prompt of row 1 in pieces. Its picture's tokens are vectors, [tokens, hidden]."""
    starts, axes = Starts(model, networks.talker, 2), picture_axes()
    starts.upload_rows([RowStart(1, 5, PROMPT - 1, 1 << 40, 2, GREEDY * 2, [1], shift=SHIFT)])
    starts.set_rows()
    model.tables.text_ids[1, :2] = torch.tensor([3, 9])
    packed = np.full((PROMPT, TOKEN_FIELDS + AXES), NO_ID, np.int64)
    packed[:, 0], packed[:, 2], packed[:, 3] = text.numpy(), 1, np.arange(PROMPT)
    packed[:, 4] = packed[:, 0] == NO_ID
    packed[:, TOKEN_FIELDS:] = axes.T.numpy()
    at = 0
    for piece in pieces:
        some = packed[at : at + piece]
        for token in np.flatnonzero(some[:, 4]):
            model.talker.x[token] = media[at + token - 3]
        starts.upload_tokens(some, {1: piece - 1} if at + piece == PROMPT else {})
        starts.embed_tokens()
        model.prefill(2, len(model.token_rows))
        at += piece


@pytest.mark.parametrize("pieces", [(PROMPT,), (5, 8, 1)])
@torch.inference_mode()
def test_a_prompt_with_a_picture_and_frames_behind_it(pieces: tuple[int, ...]) -> None:
    """In one call, and in pieces of which the last is the one token that the answer's first id brings."""
    networks = Networks()
    model, axes = networks.model(), picture_axes()
    text = torch.arange(PROMPT) % TEXTS
    count = PICTURE[0] * PICTURE[1]
    text[3 : 3 + count] = NO_ID
    media = torch.randn(count, HIDDEN).to(DEVICE)
    start(model, networks, pieces, text, media)
    x = networks.talker.embed(text[None].to(DEVICE), torch.full((1, PROMPT), NO_ID).to(DEVICE))[0]
    x[3 : 3 + count] = media
    hidden = networks.step(x, 0, axes)
    torch.testing.assert_close(model.tables.hidden[1], hidden, rtol=1e-4, atol=1e-4)
    for frame in range(2):
        code_0 = model.tables.code_0[1:2].clone()
        model.rows[:] = torch.tensor([1, model.tables.dummy_row])
        model.frame(2)
        codes = model.tables.codes[1, frame][None]
        drawn = networks.predictor(hidden[None], code_0, networks.predictor.frame_cache(networks.config, 1), greedy)
        assert codes.tolist() == drawn.tolist()
        x = networks.predictor.embed_frame(codes, networks.talker.codec_embedding(code_0))
        x = x + networks.talker.text_embedding(torch.tensor([[3, 9][frame]], device=DEVICE))
        at = PROMPT + frame
        hidden = networks.step(x, at, torch.full((AXES, 1), at + SHIFT))
        torch.testing.assert_close(model.tables.hidden[1], hidden, rtol=1e-4, atol=1e-4)


def greedy(_: int, logits: Tensor) -> Tensor:
    return logits.argmax(-1)


SMALL_CODEC = replace(
    OMNI_CODEC,
    transformer=TransformerConfig(32, 48, 2, 2, 2, 1e-5, RopeConfig(1e4, 16)),
    sliding_window=4,
    latent_dim=32,
    codebook_dim=32,
    codebook_size=CODES,
    num_quantizers=GROUPS,
    decoder_dim=96,
    upsample_rates=(3, 2),
    upsampling_ratios=(2, 2),
    samples_per_frame=24,
)


@pytest.fixture(scope="module")
def decoder() -> OmniDecoder:
    with torch.inference_mode():
        made = random_code2wav(SMALL_CODEC, DEVICE)
    assert isinstance(made, OmniDecoder)
    assert made.lookahead_samples == 3 * 2 + 2
    return made


@pytest.mark.parametrize("fuse", [False, True])
@torch.inference_mode()
def test_audio_in_pieces_is_the_module_s(decoder: OmniDecoder, fuse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a row that is used again, and for one that begins beside a row that goes on."""
    if fuse and DEVICE.type == "cuda":
        pytest.skip("float32 units in one kernel do not fit the registers")
    if fuse:
        tiles = {48: Tiles(32, 32, 16, 16, 4, 2), 24: None}
        monkeypatch.setattr(codec_layers, "choose_unit", lambda _, width, *__: tiles[width])
    skip = decoder.lookahead_samples
    codes = torch.randint(CODES, (3, 4, GROUPS), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    every = torch.arange(3, device=DEVICE)
    exact = CodecRows(decoder, 3, decoder.final_conv.weight).decode(every, codes)[:, skip:]
    assert 0.05 < float(exact.square().mean().sqrt()) < 0.7
    codec = GpuCodec(decoder, 3, 3, launch=LAUNCH)
    first = codec.decode(every[:1], codes[:1, :1])
    both = codec.decode(every[:2], torch.cat([codes[:1, 1:3], codes[1:2, :2]]))
    rest = codec.decode(every[:2], torch.stack([codes[0, 3:], codes[1, 2:3]]))
    one = torch.cat([first[0], both[0], rest[0]])[skip:]
    other = torch.cat([both[1], rest[1]])[skip:]
    assert float((one - exact[0]).abs().max()) < 1e-4
    assert float((other - exact[1, : len(other)]).abs().max()) < 1e-4
    codec.reset(0)
    again = codec.decode(every[:1], codes[2:, :3])[0, skip:]
    assert float((again - exact[2, : len(again)]).abs().max()) < 1e-4


TEXT_PROJECTION = 2048 * 2048 + 2048 + 1024 * 2048 + 1024
RELEASED = 3_019_898_880 + 163_127_296 + 141_570_304
"""Weights of the released talker's experts, of the rest of it, and of its code predictor."""
CODE2WAV, VOCABULARY = 216_016_577, 152_064
HEAD_NORMS = 20 * (16 + 2 - 2) * 128 + 5 * (16 + 8 - 2) * 128
"""Weights of queries' and keys' norms that are kept for each head."""
BIASES = 2 * 1024 + 7 * 768 + 4 * 384 + 3 * 192 + 2 * 96
"""Biases of Code2Wav's upsampling that are kept for each sample beside the first."""
ROTATIONS = 2 * 64 * 4
"""Bytes of both stacks' frequencies."""


def test_the_counted_weights_are_the_released_ones() -> None:
    """Without the projection of texts, which one table of the whole vocabulary stands for."""
    shapes = {"talker": replace(talker_config(OMNI), text_vocab_size=VOCABULARY), "codec": OMNI_CODEC}
    checkpoint = SimpleNamespace(**shapes, encoder=None, tts_pad_token_id=0, alignment=None, chat=SimpleNamespace())
    counter = Counter(cast(Checkpoint, checkpoint), torch.bfloat16, Launcher(H200))
    counted = counter(EngineConfig(max_streams=1))
    assert counted.weights == 2 * (RELEASED - TEXT_PROJECTION + VOCABULARY * 1024 + HEAD_NORMS) + ROTATIONS
    assert counted.decoder == 4 * (CODE2WAV + BIASES) + ROTATIONS // 4
