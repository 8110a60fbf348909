"""Stage capitals: English words in capitals become small letters, and abbreviations in capitals become letters.

"THE CAT SAT" is "The cat sat", "the FBI" is "the F B I". Capitals are a word if the dictionary has it. Several words in
capitals are shouted if one of them is a plain word: "DO IT NOW" has no letters, "our IT" has.
"""

import re
from collections.abc import Iterator

from vivavoce_text.profile import Context
from vivavoce_text.tables import dictionary_of, readings_of, words_of
from vivavoce_text.traced import Edit, Traced

CAPITALS = re.compile(r"[A-Z]{2}|[A-Z]\.|[a-z][A-Z]")
WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
IN_CAPITALS = re.compile(r"([A-Z]{2,}|I(?='))('(?:S|D|LL|T|RE|VE|M)|'?s)?")
DOTTED = re.compile(r"\b((?:[A-Z]\.){2,}|(?:[A-Z]\.)+[A-Z]\b)(?P<end>$)?")
INITIAL = re.compile(r"\b([A-Z])\.(?:(?=[A-Z][a-z])| (?=([A-Z][\w']*)))")
HYPHENATED = re.compile(r"-([A-Z]{2,})(?!\w)")
CAMEL = re.compile(r"(?<![\w.])[a-z]{2,}(?:[A-Z][a-z]+)+(?!\w)")
CAPITAL = re.compile(r"(?=[A-Z])")
MIXED = re.compile(r"(?<!\w)(?=[A-Za-z]*[A-Z]{2})(?=[A-Za-z]*[a-z])[A-Za-z]+(?!\w)")
INSIDE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z]{2})(?=[A-Z][a-z]{2})")
"""Joint of two words in a name. The last capital before a small letter begins the next word."""
VOWEL, CONSONANT = re.compile(r"[AEIOUY]"), re.compile(r"[^AEIOUY]")
FEWEST_LETTERS_OF_A_NAME = 6
"""Shortest unknown word in capitals that is said as a word, because no abbreviation in use is as long."""
ENDINGS = ("s", "es", "ed", "d", "ing", "er", "ly")


def apply(text: Traced, context: Context) -> Traced:
    if context.language != "en" or not CAPITALS.search(text.text):
        return text
    text = text.replaced(CAMEL, lambda match: CAPITAL.sub(" ", match[0]))
    if context.profile.letters != "as_written":
        text = text.replaced(DOTTED, lambda match: spelled(match[1]) + ("." if match["end"] is not None else ""))
        text = text.replaced(INITIAL, _initial).replaced(MIXED, _parted)
    return text.edited(_edits(text.text, context))


def spelled(word: str) -> str:
    """The letters of an abbreviation, with blanks between them."""
    return " ".join(char for char in word if char.isalpha())


def _initial(match: re.Match[str]) -> str | None:
    """A person's initial loses its dot. A dot before a word that opens sentences ends one."""
    if match[2] is None:
        return f"{match[1]} "
    return None if match[2] in words_of("en", "sentence_openers") else f"{match[1]} "


def _parted(match: re.Match[str]) -> str | None:
    """XMLHttpRequest → XML Http Request. A word that has a reading of its own stays whole."""
    return None if match[0] in readings_of("en", "sayings") else INSIDE.sub(" ", match[0])


def _edits(text: str, context: Context) -> Iterator[Edit]:
    words = list(WORD.finditer(text))
    shouted = _shouted(words)
    for word in words:
        starts = _starts_sentence(text, word.start(), context)
        if _is_prefix(word):
            new = word[0].capitalize() if starts else word[0].lower()
        else:
            new = _said(word, word.start() in shouted, starts, context)
        if new != word[0]:
            yield Edit(word.start(), word.end(), new)


def _said(word: re.Match[str], is_shouted: bool, starts: bool, context: Context) -> str:
    said = readings_of("en", "sayings").get(word[0])
    if said is not None:
        return said
    match = IN_CAPITALS.fullmatch(word[0])
    if match is None:
        is_article = word[0] == "A" and not word.string.startswith("-", word.end())
        return word[0].lower() if is_shouted and is_article and not starts else word[0]
    stem, ending = match[1], (match[2] or "").lower()
    if stem == "I":
        return stem + ending
    if ending == "'t" or _is_word(stem, is_shouted):
        return stem.capitalize() + ending if starts else stem.lower() + ending
    return word[0] if context.profile.letters == "as_written" else spelled(stem) + ending


def _is_prefix(word: re.Match[str]) -> bool:
    """True for NON in NON-TOXIC and NON-EU. The prefix alone would be an abbreviation."""
    behind = HYPHENATED.match(word.string, word.end())
    if behind is None or word[0] not in words_of("en", "prefixes"):
        return False
    return len(word[0]) > 2 or _is_word(behind[1], is_shouted=True)


def _shouted(words: list[re.Match[str]]) -> set[int]:
    """Starts of the words of runs in capitals that have two words or more, one of them plain."""
    shouted: set[int] = set()
    run: list[re.Match[str]] = []
    for word in [*words, None]:
        if word is not None and word[0].isupper():
            run.append(word)
            continue
        long = [member for member in run if len(member[0]) > 1]
        if len(run) > 1 and any(_is_word(member[0].partition("'")[0], is_shouted=False) for member in long):
            shouted.update(member.start() for member in run)
        run = []
    return shouted


def _is_word(word: str, is_shouted: bool) -> bool:
    """True if letters in capitals are said as a word."""
    if len(word) == 2:
        return word in words_of("en", "short_words") or (is_shouted and word in words_of("en", "shouted_words"))
    if not is_shouted and word in words_of("en", "spelled"):
        return False
    known, small = dictionary_of("en"), word.lower()
    if small in known or any(small.endswith(end) and small[: -len(end)] in known for end in ENDINGS):
        return True
    return len(word) >= FEWEST_LETTERS_OF_A_NAME and _can_be_said(word)


def _can_be_said(word: str) -> bool:
    """True if no more than four vowels or four consonants follow each other, and both are there."""
    return max(map(len, VOWEL.split(word))) <= 4 and 1 <= max(map(len, CONSONANT.split(word))) <= 4


def _starts_sentence(text: str, at: int, context: Context) -> bool:
    before = text[:at].rstrip(" \"'(")
    return context.starts_line if not before else before[-1] in ".!?"
