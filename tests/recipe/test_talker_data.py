"""Documents of the talker: texts, tokens that wait, prompts as the server makes them, packing."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.request import SpokenContext, SynthesisRequest
from vivavoce_engine.text.prompt import NO_ID, TextFrontend, Tokenizer
from vivavoce_voice import CHECKPOINT
from voice_recipe import units
from voice_recipe.config import CODEC_PAD, SPEAKERS
from voice_recipe.corpus import Corpus, Record
from voice_recipe.prompts import NO_DOCUMENT, Documents, Expanded, Packing, expand
from voice_recipe.talker_data import (
    KNOWN_TEXTS,
    ROW_DOCUMENTS,
    SHORT_REPEATS,
    Packer,
    fill_rows,
    first_sound,
    load_documents,
    open_tokens,
    text_ids,
)
from voice_recipe.text_tokenizer import TextTokenizer
from voice_recipe.trim import SILENT_FRAMES

FIRST, SECOND = "He came in. Nobody spoke.", " Then the clock struck four."
FRAMES, SEAM = 60, 25


def record(text: str, sounds: list[int], document: int = -1, glue: str = "", spoken: str = "") -> Record:
    row = np.array(sounds, np.uint8)
    return Record(text, spoken or text, 0, (row, row), document, glue)


@pytest.fixture
def corpus() -> Corpus:
    return Corpus.of(
        [
            record("Hello.", [50, 83, 4]),
            record("At 4.", [72, 62, 4], spoken="At four."),
            record("One.", [39, 138, 56, 4], 0),
            record("Two,", [62, 63, 3], 0, " "),
            record("3.", [119, 123, 4], 0, "\n", spoken="three."),
            record("“Cats”", [14, 156, 53, 72, 62]),
        ]
    )


def test_a_plan_has_every_record_once_and_documents_in_order(corpus: Corpus) -> None:
    for seed in range(8):
        plan = units.plan(corpus, np.random.default_rng(seed))
        assert sorted(number for unit in plan for number in unit) == list(range(6))
        parts = [unit for unit in plan if 2 <= unit[0] <= 4]
        assert sorted(parts) in ([[2, 3, 4]], [[2], [3, 4]], [[2, 3], [4]])
        assert not any(5 in unit and unit[-1] != 5 for unit in plan), "nothing follows a text without an end"


def test_a_text_is_joined_as_it_is_written_and_as_it_is_said(corpus: Corpus) -> None:
    assert units.text_of(corpus, [2, 3, 4], spoken=False) == "One. Two,\n3."
    assert units.text_of(corpus, [2, 3, 4], spoken=True) == "One. Two, three."
    assert units.text_of(corpus, [4], spoken=False) == "3."
    assert units.text_of(corpus, [0, 1], spoken=True) == "Hello. At four."


def test_pauses_are_longer_at_line_breaks(corpus: Corpus) -> None:
    rng = np.random.default_rng(0)
    drawn = np.array([units.pauses(corpus, [2, 3, 4], rng) for _ in range(50)])
    assert (drawn[:, 0] == 0).all()
    assert drawn[:, 1].min() >= 0.15
    assert drawn[:, 1].max() <= 0.5
    assert drawn[:, 2].min() >= 0.3


def test_a_unit_that_is_too_long_is_split() -> None:
    long = Corpus.of([record("A.", [50] * 190, 0, " " if n else "") for n in range(8)])
    plan = units.plan(long, np.random.default_rng(0))
    assert sorted(number for unit in plan for number in unit) == list(range(8))
    assert max(map(len, plan)) <= units.MOST_PHONEMES // 190


def test_the_first_sound_is_behind_signs_and_stress(corpus: Corpus) -> None:
    assert first_sound(corpus, 5) == 53


def test_a_first_token_that_tells_the_sound_does_not_wait() -> None:
    count = KNOWN_TEXTS * 2
    first = np.array([[7] * count + [8] * count + [9]] * 4)
    sounds = np.array([50] * count + [50, 51] * (count // 2) + [50])
    waits = open_tokens(first, sounds)
    assert not waits[7]
    assert waits[8], "two sounds"
    assert waits[9], "too few texts to know"


def documents(texts: list[str], frames: int, waits: bool) -> Documents:
    """Documents with one variant each, random codes, speakers in turn."""
    ids, offsets = TextTokenizer(CHECKPOINT).encode(texts)
    count = len(texts)
    return Documents(
        torch.from_numpy(ids),
        torch.from_numpy(offsets[None, :-1]),
        torch.from_numpy(np.diff(offsets)[None]),
        torch.full((1, count), waits),
        torch.randint(1024, (count * frames, 8), dtype=torch.int16),
        torch.arange(count) * frames,
        torch.full((count,), frames),
        torch.arange(count),
    )


def expanded(docs: Documents, streaming: bool, english: bool, positions: int) -> Expanded:
    """The last document, after a gap."""
    columns = (torch.tensor([len(docs.frames) - 1]), torch.tensor([0]), torch.tensor([streaming]))
    pack = Packing(torch.tensor([10]), *columns, torch.tensor([english]))
    batch = expand(docs, pack, text_ids(TextTokenizer(CHECKPOINT)), positions + 10)
    return Expanded(**{field.name: getattr(batch, field.name)[10:] for field in fields(batch)})


@pytest.mark.parametrize("english", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_document_is_the_server_s_prompt_of_a_part_that_goes_on(streaming: bool, waits: bool, english: bool) -> None:
    """The part before, with its frames, then the part itself."""
    docs = documents(["Before.", FIRST + SECOND], FRAMES, waits)
    skipped = 0 if streaming and waits else SILENT_FRAMES
    said = docs.codes[FRAMES + skipped : FRAMES + skipped + SEAM].numpy()
    checkpoint = read_checkpoint(CHECKPOINT)
    request = SynthesisRequest(
        SECOND,
        speaker=list(SPEAKERS)[1],
        language="english" if english else "auto",
        streaming_text=streaming,
        context=SpokenContext(FIRST, said),
    )
    prompt = TextFrontend(checkpoint, Tokenizer(checkpoint.path)).prompt(request)
    end = prompt.prefill_tokens
    batch = expanded(docs, streaming, english, 200)
    codec = torch.tensor([-1 if code == NO_ID else code for code in prompt.codec_ids])
    assert torch.equal(batch.text_id[:end], torch.tensor(prompt.text_ids))
    assert torch.equal(batch.codec_id[:end], codec)
    assert batch.position[:end].tolist() == list(range(end))
    own = batch.frame[end - SEAM : end]
    assert torch.equal(docs.codes[own], torch.from_numpy(said)), "the frames of the part before, where it was heard"
    trailing = list(prompt.trailing_ids)
    assert batch.text_id[end : end + len(trailing)].tolist() == trailing
    heard = batch.target_frame[batch.target_frame >= 0]
    assert heard.tolist() == list(range(FRAMES + skipped, 2 * FRAMES))
    assert batch.ends.sum() == 1
    last = int(batch.ends.nonzero()[0])
    assert int(batch.frame[last]) == 2 * FRAMES - 1
    assert (batch.owner >= 0).sum() == last + 1, "behind the end there is nothing"
    assert int(batch.codec_id[last]) == -1 != CODEC_PAD


def test_rows_hold_every_document_once_and_are_nearly_full() -> None:
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.integers(20, 140, 3000), rng.integers(200, 1024, 500), [1025, 3000]])
    rows = list(fill_rows(rng.permutation(lengths), 1024))
    inside = [number for row in rows for number in row]
    assert len(inside) == len(set(inside)) == 3500
    assert max(map(len, rows)) <= ROW_DOCUMENTS


def test_rows_are_nearly_full() -> None:
    rng = np.random.default_rng(1)
    lengths = rng.permutation(np.concatenate([rng.integers(20, 140, 6000), rng.integers(200, 1000, 800)]))
    rows = list(fill_rows(lengths, 1024))
    assert lengths.sum() / (len(rows) * 1024) > 0.95


def packed(packer: Packer, seed: int) -> list[Packing]:
    return list(packer.epoch(np.random.default_rng(seed)))


def test_an_epoch_has_short_documents_several_times_and_spares_text_that_does_not_fit() -> None:
    frames = np.array([15] * 30 + [100] * 30)
    text = np.full((4, 60), 5)
    text[:, 59] = 200  # more tokens than frames: never as streaming text
    packer = Packer(text, frames, np.zeros((4, 60), bool), np.arange(60), rows=1, row_length=1024)
    batches = packed(packer, 0)
    used = [pack.start < NO_DOCUMENT for pack in batches]
    placed = torch.cat([pack.document[inside] for pack, inside in zip(batches, used, strict=True)])
    assert torch.bincount(placed, minlength=60).tolist() == [SHORT_REPEATS] * 30 + [1] * 30
    streaming = {int(d) for p, u in zip(batches, used, strict=True) for d in p.document[u & p.streaming]}
    assert streaming
    assert 59 not in streaming


def test_utterances_of_a_shard_become_documents(corpus: Corpus, tmp_path: Path) -> None:
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "codes": np.arange(12 * 8, dtype=np.int16).reshape(12, 8),
        "records": np.array([2, 3, 4, 0], np.int32),
        "counts": np.array([3, 1], np.uint8),
        "speaker": np.array([4, 0], np.uint8),
        "frames": np.array([9, 3], np.int32),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    docs = load_documents([tmp_path], corpus, CHECKPOINT, "cpu")
    assert docs.code_start.tolist() == [0, 9]
    assert docs.frames.tolist() == [9, 3]
    assert docs.speaker.tolist() == [4, 0]
    tokens, _ = TextTokenizer(CHECKPOINT).encode(["One. Two,\n3.", "Hello.", "One. Two, three."])
    written = docs.text[docs.text_start[0, 0] : docs.text_start[0, 0] + docs.text_length[0, 0]]
    spoken = docs.text[docs.text_start[1, 0] : docs.text_start[1, 0] + docs.text_length[1, 0]]
    assert [*written.tolist(), *spoken.tolist()] == [
        *tokens[: len(written)].tolist(),
        *tokens[len(tokens) - len(spoken) :].tolist(),
    ]
    assert docs.waits.all(), "no token begins enough texts"
