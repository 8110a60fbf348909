"""Training of the waveform decoder: critics, effect of a step, continuing from a trained decoder, a failed trial."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from voice_recipe import run
from voice_recipe.config import CODEC
from voice_recipe.discriminators import FFT_SIZES, PERIODS, Discriminators, critic_loss, generator_losses
from voice_recipe.export import move_apart
from voice_recipe.run import LONG_DECODER_TRIALS, Chain, GateError
from voice_recipe.speech_codes import SpeechCodes
from voice_recipe.train_decoder import DecoderTrainer, Settings


@pytest.fixture(scope="module")
def trainer(short_steps: None) -> DecoderTrainer:
    torch.manual_seed(0)
    return DecoderTrainer(Settings(batch=2, critic_batch=1, mel_weight=60, inner=48), eager=True)


def test_each_critic_judges_its_own_view() -> None:
    critics, audio = Discriminators(), torch.randn(2, 4096)
    shapes = [tuple(critics.judge(number, audio)[0].shape) for number in range(len(critics))]
    assert len(shapes) == len(FFT_SIZES) + len(PERIODS)
    # times of a spectrogram with a quarter's hop; rows of a folded waveform after three strides of three
    assert [shape[2] for shape in shapes[: len(FFT_SIZES)]] == [4096 // (size // 4) + 1 for size in FFT_SIZES]
    assert [shape[3] for shape in shapes[len(FFT_SIZES) :]] == list(PERIODS)


def test_critics_are_right_or_wrong() -> None:
    right, wrong = torch.ones(2, 1, 3, 3), torch.zeros(2, 1, 3, 3)
    assert float(critic_loss(right, wrong)) == 0
    assert float(critic_loss(wrong, right)) == 2


def test_features_match_relative_to_their_size() -> None:
    real = [torch.full((1, 4), 2.0), torch.full((1, 4), 10.0)]
    adversarial, matching = generator_losses(real, (torch.zeros(1, 1), [real[0] * 1.5, real[1] * 1.5]))
    assert float(adversarial) == 1
    assert float(matching) == pytest.approx(0.5)
    assert float(generator_losses(real, (torch.ones(1, 1), real))[1]) == 0


def parameters(module: torch.nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def changed(module: torch.nn.Module, before: list[Tensor]) -> bool:
    return any(not torch.equal(a, b) for a, b in zip(module.parameters(), before, strict=True))


def test_a_step_without_critics_leaves_them_alone_and_one_with_them_trains_both(trainer: DecoderTrainer) -> None:
    trainer.codes.random_(CODEC.codebook_size)
    trainer.audio.normal_(std=0.1)
    for adversarial in (False, True):
        decoder, critics = parameters(trainer.decoder), parameters(trainer.critics)
        trainer.step(1.0, adversarial)
        assert changed(trainer.decoder, decoder)
        assert changed(trainer.critics, critics) == adversarial
        mel, harmonic, level, critic, adversary, matching, norm = trainer.statistics.tolist()
        assert mel > 0
        assert harmonic == level == 0  # their weights are 0
        assert norm > 0
        # nine untrained critics give about 0 to everything: 1 for the real audio, 0 for the fake
        assert critic == pytest.approx(len(trainer.critics) if adversarial else 0, rel=0.1)
        assert adversary == pytest.approx(len(trainer.critics) if adversarial else 0, rel=0.1)
        assert (matching > 0) == adversarial


def test_the_rate_is_the_schedule_s(trainer: DecoderTrainer) -> None:
    decoder = parameters(trainer.decoder)
    trainer.step(0.0, False)
    assert not changed(trainer.decoder, decoder)


def test_going_on_with_the_same_codes_keeps_the_trained_projection(trainer: DecoderTrainer) -> None:
    codes = SpeechCodes(CODEC)
    for book in (*codes.semantic.books, *codes.acoustic.books):
        book.vectors.normal_()
    state = codes.state_dict()
    projection = trainer.decoder.rvq_rest.output_proj.weight
    trainer.load_codebooks(state)
    assert torch.equal(projection[..., 0], state["acoustic.output_proj.weight"])  # new codes, new projection
    assert torch.equal(trainer.decoder.rvq_rest.codebooks[3], state["acoustic.books.3.vectors"])
    with torch.no_grad():
        projection.fill_(0.5)
    trainer.decoder.rvq_rest.codebooks.copy_(trainer.decoder.rvq_rest.codebooks.bfloat16())  # as it comes home
    trainer.load_codebooks(state)
    assert torch.equal(projection, torch.full_like(projection, 0.5))
    assert torch.equal(trainer.decoder.rvq_rest.codebooks[3], state["acoustic.books.3.vectors"])


def test_a_speaker_moves_away_from_another_and_nothing_else_changes(tmp_path: Path) -> None:
    name = "talker.model.codec_embedding.weight"
    before = {name: torch.arange(12.0).view(4, 3), "other": torch.randn(2)}
    save_file(before, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"talker_config": {"spk_id": {"heart": 1, "bella": 3}}}))
    move_apart("bella", "heart", 0.5, tmp_path)
    after = load_file(tmp_path / "model.safetensors")
    assert after[name].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [12, 13, 14]]
    assert torch.equal(after["other"], before["other"])
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


class Trials:
    """Stands in for `start_decoder`: processes that end at once, with the status that the plan has for each start."""

    def __init__(self, plan: dict[str, list[int]]) -> None:
        self.plan, self.options = plan, dict[str, list[list[str]]]()

    def start(self, chain: Chain, name: str, options: list[str], card: int) -> subprocess.Popen[bytes]:
        starts = self.options.setdefault(name, [])
        starts.append(options)
        status = self.plan.get(name, [0])[len(starts) - 1]
        if status == 0:
            (chain.work / f"decoder_{name}.json").write_text(json.dumps({"heard": 0.8, "card": card}))
            torch.save({}, chain.work / f"decoder_{name}.pt")
        process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({status})"])
        process.wait()
        return process


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    """A chain whose speech and codes are there."""
    (tmp_path / "start").mkdir()
    report = {"probe_true": 0.9, "probe_decoded": 0.89, "perplexity0": 600.0, "perplexity1": 800.0}
    torch.save({"report": report}, tmp_path / "start" / "codes.pt")
    made = Chain(tmp_path, tmp_path, tmp_path, 4, time.time() + 600, start=tmp_path / "start")
    for shard in made.shards[:4]:
        shard.mkdir(parents=True)
        (shard / "done").touch()
        (shard / "codes.npy").touch()
    return made


def test_a_failed_trial_starts_once_more_from_what_it_had_saved(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials({"b": [1, 0], "c": [1, 1]})
    torch.save({}, chain.work / "decoder_b.pt")
    monkeypatch.setattr(run, "start_decoder", trials.start)
    run.run_decoder(chain)
    assert {name: len(starts) for name, starts in trials.options.items()} == {"a": 1, "b": 2, "c": 2, "d": 1}
    assert trials.options["b"][1] == [*trials.options["b"][0], "--start", str(chain.work / "start_b.pt")]
    assert trials.options["c"][1] == trials.options["c"][0]
    assert (chain.work / "decoder.pt").exists()


def test_where_every_trial_fails_the_chain_says_so(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "start_decoder", Trials({name: [1, 1] for name in LONG_DECODER_TRIALS}).start)
    with pytest.raises(GateError, match="no decoder was trained"):
        run.run_decoder(chain)


def test_a_card_without_speech_takes_another_s(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    (chain.shards[1] / "done").unlink()
    monkeypatch.setattr(run, "synthesise", lambda chain, first_only: [])
    run.speak_for_decoders(chain)
    assert chain.shards[1].resolve() == chain.shards[0].resolve()
    for shard in chain.shards[:4]:
        (shard / "done").unlink(missing_ok=True)
    with pytest.raises(GateError, match="did not speak"):
        run.speak_for_decoders(chain)
