"""A whole frame and a prompt by kernels, against the PyTorch modules: any batch, both ways of multiplying."""

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from vivavoce_engine.checkpoint.networks import RopeConfig, TalkerConfig, TransformerConfig  # noqa: E402
from vivavoce_engine.gpu.card import Card  # noqa: E402
from vivavoce_engine.gpu.frame import FrameModel  # noqa: E402
from vivavoce_engine.gpu.launch import Launcher  # noqa: E402
from vivavoce_engine.gpu.starts import Starts  # noqa: E402
from vivavoce_engine.models.code_predictor import CodePredictor  # noqa: E402
from vivavoce_engine.models.layers import KVCache, RowView  # noqa: E402
from vivavoce_engine.models.talker import Talker  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
CODES, GROUPS, HIDDEN, NARROW = 32, 4, 192, 128
"""Wide enough for sums that are split over programs."""
END, PAD, PENALTY = CODES + 2, 7, 1.3
ROWS, POSITIONS, FRAMES = 3, 32, 3
LAUNCH = Launcher(replace(Card.of(DEVICE), dependent_launch=False))
PAGES = 5
TEXT = (3, 9)
LENGTHS = (5, 2, 9)


def config(projected: bool) -> TalkerConfig:
    def stack(hidden: int) -> TransformerConfig:
        return TransformerConfig(hidden, 256, 2, 3, 1, 1e-6, RopeConfig(1e4, 16))

    return TalkerConfig(
        transformer=stack(HIDDEN if projected else NARROW),
        predictor=stack(NARROW),
        predictor_vocab_size=CODES,
        num_code_groups=GROUPS,
        vocab_size=CODES + 1024,
        text_vocab_size=12,
        text_hidden_size=16,
        text_projection_size=16,
        codec_pad_id=CODES,
        codec_bos_id=CODES + 1,
        codec_eos_token_id=END,
        codec_think_id=CODES + 3,
        codec_nothink_id=CODES + 4,
        codec_think_bos_id=CODES + 5,
        codec_think_eos_id=CODES + 6,
        codec_language_id={},
        spk_id={},
        spk_is_dialect={},
    )


