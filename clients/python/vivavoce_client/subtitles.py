"""Subtitles from the times of words: SubRip (SRT) and WebVTT, whose words have timestamps of their own.

The rule, which `clients/web/vivavoce_web/subtitles.js` has too:

A cue has at most two lines of 42 columns (an East Asian character takes two), and lasts at most 7 s. It ends at the end
of a sentence, at a pause of 0.7 s, and where another voice begins. A longer sentence is cut behind the last sign or
pause of 0.25 s in the second half of what fits; without one where the cue is full, or in the middle if little is left.
A cue of less than 1 s joins the next one if both fit one cue, else it stays for 1 s where the next cue or the end of
the audio lets it. Words without times share the time between their neighbours by their lengths, and get no timestamps
of their own.

A point ends no sentence behind a title ("Dr."), or where a small letter follows. Behind another abbreviation, a single
letter ("J.", "U.S.") or a number of one or two digits it ends one only where a pause of 0.25 s follows: the voice tells
what the letters do not.
"""

# ruff: noqa: RUF001 - the signs of other scripts are meant

import bisect
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from vivavoce_client.words import SpokenTurn, SpokenWord

LINE_COLUMNS = 42
LINES = 2
CUE_S = 7.0
SHORT_S = 1.0
PAUSE_S = 0.7
CLAUSE_PAUSE_S = 0.25
CHARACTER_S = 0.06
"""Time of a character behind the last word whose time is known, as far as the audio goes."""
BLANK = re.compile("[\\s\\x00-\\x1f\\x7f-\\x9f\\ufeff]+")
CLOSERS = "\"'”’»)」』】》"
BEHIND = re.compile(f"^[.,;:!?…%。，、；：！？）—–{CLOSERS}-]*")
"""Signs that belong to the word in front of them."""
BEFORE = re.compile("[\"'“‘«(¿¡（「『【《]*$")
SENTENCE = re.compile(f"[.!?…。！？][{CLOSERS}]*$")
CLAUSE = re.compile(f"[,;:—–，、；：][{CLOSERS}]*$")
OPENERS = "\"'“‘«(¿¡"
LONE_POINT = re.compile(f"^[{OPENERS}]*(.+)\\.$")
"""A word that is not in quotes or brackets to its end, in front of its point."""
TITLES = re.compile(
    "dr|mr|mrs|ms|mx|prof|hon|rev|capt|col|gen|lt|sgt|maj|gov|messrs|mme|mlle|hr|fr|dott|sig|sra|dra|st|г|гг|ул|им|проф"
)
"""Abbreviations that a name follows, without their point and in small letters."""
ABBREVIATIONS = re.compile(
    "[0-9]{1,2}|abs|ave|bzw|ca|cf|co|corp|dept|dipl|eds|eq|est|etc|evtl|fig|ft|ggf|inc|ing|inkl|jr|ltd|max|min|mio|mrd"
    "|mt|nr|nos|op|pp|resp|sen|sog|sr|str|tel|usw|vgl|vol|vs|zzgl|jan|feb|apr|jun|jul|aug|sept|oct|nov|dec"
    "|др|млн|млрд|руб|стр|тыс"
)
"""Numbers and abbreviations behind which a sentence may end."""
WIDE = re.compile(
    "[\\u1100-\\u115f\\u2e80-\\ua4cf\\uac00-\\ud7a3\\uf900-\\ufaff\\ufe30-\\ufe4f\\uff00-\\uff60\\uffe0-\\uffe6]"
)
STRETCH = re.compile("[^，、；：。！？]*[，、；：。！？]+|[^，、；：。！？]+")
SRT_MARKS = re.compile("(--(?=>)|<(?=[A-Za-z/])|[{](?=\\\\))")
"""Signs in which a player would read an arrow, a tag or an override. SubRip has no escapes."""
NO_WIDTH = "\u2060"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A word with its signs, and `gap`, what stands in front of it: a blank or nothing."""

    gap: str
    text: str
    start_s: float
    end_s: float
    is_known: bool = True
    turn: int = -1
    voice: str | None = None


_Cue = list[_Piece]


def srt(
    words: Iterable[SpokenWord], text: str = "", turns: Sequence[SpokenTurn] = (), audio_s: float = math.inf
) -> str:
    """Subtitles as a SubRip file. `text` is the text that was sent, from which the signs come.

    `audio_s` is the length of the audio, behind which no cue is kept on the screen.
    """
    cues = _cues(_pieces(tuple(words), text, turns, audio_s), audio_s)
    return "".join(f"{at}\n{_times(cue, ',')}\n{_srt_payload(cue)}\n\n" for at, cue in enumerate(cues, 1))


def vtt(
    words: Iterable[SpokenWord],
    text: str = "",
    turns: Sequence[SpokenTurn] = (),
    audio_s: float = math.inf,
    word_times: bool = True,
) -> str:
    """Subtitles as a WebVTT file, with the arguments of `srt`. `word_times` false leaves out the times of words."""
    cues = _cues(_pieces(tuple(words), text, turns, audio_s), audio_s)
    if not word_times:
        cues = [[replace(piece, is_known=False) for piece in cue] for cue in cues]
    return "WEBVTT\n\n" + "".join(f"{_times(cue, '.')}\n{_vtt_payload(cue)}\n\n" for cue in cues)


# ---- words --------------------------------------------------------------------------------------------------------


def _pieces(words: tuple[SpokenWord, ...], text: str, turns: Sequence[SpokenTurn], audio_s: float) -> list[_Piece]:
    """The words with their signs, turns and times, all of which are known or estimated."""
    if any(text[word.text_start : word.text_end] != word.word for word in words):
        text = ""  # of a dialogue for example: the places are those of another text
    written = [_Piece(gap, sign, 0, 0) for gap, sign in _written(words, text)]
    timed = [
        replace(piece, start_s=word.start_s or 0, end_s=word.end_s or 0, is_known=word.start_s is not None)
        for piece, word in zip(written, words, strict=True)
    ]
    starts_s = [turn.start_s for turn in turns]
    return [_in_turn(part, turns, starts_s) for piece in _with_times(timed, audio_s) for part in _chopped(piece)]


def _written(words: tuple[SpokenWord, ...], text: str) -> Iterator[tuple[str, str]]:
    """The gap in front of each word, and the word with its signs."""
    gap, opening = "", ""
    for at, word in enumerate(words):
        if at == 0:
            opening = _found(BEFORE, text[: word.text_start])
        following = words[at + 1] if at + 1 < len(words) else None
        between = text[word.text_end : following.text_start if following else len(text)]
        closing = _found(BEHIND, between)
        yield gap, BLANK.sub(" ", opening + word.word + closing).strip()
        between = between.removeprefix(closing)
        opening = _found(BEFORE, between)
        gap = " " if between != opening or not text else ""


def _found(signs: re.Pattern[str], text: str) -> str:
    found = signs.search(text)
    return found.group() if found else ""


def _with_times(pieces: list[_Piece], audio_s: float) -> list[_Piece]:
    """Estimates unknown times between their neighbours. No piece begins before another ends."""
    at, clock_s = 0, 0.0
    made: list[_Piece] = []
    while at < len(pieces):
        until = next((later for later in range(at, len(pieces)) if pieces[later].is_known), len(pieces))
        chars = sum(len(piece.text) for piece in pieces[at:until])
        end_s = pieces[until].start_s if until < len(pieces) else min(clock_s + chars * CHARACTER_S, audio_s)
        step_s = max(0.0, end_s - clock_s) / max(1, chars)
        for piece in pieces[at:until]:
            start_s, clock_s = clock_s, clock_s + len(piece.text) * step_s
            made.append(replace(piece, start_s=start_s, end_s=clock_s))
        if until < len(pieces):
            piece = pieces[until]
            start_s = max(clock_s, piece.start_s)
            clock_s = max(start_s, piece.end_s)
            made.append(replace(piece, start_s=start_s, end_s=clock_s))
        at = until + 1
    return made


def _in_turn(piece: _Piece, turns: Sequence[SpokenTurn], starts_s: list[float]) -> _Piece:
    # A millisecond is what the server rounds by.
    begun = bisect.bisect_right(starts_s, piece.start_s + 0.001)
    return replace(piece, turn=turns[begun - 1].index, voice=turns[begun - 1].voice) if begun else piece


def _chopped(piece: _Piece) -> list[_Piece]:
    """Pieces that fit a line: text without blanks, such as Chinese, is cut behind its signs and by its length."""
    if _width(piece.text) <= LINE_COLUMNS:
        return [piece]
    parts: list[str] = []
    for stretch in STRETCH.findall(piece.text):
        part = ""
        for char in stretch:
            if _width(part + char) > LINE_COLUMNS:
                parts.append(part)
                part = ""
            part += char
        parts.append(part)
    char_s = (piece.end_s - piece.start_s) / len(piece.text)
    made: list[_Piece] = []
    start_s = piece.start_s
    for at, part in enumerate(parts):
        end_s = start_s + len(part) * char_s
        made.append(replace(piece, text=part, start_s=start_s, end_s=end_s))
        if at:
            made[-1] = replace(made[-1], gap="", is_known=False)
        start_s = end_s
    return made


# ---- cues ---------------------------------------------------------------------------------------------------------


def _cues(pieces: list[_Piece], audio_s: float) -> list[_Cue]:
    whole = [cue for sentence in _sentences(pieces) for cue in _cut(sentence)]
    joined: list[_Cue] = []
    for cue in whole:
        last = joined[-1] if joined else None
        if (
            last
            and last[-1].end_s - last[0].start_s < SHORT_S
            and not _is_break(last[-1], cue[0])
            and _fits(last + cue)
        ):
            joined[-1] = last + cue
        else:
            joined.append(cue)
    limits_s = [*(cue[0].start_s for cue in joined[1:]), audio_s]
    return [_lengthened(cue, limit_s) for cue, limit_s in zip(joined, limits_s, strict=False)]


def _is_break(piece: _Piece, following: _Piece) -> bool:
    return following.start_s - piece.end_s >= PAUSE_S or piece.turn != following.turn


def _sentences(pieces: list[_Piece]) -> Iterator[_Cue]:
    sentence: _Cue = []
    for piece in pieces:
        if sentence and (_ends_sentence(sentence[-1], piece) or _is_break(sentence[-1], piece)):
            yield sentence
            sentence = []
        sentence.append(piece)
    if sentence:
        yield sentence


def _ends_sentence(piece: _Piece, following: _Piece) -> bool:
    if not SENTENCE.search(piece.text):
        return False
    lone = LONE_POINT.search(piece.text)
    if lone is None or "." in lone[1][-1:]:
        return True
    word = lone[1].lower()
    if TITLES.fullmatch(word) or unicodedata.category(following.text.lstrip(OPENERS)[:1] or " ") == "Ll":
        return False
    letters = word.split(".")
    may_go_on = ABBREVIATIONS.fullmatch(word) or all(len(each) == 1 for each in letters)
    return not may_go_on or _pauses(piece, following)


def _pauses(piece: _Piece, following: _Piece) -> bool:
    return following.start_s - piece.end_s >= CLAUSE_PAUSE_S


def _cut(sentence: _Cue) -> Iterator[_Cue]:
    while not _fits(sentence):
        most = 1
        while _fits(sentence[: most + 1]):
            most += 1
        ends = [end for end in range(most, most // 2, -1) if _ends_clause(sentence[end - 1], sentence[end])]
        left = len(sentence) - most
        end = ends[0] if ends else (len(sentence) + 1) // 2 if left < most // 2 else most
        yield sentence[:end]
        sentence = sentence[end:]
    yield sentence


def _ends_clause(piece: _Piece, following: _Piece) -> bool:
    return bool(CLAUSE.search(piece.text)) or _pauses(piece, following)


def _fits(cue: _Cue) -> bool:
    # A single piece is a line, however long it lasts.
    if len(cue) == 1:
        return True
    return cue[-1].end_s - cue[0].start_s <= CUE_S and all(_width(_plain(line)) <= LINE_COLUMNS for line in _lines(cue))


def _lengthened(cue: _Cue, limit_s: float) -> _Cue:
    end_s = max(cue[-1].end_s, min(cue[0].start_s + SHORT_S, limit_s))
    return [*cue[:-1], replace(cue[-1], end_s=end_s)]


# ---- lines --------------------------------------------------------------------------------------------------------


def _width(text: str) -> int:
    return len(text) + len(WIDE.findall(text))


def _plain(line: _Cue) -> str:
    return "".join((piece.gap if at else "") + piece.text for at, piece in enumerate(line))


def _lines(cue: _Cue) -> list[_Cue]:
    """One line, or the two whose wider one is least wide."""
    if len(cue) == 1 or _width(_plain(cue)) <= LINE_COLUMNS:
        return [cue]
    halves = [[cue[:at], cue[at:]] for at in range(1, len(cue))]
    return min(halves, key=lambda lines: max(_width(_plain(line)) for line in lines))


def _payload(cue: _Cue, shown: Callable[[_Piece], str]) -> str:
    return "\n".join(
        "".join((piece.gap if at else "") + shown(piece) for at, piece in enumerate(line)) for line in _lines(cue)
    )


def _times(cue: _Cue, point: str) -> str:
    return f"{_clock(_ms(cue[0].start_s), point)} --> {_clock(_end_ms(cue), point)}"


def _ms(seconds: float) -> int:
    return int(seconds * 1000 + 0.5)


def _end_ms(cue: _Cue) -> int:
    # A cue without length is never shown.
    return max(_ms(cue[-1].end_s), _ms(cue[0].start_s) + 1)


def _clock(ms: int, point: str) -> str:
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"


def _srt_payload(cue: _Cue) -> str:
    return SRT_MARKS.sub(rf"\1{NO_WIDTH}", _payload(cue, lambda piece: piece.text))


def _vtt_payload(cue: _Cue) -> str:
    last_ms, end_ms = _ms(cue[0].start_s), _end_ms(cue)

    def shown(piece: _Piece) -> str:
        nonlocal last_ms
        text = _escaped(piece.text)
        # A timestamp lies inside its cue, and behind the one before.
        if not piece.is_known or not last_ms < _ms(piece.start_s) < end_ms:
            return text
        last_ms = _ms(piece.start_s)
        return f"<{_clock(last_ms, '.')}>{text}"

    voice = _escaped(BLANK.sub(" ", cue[0].voice or ""))
    return (f"<v {voice}>" if voice else "") + _payload(cue, shown)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
