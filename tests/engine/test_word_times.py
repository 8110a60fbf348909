"""Times of words from scores and samples: streaming gives what the whole utterance gives at once."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_engine import WordTime
from vivavoce_engine.batching.text_paths import BEHIND, EPS, WINDOW, TextPath, feed
from vivavoce_engine.batching.word_times import EDGE_S, LEAST_SCORE, SCORE_FRAMES, SpeechEnd, SpokenWords
from vivavoce_engine.text.words import TextWord

FRAME_S, SAMPLES, OFFSET_S = 0.08, 1920, -0.045
JUMPS = np.log([1.0, 1.0, 0.3, 0.1])


@dataclass(frozen=True)
class Said:
    """Scores and samples of an utterance. `scores` [frames, tokens + 1] float32 are those of frames 1, 2, ..."""

    scores: NDArray[np.float32]
    pcm: NDArray[np.float32]
    words: list[TextWord]

    @property
    def frames(self) -> int:
        return len(self.scores)

    @property
    def tokens(self) -> int:
        return self.scores.shape[1] - 1

    def window(self, step: int, first: int) -> NDArray[np.float32]:
        window = np.full(WINDOW, -np.inf, np.float32)
        part = self.scores[step, first : first + WINDOW]
        window[: len(part)] = part
        return window


def words_for(tokens: int, rng: np.random.Generator) -> list[TextWord]:
    """Words of one to three tokens, some with a sign behind them, which has a token of its own."""
    words, token = list[TextWord](), 0
    while token < tokens:
        end = min(tokens, token + int(rng.integers(1, 4)))
        sign = bool(rng.random() < 0.3)
        words.append(TextWord(10 * token, 10 * end - 1, token, end, sign))
        token = end + sign
    return words


def utterance(seed: int, tokens: int, frames_per_token: float = 2.5) -> Said:
    """Scores that follow the text with noise, and samples with silences."""
    rng = np.random.default_rng(seed)
    frames = max(2, round(tokens * frames_per_token))
    scores = rng.normal(0.0, 1.0, (frames, tokens + 1))
    at = np.minimum(np.sort(rng.uniform(0, tokens + 1, frames)).astype(int), tokens)
    scores[np.arange(frames), at] += 7.0
    loudness = np.repeat(rng.choice([0.0, 0.3], frames * 4, p=[0.3, 0.7]), SAMPLES // 4)
    pcm = loudness * rng.uniform(-1.0, 1.0, frames * SAMPLES)
    return Said(scores.astype(np.float32), pcm.astype(np.float32), words_for(tokens, rng))


class Speaking:
    """An utterance that is fed step by step, and whose samples are given in pieces."""

    def __init__(self, said: Said, ends: SpeechEnd = "ended") -> None:
        self.said = said
        self.ends = ends
        self.words = SpokenWords(TextPath(), FRAME_S, OFFSET_S)
        self.heard: list[WordTime] = []
        self.sent = 0

    @property
    def step(self) -> int:
        return self.words.path.frames

    def window(self) -> NDArray[np.float32]:
        return self.said.window(self.step, self.words.path.window_from(self.step))

    def send(self, frames: int) -> tuple[WordTime, ...]:
        end: SpeechEnd = self.ends if self.sent + frames == self.said.frames else "open"
        pcm = self.said.pcm[self.sent * SAMPLES : (self.sent + frames) * SAMPLES]
        self.sent += frames
        return self.words.add(pcm, frames, self.said.words, end)


def streamed(utterances: list[Said], seed: int, ends: SpeechEnd = "ended") -> list[list[WordTime]]:
    """The words of several utterances that share the steps, with gaps, and whose samples come in random pieces."""
    rng = np.random.default_rng(seed)
    speaking = [Speaking(said, ends) for said in utterances]
    while any(each.sent < each.said.frames for each in speaking):
        going = [each for each in speaking if each.step < each.said.frames and rng.random() < 0.8]
        if going:
            scores = np.array([each.window() for each in going])
            feed([each.words.path for each in going], scores, [each.said.tokens + 1 for each in going])
        for each in speaking:
            ready = each.step - each.sent
            if ready and (each.step == each.said.frames or rng.random() < 0.4):
                frames = int(rng.integers(1, ready + 1))
                if each.sent + frames == each.said.frames:
                    each.words.path.finish(each.said.tokens)
                each.heard += each.send(frames)
    return [each.heard for each in speaking]


# ---- the same at once, written plainly


def starts_at_once(said: Said) -> tuple[list[float], list[int], list[float]]:
    """Frame in which each token begins, first frame of each, and log weight of each frame's token."""
    frames, tokens = said.frames, said.tokens
    weights = np.zeros((frames + 1, tokens + 1))
    weights[0, 0] = 1.0
    best: list[dict[int, float]] = [{0: 0.0}]
    back: list[dict[int, int]] = [{}]
    path: list[int] = []

    def trace(since: int, to: int) -> int:
        token = max(best[since], key=lambda each: (best[since][each], -each))
        for frame in range(since, to, -1):
            token = back[frame][token]
        return token

    for frame in range(1, frames + 1):
        settled = path[frame - 4] if frame >= 4 else 0
        first = max(0, settled - BEHIND)
        window = said.scores[frame - 1, first : first + WINDOW].astype(np.float64)
        part = np.exp(window - window.max())
        weights[frame, first : first + len(window)] = part / part.sum()
        scores, origins = dict[int, float](), dict[int, int]()
        for token in range(first, first + len(window)):
            come = [(best[-1][token - jump] + JUMPS[jump], jump) for jump in range(4) if token - jump in best[-1]]
            come = [each for each in come if token - each[1] >= first]
            if come:
                score, jump = max(come, key=lambda each: (each[0], -each[1]))
                scores[token] = score + np.log(weights[frame, token] + EPS)
                origins[token] = token - jump
        best.append(scores)
        back.append(origins)
        if frame >= 2:
            path.append(max(path[-1] if path else 0, trace(frame, frame - 2)))
    for frame in range(len(path), frames + 1):
        path.append(max(path[-1] if path else 0, trace(frames, frame)))
    starts, steps = [0.0], [0]
    for token in range(1, tokens + 1):
        step = next((frame for frame, at in enumerate(path) if at >= token), frames + 1)
        near = range(max(0, step - 2), min(frames + 1, step + 2))
        starts.append(max(starts[-1], near.start + sum(weights[frame, :token].sum() for frame in near)))
        steps.append(step)
    return starts, steps, [float(np.log(weights[frame, at] + EPS)) for frame, at in enumerate(path)]