class Plain:
    """The same rows by modules: greedy codes, with the repetition penalty and without an end of speech."""

    def __init__(self, projected: bool) -> None:
        torch.manual_seed(3)
        self.config = config(projected)
        self.talker, self.predictor = Talker(self.config), CodePredictor(self.config)
        for model in (self.talker, self.predictor):
            for name, parameter in model.named_parameters():
                scale = 0.1 if "norm" in name else 1.0 if "embedding" in name else 2 * parameter.shape[-1] ** -0.5
                parameter.data = ("norm" in name) + scale * torch.randn(parameter.shape)
            model.to(DEVICE).requires_grad_(False)
        like = self.talker.codec_head.weight
        self.cache = KVCache(self.config.transformer, ROWS, POSITIONS, like)
        self.frame_cache = self.predictor.frame_cache(self.config, 1)
        self.hidden: dict[int, Tensor] = {}
        self.codes_0: dict[int, list[int]] = {}

    def step(self, row: int, x: Tensor, position: int) -> None:
        """x [T, hidden] from `position` on; draws the row's next code 0."""
        view = RowView(self.cache, [row], [position], len(x))
        self.hidden[row] = self.talker(x[None], view)[0, -1]
        logits = self.talker.logits(self.hidden[row][None])[0, :CODES]
        seen = torch.tensor(self.codes_0.setdefault(row, []), dtype=torch.int64, device=DEVICE)
        logits[seen] = torch.where(logits[seen] < 0, logits[seen] * PENALTY, logits[seen] / PENALTY)
        self.codes_0[row].append(int(logits.argmax()))

    def frame(self, row: int, number: int, prompt: int) -> list[int]:
        code_0 = torch.tensor([self.codes_0[row][-1]], device=DEVICE)
        codes = self.predictor(self.hidden[row][None], code_0, self.frame_cache, lambda _, logits: logits.argmax(-1))
        text = TEXT[number] if number < len(TEXT) else PAD
        x = self.predictor.embed_frame(codes, self.talker.codec_embedding(code_0))
        x = x + self.talker.text_embedding(torch.tensor([text], device=DEVICE))
        self.step(row, x, prompt + number)
        drawn: list[int] = codes[0].tolist()
        return drawn


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("projected", [False, True])
@torch.inference_mode()
def test_codes_are_the_modules_codes_in_any_batch(projected: bool, deterministic: bool) -> None:
    """Prompts of three rows packed together; then frames of all of them, of two, and of one."""
    plain = Plain(projected)
    hidden = plain.config.transformer.hidden_size
    model = FrameModel(
        plain.talker,
        plain.predictor,
        plain.config,
        rows=ROWS,
        batch=4,
        prompt_tokens=24,
        positions=POSITIONS,
        pages=PAGES,
        ring=2,
        pad_id=PAD,
        deterministic=deterministic,
        launch=LAUNCH,
    )
    tables, dummy = model.tables, model.tables.dummy_row
    assert model.cache.pages.tolist() == [[PAGES]] * (ROWS + 1)
    model.cache.pages[:ROWS, 0] = torch.tensor([3, 0, 4])
    tables.params[:] = torch.tensor([0.0, 50, 1.0, PENALTY])
    tables.min_frames[:] = 1 << 40
    tables.text_ids[:, : len(TEXT)] = torch.tensor(TEXT)
    tables.text_counts[:] = len(TEXT)
    prompts = [torch.randn(length, hidden).to(DEVICE) for length in LENGTHS]
    for row, prompt in enumerate(prompts):
        plain.step(row, prompt, 0)
        tables.frames[row], tables.positions[row] = -1, len(prompt) - 1
    tokens = 24
    packed = torch.cat(prompts)
    model.talker.x[: len(packed)] = packed
    model.token_rows[:] = dummy
    model.token_rows[: len(packed)] = torch.tensor([row for row, n in enumerate(LENGTHS) for _ in range(n)])
    model.token_positions[: len(packed)] = torch.tensor([at for n in LENGTHS for at in range(n)])
    model.rows[:] = torch.tensor([*range(ROWS), dummy])
    model.last_tokens[:ROWS] = torch.tensor(LENGTHS).cumsum(0) - 1
    model.prefill(4, tokens)
    assert tables.code_0[:ROWS].tolist() == [plain.codes_0[row][0] for row in range(ROWS)]
    for number, rows in enumerate(([2, 0, 1], [2, 0], [2])):
        batch = {3: 4}.get(len(rows), len(rows))
        model.rows[:] = dummy
        model.rows[: len(rows)] = torch.tensor(rows)
        model.frame(batch)
        for row in rows:
            assert tables.codes[row, number % 2].tolist() == plain.frame(row, number, LENGTHS[row])
            assert int(tables.code_0[row]) == plain.codes_0[row][-1]
            torch.testing.assert_close(tables.hidden[row], plain.hidden[row], rtol=1e-4, atol=1e-4)
    assert tables.frames[:ROWS].tolist() == [2, 1, 3]
    assert not model.ended.any()


@torch.inference_mode()
def test_a_start_of_nobody_is_the_dummy_row_s() -> None:
    """As graphs are recorded, before anybody has started."""
    plain = Plain(projected=False)
    model = FrameModel(
        plain.talker, plain.predictor, plain.config, rows=ROWS, batch=4, prompt_tokens=6, positions=POSITIONS, ring=2,
        pad_id=PAD, launch=LAUNCH,
    )  # fmt: skip
    dummy = model.tables.dummy_row
    model.rows[:] = model.token_rows[:] = 0
    before = {name: table.clone() for name, table in vars(model.tables).items() if table is not None}
    starts = Starts(model, plain.talker, 4)
    starts.set_rows()
    starts.embed_tokens()
    assert model.rows.tolist() == [dummy] * 4
    assert model.token_rows.tolist() == [dummy] * 6
    assert all(torch.equal(getattr(model.tables, name), table) for name, table in before.items())
