"""The fit of a transcript and a recording: how much likelier its codes are with that text than without one.

The talker reads the text and is forced to speak the recording's frames. The fit is the mean over the frames of
log p(code 0 | text) - log p(code 0 | no text), in nats. It is above 0 where the text helps to foresee the codes, and
below where it misleads. Torch-free: a runner gives the probabilities. Where a speech recognizer has heard the
recording, the share in which its words differ from the transcript's judges instead. LOG.md has the figures behind
LEAST_FIT and MOST_WRONG.
"""

import re
import unicodedata
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.errors import Rejected
from vivavoce_engine.request import SpokenContext, UtteranceOptions, VoiceReference
from vivavoce_engine.text.prompt import Prompt, TextFrontend

LEAST_FIT = 0.65
"""Fit, in nats a frame, below which a transcript is most likely of another recording."""
MOST_WRONG = 0.35
"""Share of the words, of the longer of transcript and hearing, in which those of one recording differ at most."""
LEAST_WORDS = 4
"""Words that one of the two must have. Of fewer, a single one that is misheard would be too large a share."""
TOLD_CHARS = 80
"""Most characters of what was heard that a message repeats."""
SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of scripts that write no space between words: Thai, Lao, Burmese, Khmer, kana and Chinese characters."""
WORD = re.compile(f"[{SPACELESS}]|[^\\W_{SPACELESS}]+")
"""A word, or one such character."""
NUMBERS = frozenset(
    WORD.findall(
        "zero oh one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
        " seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million"
        " billion first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth"
        " fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth thirtieth"
        " 零\u3007一二三四五六七八九十百千万亿"
    )
)
"""Numbers in words, in English and Chinese. They are not compared, nor are digits: people and recognizers mix them."""
APOSTROPHES = re.compile("['\u2019\u02bc]")
NO_TEXT = "."
"""Text that says nothing, in every language. A prompt needs one."""
MAX_TOKENS_A_FRAME = 3
"""Most text tokens a frame of 80 ms of a transcript that is scored. Nobody speaks as fast, and it bounds the work."""
MAX_TOKENS_BESIDE = 32
"""Tokens that a transcript of a short recording may have beyond that."""
NO_FIT = -10.0
"""Fit of a transcript that is too long to be spoken in its recording."""


class Forcing(Protocol):
    """A loaded talker that is forced to speak known frames. One thread beside the engine's calls it."""

    def log_probabilities(self, prompt: Prompt) -> NDArray[np.float32]:
        """Natural logarithms of the probabilities of code 0 [frames + 1, vocabulary] float32.

        Row f is what the talker expects in place of frame f of the prompt's conditioning codes. The last row is what
        it expects behind them.
        """
        ...


class TranscriptJudge:
    """Measures the fit of references of one checkpoint."""

    def __init__(self, text: TextFrontend, forcing: Forcing, max_context: int) -> None:
        """`max_context` is the length of the talker's cache, in positions."""
        self._text, self._forcing, self._max_context = text, forcing, max_context

    def fit(self, reference: VoiceReference) -> float:
        """The fit of a reference's text and codes, in nats a frame. Both are there.

        Raises:
            Rejected: the checkpoint cannot speak with this reference, or it is too long for the talker.
        """
        assert reference.codes is not None, "a transcript needs a recording"
        return self.fit_of(UtteranceOptions(reference=VoiceReference(reference.embedding)), reference)

    def fit_of(self, voice: UtteranceOptions, spoken: VoiceReference) -> float:
        """The fit of the text and codes of `spoken`, if the voice of the options says them. Raises as `fit`."""
        assert spoken.codes is not None
        tokens = self._tokens(spoken.text)
        if too_long(len(tokens), len(spoken.codes)):
            return NO_FIT
        with_text, without = (self._scores(voice, ids, spoken.codes) for ids in (tokens, self._tokens(NO_TEXT)))
        return float(np.mean(with_text - without))

    def _tokens(self, text: str) -> list[int]:
        live = self._text.live_text()
        return [*live.append(text), *live.close()]

    def _scores(self, voice: UtteranceOptions, tokens: list[int], codes: NDArray[np.int16]) -> NDArray[np.float64]:
        """Logarithms of the probabilities of each frame's code 0 [frames], the whole text read before."""
        forced = UtteranceOptions(
            speaker=voice.speaker,
            language=voice.language,
            instructions=voice.instructions,
            reference=voice.reference,
            context=SpokenContext("", codes),
        )
        prompt = self._text.build(forced, tokens, complete=True)
        if prompt.prefill_tokens > self._max_context:
            message = f"the recording and ref_text take {prompt.prefill_tokens} of {self._max_context} positions"
            raise Rejected("ref_text", message)
        found = self._forcing.log_probabilities(prompt)
        assert len(found) == len(codes) + 1
        scores: NDArray[np.float64] = found[np.arange(len(codes)), codes[:, 0]].astype(np.float64)
        return scores


def is_mismatch(reference: VoiceReference) -> bool:
    """True if the reference's text is most likely not what is said in its recording."""
    if reference.hearing is not None:
        return reference.hearing.wrong > MOST_WRONG
    return reference.text_fit is not None and reference.text_fit < LEAST_FIT


def mismatch_message(reference: VoiceReference) -> str:
    """The sentence about a reference of which that is true."""
    hearing = reference.hearing
    if hearing is not None:
        more = " ..." if len(hearing.text) > TOLD_CHARS else ""
        heard = f"hears {hearing.text[:TOLD_CHARS] + more!r}, where" if hearing.text else "found that"
        told = f"a speech recognizer {heard} {hearing.wrong:.0%} of the words differ"
    else:
        assert reference.text_fit is not None
        told = f"their fit is {reference.text_fit:.1f}, and that of a transcript at least {LEAST_FIT:g}"
    return (
        f"ref_text is most likely not what is said in the recording: {told}; a clone of such a pair may say other"
        " words, or not end"
    )


def words_wrong(text: str, heard: str) -> float:
    """The share of words in which two texts differ: those to replace, insert or delete, of the longer one's.

    0 for the same words, whatever their case, punctuation and numbers, and 1 if nothing is in common.
    """
    one, other = words_of(text), words_of(heard)
    longer = max(len(one), len(other))
    return edits(one, other) / longer if longer else 0.0


def can_compare(text: str, heard: str) -> bool:
    """True if there are enough words to tell by them whether both are of one recording."""
    return max(len(words_of(text)), len(words_of(heard))) >= LEAST_WORDS


def words_of(text: str) -> list[str]:
    """The words of a text that are compared."""
    found = WORD.findall(APOSTROPHES.sub("", unicodedata.normalize("NFKC", text)).casefold())
    return [word for word in found if word not in NUMBERS and not any(sign.isdigit() for sign in word)]


def edits(one: list[str], other: list[str]) -> int:
    """The Levenshtein distance of two lists."""
    numbers = {word: number for number, word in enumerate(dict.fromkeys([*one, *other]))}
    columns = np.array([numbers[word] for word in other], np.int64)
    steps = np.arange(len(other) + 1)
    row = steps
    for done, word in enumerate(one, 1):
        best = np.concatenate(([done], np.minimum(row[1:] + 1, row[:-1] + (columns != numbers[word]))))
        row = np.minimum.accumulate(best - steps) + steps  # insertions
    return int(row[-1])


def too_long(tokens: int, frames: int) -> bool:
    """True if this number of text tokens cannot be spoken in this number of frames."""
    return tokens > MAX_TOKENS_BESIDE + MAX_TOKENS_A_FRAME * frames
