"""The networks of Qwen3-Omni against the reference's numbers, in float32 on a CPU.

tests/golden/omni_tiny.* hold what transformers 5.17.0 made of the same checkpoint.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from vivavoce_engine.checkpoint.files import Checkpoint, read_checkpoint
from vivavoce_engine.checkpoint.networks import ExpertsConfig, RopeConfig
from vivavoce_engine.cpu.sampling import BatchSampling
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.codec_decoder import Code2Wav, CodecRows
from vivavoce_engine.models.layers import Experts, KVCache, Rope, RowView, axes_of_frequencies
from vivavoce_engine.models.loader import load_models
from vivavoce_engine.models.talker import CONTROL_CODES, Talker
from vivavoce_engine.request import SamplingParams

from tests.support.golden import load_golden
from tests.support.omni_checkpoints import folder_digest, omni_checkpoint

CPU = torch.device("cpu")
GREEDY_CASES = ("text", "beijing", "one_token", "cut", "audio", "image", "chat")
CASES = (*GREEDY_CASES, "sampled")
HIDDEN_TOLERANCE, WAVE_TOLERANCE = 5e-6, 1e-5
GOLDEN = load_golden("omni_tiny")
POSITIONS = 160
Draw = Callable[[Tensor, SamplingParams], int]
"""(float32 scores [1, codes], how to draw) → a code."""


def same(made: Tensor, expected: Tensor) -> bool:
    """True if two results are equal bit for bit; up to rounding on a processor that adds in another order than the one
    that made the golden file."""
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        return torch.equal(made, expected)
    return torch.allclose(made, expected, rtol=0, atol=1e-6)


def is_medium(models: "Models", ids: Tensor) -> Tensor:
    """True at the ids that stand for a part of a sound or a picture."""
    chat = models.checkpoint.chat
    assert chat is not None
    return torch.isin(ids, torch.tensor([chat.audio_token_id, chat.image_token_id]))


def golden(name: str) -> Tensor:
    return torch.from_numpy(GOLDEN.tensors[name])


@dataclass(frozen=True)
class Models:
    checkpoint: Checkpoint
    talker: Talker
    predictor: CodePredictor
    code2wav: Code2Wav

    def rows(self, count: int = 1) -> CodecRows:
        return CodecRows(self.code2wav, count, torch.zeros(()))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder: Path = omni_checkpoint(tmp_path_factory.mktemp("omni"))
    assert folder_digest(folder) == GOLDEN.info["checkpoint_sha256"]
    checkpoint = read_checkpoint(folder)
    return Models(checkpoint, *load_models(checkpoint, CPU, torch.float32))


@dataclass
class Spoken:
    """Results of a talker for one case: codes as drawn, the end included, and how far its numbers are from the
    reference's."""

    code_0: list[int]
    codes: list[list[int]]
    furthest: float


@torch.inference_mode()
def speak(models: Models, name: str, draw: Draw) -> Spoken:
    """Speaks a case from the reference's inputs of the prompt on, each code drawn by `draw`."""
    config, sampling = models.checkpoint.talker, models.checkpoint.sampling
    prefill, axes, trailing = (golden(f"{name}.{key}") for key in ("prefill", "positions", "trailing"))
    length, shift = len(prefill), int(axes.max()) + 1 - len(prefill)
    cache = KVCache(config.transformer, 1, POSITIONS, prefill)
    view = RowView(cache, [0], [0], length, positions=axes[:, None].long())
    hidden = models.talker(prefill[None], view)[:, -1]
    seen = torch.zeros(1, config.vocab_size, dtype=torch.bool)
    forbidden = torch.arange(config.vocab_size) >= config.vocab_size - CONTROL_CODES
    forbidden[config.codec_eos_token_id] = False
    spoken, frames = Spoken([], [], 0.0), GOLDEN.info["cases"][name]["frames"]
    penalty = BatchSampling([sampling.talker], *(torch.tensor([value]) for value in (0.9, 50, 1.0, 1.05)))
    for frame in range(frames + 1):
        far = (hidden[0] - golden(f"{name}.hidden")[frame]).abs().max()
        spoken.furthest = max(spoken.furthest, float(far))
        scores = penalty.penalise(models.talker.logits(hidden), seen).masked_fill(forbidden, -torch.inf)
        spoken.code_0.append(draw(scores, sampling.talker))
        seen[0, spoken.code_0[-1]] = True
        if frame == frames:
            return spoken
        codes = models.predictor(
            hidden,
            torch.tensor([spoken.code_0[-1]]),
            models.predictor.frame_cache(config, 1),
            lambda _, scores: torch.tensor([draw(scores, sampling.predictor)]),
        )
        spoken.codes.append(codes[0].tolist())
        text = trailing[frame] if frame < len(trailing) else golden(f"{name}.tts_pad")
        x = models.predictor.embed_frame(codes, models.talker.codec_embedding(codes[:, 0])) + text
        spoken.furthest = max(spoken.furthest, float((x[0] - golden(f"{name}.steps")[frame]).abs().max()))
        place = length + frame
        view = RowView(cache, [0], [place], 1, positions=torch.tensor([[place + shift]]))
        hidden = models.talker(x[:, None], view)[:, 0]
    raise AssertionError