def parts_that_sound(pcm: NDArray[np.float32]) -> list[bool]:
    level = 10 * np.log10((pcm.reshape(-1, SAMPLES // 8).astype(np.float64) ** 2).mean(1) + 1e-9)
    return list(level > np.maximum(np.maximum.accumulate(level), -20) - 30)


def quiet(on: list[bool], start: float, end: float, least: int) -> list[tuple[int, int]]:
    first, last = max(0, int(start * 100 + 1e-4)), min(len(on), int(end * 100 + 1e-4))
    edges = [at for at in range(first, last + 1) if at in (first, last) or on[at] != on[at - 1]]
    found = [(a, b) for a, b in pairwise(edges) if a < b and not on[a]]
    return [(a, b) for a, b in found if b - a >= least]


def at_once(said: Said) -> list[WordTime]:
    starts, steps, log_weights = starts_at_once(said)
    begin = [max(0.0, start * FRAME_S - OFFSET_S) for start in starts]
    raw = [(begin[word.first_token], max(begin[word.end_token], begin[word.first_token] + 0.02)) for word in said.words]
    on, found, given, end_before = parts_that_sound(said.pcm), list[WordTime](), None, 0.0
    for number, word in enumerate(said.words):
        start, end = raw[number]
        if given is not None:
            at = int(given * 100 + 1e-4)
            while at < len(on) and not on[at] and (at + 1) / 100 <= end - 0.02:
                at += 1
            start = max(given, at / 100)
        elif number == 0 and True in on:
            start = min(on.index(True) / 100, end - 0.02)
        start = max(start, end_before)
        end = max(end, start + 0.02)
        if number + 1 < len(raw):
            given, next_end = raw[number + 1]
            parted = word.sign or given - end > 0.06
            latest = min(given + 0.16, next_end - 0.02) if parted else given + 0.16
            gaps = quiet(on, max(start + 0.04, end - 0.08), latest, 5 if parted else 12)
            if gaps:
                gap = max(gaps, key=lambda each: each[1] - each[0])
                end, given = gap[0] / 100, gap[1] / 100
            elif not parted:
                end, given = end - 0.01, given + 0.01
        elif True in on:
            tails = quiet(on, max(start + 0.04, end - 0.08), len(on) / 100, 12)
            last = max(at for at, sounds in enumerate(on) if sounds) + 1
            end = max((tails[0][0] if tails else last) / 100, start + 0.02)
        end_before = min(end, len(on) / 100)
        near = log_weights[max(1, steps[word.first_token] - SCORE_FRAMES) : steps[word.end_token] + 1]
        sure = steps[word.first_token] <= said.frames and np.mean(near) >= LEAST_SCORE
        times = (min(start, end_before), end_before) if sure else (None, None)
        found.append(WordTime(word.start, word.end, *times))
    return found


def same(heard: list[WordTime], wanted: list[WordTime]) -> None:
    assert [(each.start, each.end) for each in heard] == [(each.start, each.end) for each in wanted]
    for each, other in zip(heard, wanted, strict=True):
        assert (each.start_s is None) == (other.start_s is None)
        if each.start_s is not None:
            assert (each.start_s, each.end_s) == pytest.approx((other.start_s, other.end_s), abs=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_random_pieces_and_batches_give_the_words_of_the_whole(seed: int) -> None:
    sizes = np.random.default_rng(seed).integers(1, 70, 4)
    utterances = [utterance(100 * seed + number, int(size)) for number, size in enumerate(sizes)]
    first, second = streamed(utterances, seed), streamed(utterances, seed + 1000)
    assert first == second
    for heard, said in zip(first, utterances, strict=True):
        same(heard, at_once(said))


def test_words_follow_each_other_inside_the_audio() -> None:
    for seed in range(8):
        said = utterance(seed, 40)
        [heard] = streamed([said], seed)
        times = [each for each in heard if each.start_s is not None and each.end_s is not None]
        assert len(times) > len(heard) / 2
        edges = [edge for each in times for edge in (each.start_s or 0.0, each.end_s or 0.0)]
        assert edges == sorted(edges)
        assert edges[0] >= 0.0
        assert edges[-1] <= said.frames * FRAME_S


def clear(tokens: int, frames_per_token: int) -> Said:
    """Each token is looked at for as many frames, and every frame sounds."""
    frames = tokens * frames_per_token
    scores = np.zeros((frames, tokens + 1), np.float32)
    scores[np.arange(frames), (np.arange(frames) + 1) // frames_per_token] = 20.0
    pcm = np.tile(np.array([0.5, -0.5], np.float32), frames * SAMPLES // 2)
    words = [TextWord(2 * token, 2 * token + 1, token, token + 1, sign=False) for token in range(tokens)]
    return Said(scores, pcm, words)


def test_a_clear_path_gives_the_frames_of_the_tokens() -> None:
    said = clear(6, 3)
    [heard] = streamed([said], 0)
    starts = [each.start_s for each in heard]
    assert starts == pytest.approx([0.0, *(3 * token * FRAME_S - OFFSET_S + EDGE_S for token in range(1, 6))], abs=0.01)
    assert heard[-1].end_s == pytest.approx(said.frames * FRAME_S)


def test_the_window_goes_along_a_text_of_thousands_of_tokens() -> None:
    said = clear(3000, 1)
    path = TextPath()
    for step in range(said.frames):
        feed([path], said.window(step, path.window_from(step))[None], [said.tokens + 1])
    path.finish(said.tokens)
    assert path.starts == pytest.approx(range(3001), abs=0.02)


def test_tokens_that_have_not_come_yet_change_nothing() -> None:
    """The scores of positions behind the text that is known are those of something else."""
    said = clear(40, 2)
    late = replace(said, scores=said.scores.copy())
    starts = list[list[float]]()
    for each in (said, late):
        path = TextPath()
        for step in range(said.frames):
            known = min(said.tokens + 1, (step + 1) // 2 + 3)
            if each is late:
                late.scores[step, known:] = 50.0
            tokens = known if each is late else said.tokens + 1
            feed([path], each.window(step, path.window_from(step))[None], [tokens])
        path.finish(said.tokens)
        starts.append(path.starts)
    assert starts[0] == pytest.approx(starts[1], abs=0.02)


def test_a_window_is_the_same_whether_the_last_step_has_ended_or_not() -> None:
    """A card begins a step before the last one has ended, a CPU after it."""
    said, path = clear(60, 1), TextPath()
    early = [path.window_from(0)]
    for step in range(said.frames):
        early.append(path.window_from(step + 1))
        assert path.window_from(step) == early[step]
        feed([path], said.window(step, path.window_from(step))[None], [said.tokens + 1])
    assert early[-1] > 40


def test_times_are_unknown_where_the_attention_is_lost() -> None:
    said = clear(60, 3)
    lost = replace(said, scores=said.scores.copy())
    lost.scores[60:120] = 0.0
    [heard] = streamed([lost], 1)
    unknown = [each.start // 2 for each in heard if each.start_s is None]
    assert unknown
    assert min(unknown) >= 18
    assert max(unknown) <= 46
    assert all((each.start_s is None) == (each.end_s is None) for each in heard)
    [heard] = streamed([said], 1)
    assert all(each.start_s is not None for each in heard)


def test_words_that_the_speech_does_not_reach_are_unknown() -> None:
    said = clear(30, 3)
    cut = replace(said, scores=said.scores[:45], pcm=said.pcm[: 45 * SAMPLES])
    [heard] = streamed([cut], 2)
    assert [each.start_s is None for each in heard] == [False] * 16 + [True] * 14


def test_words_that_a_cut_leaves_without_their_end_are_not_told() -> None:
    said = clear(30, 3)
    whole = streamed([said], 2)[0]
    for frames in (44, 45, 46, 47):
        cut = replace(said, scores=said.scores[:frames], pcm=said.pcm[: frames * SAMPLES])
        [heard] = streamed([cut], 2, "cut")
        # The token behind the 15th word begins in frame 45, and is heard 45 ms later.
        assert len(heard) == (15 if frames >= 46 else 14)
        same(heard[:14], whole[:14])
        assert all(each.end_s is not None and each.end_s <= frames * FRAME_S for each in heard)


def test_a_word_comes_with_the_piece_that_settles_it() -> None:
    said = clear(12, 3)
    speaking, counts = Speaking(said), list[int]()
    for step in range(said.frames):
        feed([speaking.words.path], speaking.window()[None], [said.tokens + 1])
        if step == said.frames - 1:
            speaking.words.path.finish(said.tokens)
        counts.append(len(speaking.send(1)))
    assert sum(counts) == 12
    # A silence behind the edge would have to begin in the two frames that are waited for.
    assert [step for step, count in enumerate(counts) if count][:-1] == [3 * token + 2 for token in range(1, 11)]