def likeliest(scores: Tensor, _: SamplingParams) -> int:
    return int(scores.argmax())


def as_the_reference_draws(scores: Tensor, params: SamplingParams) -> int:
    """Draws from our probabilities with PyTorch's generator, one number a draw."""
    values = (params.temperature, params.top_k, params.top_p, 1.0)
    sampling = BatchSampling([params], *(torch.tensor([value]) for value in values))
    return int(torch.multinomial(sampling.probabilities(scores), 1))


# ---- talker and code predictor


@pytest.mark.parametrize("name", GREEDY_CASES)
def test_greedy_codes_are_the_reference_s(name: str, models: Models) -> None:
    spoken = speak(models, name, likeliest)
    assert spoken.code_0 == golden(f"{name}.code_0").tolist()
    assert spoken.codes == golden(f"{name}.codes").T.tolist()
    assert spoken.furthest < HIDDEN_TOLERANCE


def test_the_default_sampling_draws_what_the_reference_draws(models: Models) -> None:
    torch.manual_seed(GOLDEN.info["cases"]["sampled"]["sample"])
    spoken = speak(models, "sampled", as_the_reference_draws)
    assert spoken.code_0 == golden("sampled.code_0").tolist()
    assert spoken.codes == golden("sampled.codes").T.tolist()


@pytest.mark.parametrize("name", GREEDY_CASES)
def test_text_is_projected_bit_for_bit(name: str, models: Models) -> None:
    checkpoint, ids, prefill = models.checkpoint, golden(f"{name}.prefill_ids"), golden(f"{name}.prefill")
    is_text = ~is_medium(models, ids[:-9])
    assert same(models.talker.text_embedding(ids[:-9][is_text]), prefill[:-9][is_text])
    marks = torch.tensor([checkpoint.tts_pad_token_id, checkpoint.tts_eos_token_id])
    assert same(
        models.talker.text_embedding(marks), torch.stack([golden(f"{name}.tts_pad"), golden(f"{name}.trailing")[-1]])
    )
    # The reference projects an answer when all of it is there: four rows at once, and the last ones by other sums. Here
    # each id has one embedding, whatever follows.
    answer, trailing = golden(f"{name}.thinker_ids")[1:-1], golden(f"{name}.trailing")[:-1]
    whole = (len(answer) + 4) // 4 * 4 - 4
    assert same(models.talker.text_embedding(answer[:whole]), trailing[:whole])
    assert torch.allclose(models.talker.text_embedding(answer), trailing, rtol=0, atol=1e-6)


def test_what_the_thinker_heard_and_saw_is_projected_bit_for_bit(models: Models) -> None:
    for name in ("audio", "image", "chat"):
        heard = is_medium(models, golden(f"{name}.input_ids"))
        at = is_medium(models, golden(f"{name}.prefill_ids"))
        read = models.talker.project_hidden(golden(f"{name}.thinker_hidden")[heard])
        assert len(read) >= 6, name
        assert same(read, golden(f"{name}.prefill")[at]), name


# ---- Code2Wav


@torch.inference_mode()
def decode(rows: CodecRows, row: int, codes: Tensor, pieces: tuple[int, ...]) -> Tensor:
    """codes [frames, groups], in pieces of these sizes and then the rest → audio without the first samples."""
    sizes = [*pieces, len(codes) - sum(pieces)]
    audio = [rows.decode(torch.tensor([row]), piece[None])[0] for piece in torch.split(codes, sizes) if len(piece)]
    return torch.cat(audio)[555:]


@pytest.mark.parametrize("name", CASES)
def test_waves_are_the_reference_s(name: str, models: Models) -> None:
    codes, wave = golden(f"{name}.codes").T.long(), golden(f"{name}.wave")
    audio = decode(models.rows(), 0, codes, ())
    assert models.code2wav.lookahead_samples == models.checkpoint.codec.lookahead_samples == 555
    assert len(audio) == len(wave) == 1920 * len(codes) - 555
    assert (audio - wave).abs().max() < WAVE_TOLERANCE


def test_a_long_stream_is_the_reference_s_decoding_of_the_whole(models: Models) -> None:
    seam = GOLDEN.info["cases"]["codec"]["seam"]
    audio = decode(models.rows(), 0, golden("codec.codes").T.long(), ())
    assert len(audio) == GOLDEN.info["cases"]["codec"]["samples_whole"]
    for key, part in (
        ("start", audio[:4000]),
        ("before_seam", audio[seam - 4000 : seam]),
        ("whole_after_seam", audio[seam : seam + 8000]),
        ("whole_end", audio[-4000:]),
    ):
        assert (part - golden(f"codec.{key}")).abs().max() < WAVE_TOLERANCE, key


@pytest.mark.parametrize("pieces", [(1,) * 8, (2, 1, 5), (7,)])
def test_pieces_of_any_length_have_the_same_bits(pieces: tuple[int, ...], models: Models) -> None:
    codes = golden("text.codes").T.long()
    assert len(codes) == 8
    assert torch.equal(decode(models.rows(), 0, codes, pieces), decode(models.rows(), 0, codes, ()))


@torch.inference_mode()
def test_rows_that_begin_at_different_times_have_the_bits_that_they_have_alone(models: Models) -> None:
    first, second = golden("text.codes").T.long(), golden("image.codes").T.long()
    alone = [decode(models.rows(), 0, codes[:5], ()) for codes in (first, second)]
    rows = models.rows(2)
    decode(rows, 1, first, ())  # another utterance had the row before
    rows.reset(torch.tensor([1]))
    early = rows.decode(torch.tensor([0]), first[None, :3])
    both = rows.decode(torch.tensor([1, 0]), torch.stack([second[:2], first[3:5]]))
    late = rows.decode(torch.tensor([1]), second[None, 2:5])
    assert torch.equal(torch.cat([early[0], both[1]])[555:], alone[0])
    assert torch.equal(torch.cat([both[0], late[0]])[555:], alone[1])


# ---- parts


def test_frequencies_of_the_released_rope_take_turns() -> None:
    axes = axes_of_frequencies((24, 20, 20))
    assert axes == [i % 3 if i < 60 else 0 for i in range(64)]
    assert [axes.count(axis) for axis in range(3)] == [24, 20, 20]


def test_equal_axes_give_the_bits_of_one_axis() -> None:
    rope = Rope(RopeConfig(1e6, 128, sections=(24, 20, 20)))
    positions = torch.arange(300).view(2, 150)
    for one, three in zip(rope(positions), rope(positions.expand(3, -1, -1)), strict=True):
        assert torch.equal(one, three)
    assert torch.equal(rope(positions)[0], Rope(RopeConfig(1e6, 128))(positions)[0])


def test_each_frequency_turns_by_the_position_of_its_axis() -> None:
    rope, sections = RopeConfig(1e4, 16, sections=(4, 2, 2)), axes_of_frequencies((4, 2, 2))
    positions = torch.tensor([[[5]], [[700]], [[90]]])
    angles = [int(positions[axis]) / 1e4 ** (2 * i / 16) for i, axis in enumerate(sections)]
    cos, sin = Rope(rope)(positions)
    expected = torch.tensor(angles, dtype=torch.float64)
    assert sections == [0, 1, 2, 0, 1, 2, 0, 0]
    assert torch.allclose(cos[0, 0, 0].double(), expected.cos().repeat(2), atol=1e-4)
    assert torch.allclose(sin[0, 0, 0].double(), torch.cat([-expected.sin(), expected.sin()]), atol=1e-4)


def mixture(normalised: bool) -> Experts:
    torch.manual_seed(2)
    experts = Experts(32, ExpertsConfig(6, 3, 16, 48, normalised)).requires_grad_(False)
    for parameter in experts.parameters():
        parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    return experts


@pytest.mark.parametrize("normalised", [True, False])
def test_experts_are_added_up_by_their_shares(normalised: bool) -> None:
    experts = mixture(normalised)
    x = torch.randn(2, 5, 32)
    made, wide = experts(x), experts.double()
    for row in range(2):
        for token in range(5):
            one = x[row, token].double()
            shares = (wide.router.weight @ one).softmax(0)
            chosen = shares.argsort(descending=True)[:3]
            total = shares[chosen].sum() if normalised else 1.0
            parts = [(shares[n] / total, wide.gate_up_proj[n], wide.down_proj[n]) for n in chosen]
            gate = (wide.shared_gate.weight @ one).sigmoid()[0]
            parts.append((gate, wide.shared.gate_up_proj.weight, wide.shared.down_proj.weight))
            out = torch.zeros(32, dtype=torch.float64)
            for share, gate_up, down in parts:
                left, right = (gate_up @ one).chunk(2)
                out += share * (down @ (torch.nn.functional.silu(left) * right))
            assert torch.allclose(made[row, token].double(), out, atol=1e-5)


def test_a_row_s_experts_have_the_same_bits_in_any_batch() -> None:
    experts, x = mixture(True), torch.randn(5, 3, 32)
    together = experts(x)
    for row in range(5):
        assert torch.equal(experts(x[row : row + 1])[0], together[row])
