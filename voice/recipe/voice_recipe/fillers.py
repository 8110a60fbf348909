"""Fillers of templates: written numbers, dates, sums, codes and signs, drawn at random."""

# Signs that look like others stand here on purpose.
# ruff: noqa: RUF001

from __future__ import annotations

from collections.abc import Callable
from random import Random

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
SHORT_MONTHS = (
    "Jan.", "Feb.", "Mar.", "Apr.", "Aug.", "Sept.", "Oct.", "Nov.", "Dec.", "Jan", "Feb", "Mar", "Apr", "Aug", "Sept",
    "Oct", "Nov", "Dec",
)  # fmt: skip
UNITS = {
    "distance": ("km", "m", "cm", "mm", "mi", "ft", "in.", "yd", "miles", "meters", "kilometers", "feet"),
    "weight": ("kg", "g", "mg", "lb", "lbs", "oz", "kilograms", "grams", "pounds", "tons"),
    "volume": ("L", "ml", "mL", "gal", "liters", "cups", "tsp", "tbsp", "pints"),
    "speed": ("km/h", "mph", "m/s", "kph"),
    "data": ("GB", "MB", "KB", "TB", "Mbps", "Gbps"),
    "power": ("W", "kW", "V", "mAh", "kWh", "Hz", "kHz", "MHz", "GHz", "dB", "MW"),
    "area": ("m²", "sq ft", "km²", "acres", "ft²"),
    "span": ("s", "ms", "min", "sec", "hrs", "h", "mins", "minutes", "seconds", "hours"),
}
FRACTIONS = ("1/2", "1/3", "2/3", "1/4", "3/4", "1/5", "2/5", "3/5", "1/8", "3/8", "5/8", "7/8", "1/10", "½", "¼", "¾")
TIME_SUFFIXES = ("", "", "", " a.m.", " p.m.", " am", " pm", " AM", " PM", "am", "pm", "AM", "PM")
TOP_DOMAINS = ("com", "org", "net", "io", "co.uk", "de", "edu", "gov", "dev", "app", "info", "fr", "ca")
ROMAN = (
    "II", "III", "IV", "VI", "VII", "VIII", "IX", "XI", "XII", "XIII", "XIV", "XV", "XVI", "XVII", "XVIII", "XIX",
    "XX", "XXI",
)  # fmt: skip
NAME_PARTS = (
    "north", "blue", "river", "green", "happy", "cloud", "stone", "fast", "home", "data", "star", "book", "music",
    "garden", "travel", "news", "photo", "school", "bike", "coffee", "market", "health", "world", "code", "light",
    "paper", "bridge", "silver", "city", "ocean", "maple",
)  # fmt: skip
"""Words of which addresses are made."""
EMOJI = (
    *"😀😂😊😍😎😢😡👍👏🙏🎉🔥💯✨❤🚀🐶🐱🍕☕🌞🌧⚽🎵📚✅❌⭐🤔🙈🥳😅💪👀🌍🎂🍎🚗✈",
    "👍🏽", "👨‍👩‍👧", "❤️", "🇬🇧", "🇺🇸", "☺️", "🤷‍♀️", "✌️",
)  # fmt: skip
EMOTICONS = (":)", ":-)", ";)", ":D", ":(", "<3", ":-(", ":P", "^^", "xD", ";-)")


def suffix(n: int) -> str:
    """The ending of an ordinal number in digits: 21 → "st"."""
    return "th" if 10 < n % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")


def grouped(n: int, r: Random) -> str:
    return f"{n:,}" if n >= 1000 and r.random() < 0.6 else str(n)


def number(r: Random) -> str:
    n = r.choice([r.randint(0, 20), r.randint(10, 99), r.randint(100, 999), r.randint(1000, 9999)])
    round_one = r.choice([1000, 2000, 5000, 10_000, 500, 50_000, 1_000_000, r.randint(10_000, 999_999)])
    return grouped(round_one if r.random() < 0.2 else n, r)


def large(r: Random) -> str:
    """A number of four to nine digits, with commas, or a decimal number with its magnitude."""
    if r.random() < 0.3:
        return f"{r.randint(1, 90)}.{r.randint(1, 9)} {r.choice(['million', 'billion', 'thousand'])}"
    least = int("1" + "0" * r.randint(3, 8))
    return f"{r.randint(least, 10 * least - 1):,}"


def year(r: Random) -> str:
    return str(r.choice([r.randint(1700, 1999), r.randint(1900, 1999), r.randint(2000, 2035)]))


def years(r: Random) -> str:
    """A decade, a span of years, an age before Christ."""
    start = r.randint(1600, 2015)
    return r.choice(
        [
            f"the {start // 10 * 10}s", f"the '{r.randint(2, 9)}0s", f"the ’{r.randint(2, 9)}0s",
            f"{start}–{start + r.randint(1, 30)}", f"{start}-{start + r.randint(1, 30)}", f"{r.randint(50, 900)} BC",
            f"AD {r.randint(50, 900)}", f"the mid-{start // 10 * 10}s", f"the early {start // 10 * 10}s", str(start),
        ]
    )  # fmt: skip


def clock(r: Random) -> str:
    hour, minute = r.randint(1, 12), r.choice([0, 15, 30, 45, r.randint(1, 59), r.randint(1, 9)])
    half = r.choice(TIME_SUFFIXES)
    if minute == 0 and r.random() < 0.6:
        return f"{hour}{half}" if half else f"{hour} o'clock"
    if r.random() < 0.15:
        return f"{r.randint(13, 23)}:{minute:02d}"
    return f"{hour}:{minute:02d}{half}"


def clock_span(r: Random) -> str:
    first, last = r.randint(1, 11), r.randint(2, 12)
    return r.choice(
        [
            f"{first}:00–{last}:30", f"{first}am–{last}pm", f"{first} to {last} p.m.", f"{first}:30-{last}:15",
            f"{first} a.m. to {last} p.m.", f"{first}–{last} pm",
        ]
    )  # fmt: skip


def date(r: Random) -> str:
    """A date in one of the ways in which people write it."""
    month, day, when = r.randint(1, 12), r.randint(1, 28), r.randint(1900, 2035)
    name, short = MONTHS[month - 1], r.choice(SHORT_MONTHS)
    return r.choice(
        [
            f"{name} {day}", f"{name} {day}{suffix(day)}", f"{name} {day}, {when}", f"the {day}{suffix(day)} of {name}",
            f"{day} {name} {when}", f"{short} {day}", f"{short} {day}{suffix(day)}", f"{short} {day}, {when}",
            f"{month}/{day}/{when}", f"{month:02d}/{day:02d}/{when}", f"{when}-{month:02d}-{day:02d}",
            f"{day:02d}.{month:02d}.{when}", f"{name} {when}", f"{name} {day}-{day + 2}",
        ]
    )  # fmt: skip


def money(r: Random) -> str:
    """A sum in dollars, pounds, euros, yen, cents, or with a magnitude."""
    small, cents = r.choice([r.randint(1, 20), r.randint(1, 99), r.randint(100, 999)]), r.choice([99, 50, 95, 5, 25])
    sign = r.choice("$$$$£€")
    return r.choice(
        [
            f"{sign}{small}", f"{sign}{small}.{cents:02d}", f"{sign}{small}.{r.randint(1, 99):02d}",
            f"{sign}{r.randint(1000, 99_999):,}", f"{sign}{r.randint(1000, 9999):,}.{cents:02d}",
            f"{sign}{r.randint(1, 90)}.{r.randint(1, 9)} {r.choice(['million', 'billion'])}",
            f"{sign}{r.randint(1, 900)}{r.choice('MBk')}", f"{r.randint(1, 99)}¢", f"¥{r.randint(1, 99) * 100}",
            f"{small} {r.choice(['dollars', 'euros', 'pounds'])}", f"${small}–${small + 50}", f"-${small}",
            f"${small}", f"{sign}0.{cents:02d}", f"US${small}",
        ]
    )  # fmt: skip


def percent(r: Random) -> str:
    return f"{r.randint(1, 100)}%" if r.random() < 0.75 else f"{r.randint(0, 99)}.{r.randint(1, 9)}%"


def decimal(r: Random) -> str:
    return f"{r.randint(0, 40)}.{r.randint(1, 99)}"


def ordinal(r: Random) -> str:
    n = r.choice([r.randint(1, 31), r.randint(1, 31), r.randint(32, 150), r.choice([100, 200, 500, 1000])])
    return f"{n}{suffix(n)}"


def fraction(r: Random) -> str:
    part = r.choice(FRACTIONS)
    return part if r.random() < 0.6 else f"{r.randint(1, 12)}{'' if part in '½¼¾' else ' '}{part}"


def phone(r: Random) -> str:
    area, office, line = r.randint(201, 989), r.randint(200, 999), r.randint(0, 9999)
    return r.choice(
        [
            f"{office}-{line:04d}", f"{area}-{office}-{line:04d}", f"({area}) {office}-{line:04d}",
            f"+1 {area} {office} {line:04d}", f"+44 20 {r.randint(1000, 9999)} {line:04d}",
            f"1-800-{office}-{line:04d}", f"{area}.{office}.{line:04d}",
        ]
    )  # fmt: skip


def version(r: Random) -> str:
    a, b, c = r.randint(0, 20), r.randint(0, 20), r.randint(0, 30)
    return r.choice([f"{a}.{b}", f"{a}.{b}.{c}", f"v{a}.{b}", f"v{a}", f"v{a}.{b}.{c}"])


def letters(r: Random, most: int = 3) -> str:
    """Capital letters without V, with which people write versions."""
    return "".join(r.choice("ABCDEFGHJKLMNPQRSTUWXYZ") for _ in range(r.randint(1, most)))


def code(r: Random) -> str:
    """A name of digits and letters: a room, a gate, a road, a flight."""
    n = r.randint(1, 99)
    return r.choice(
        [
            f"{letters(r, 1)}{n}", f"{n}{letters(r, 1)}", f"{letters(r, 1)}-{n}",
            f"{r.randint(100, 999)}{letters(r, 1)}", f"{letters(r, 2)}{r.randint(100, 999)}", f"{letters(r, 3)}-{n}",
        ]
    )  # fmt: skip


def measure(kind: str) -> Callable[[Random], str]:
    """A filler that makes a measure with a unit of a kind."""

    def made(r: Random) -> str:
        unit = r.choice(UNITS[kind])
        amount = r.choice([str(r.randint(2, 99)), str(r.randint(100, 900)), f"{r.randint(0, 20)}.{r.randint(1, 9)}"])
        return f"{amount}{'' if len(unit) < 4 and unit != 'in.' and r.random() < 0.35 else ' '}{unit}"

    return made


def degrees(r: Random) -> str:
    n = r.randint(-20, 110)
    return r.choice([f"{n}°C", f"{n} °C", f"{n}°F", f"{n}°", f"{n} degrees", f"{n}°C"])


def word_part(r: Random) -> str:
    return r.choice(NAME_PARTS)


def domain(r: Random) -> str:
    return word_part(r) + r.choice(["", word_part(r), "-" + word_part(r)]) + "." + r.choice(TOP_DOMAINS)


def web(r: Random) -> str:
    start = r.choice(["", "", "www.", "https://", "https://www.", "http://"])
    return start + domain(r) + r.choice(["", "", "/" + word_part(r), f"/{word_part(r)}/{word_part(r)}"])


def email(r: Random) -> str:
    first = r.choice(["info", "contact", "support", "sales", "hello", "jane", "tom", "anna", "mark", "office", "press"])
    return first + r.choice(["", "." + word_part(r), "_" + word_part(r), str(r.randint(1, 99))]) + "@" + domain(r)


def file_name(r: Random) -> str:
    ending = r.choice(["pdf", "txt", "docx", "jpg", "png", "csv", "zip", "py", "mp3", "json", "html"])
    return word_part(r) + r.choice(["", "_" + word_part(r), "-" + word_part(r)]) + "." + ending


def emoji(r: Random) -> str:
    picked = r.choice(EMOJI)
    said: str = r.choice([picked, picked, picked * r.randint(2, 3), r.choice(EMOJI) + r.choice(EMOJI)])
    return said


FILLERS: dict[str, Callable[[Random], str]] = {
    "small": lambda r: str(r.randint(0, 99)),
    "tiny": lambda r: str(r.randint(2, 12)),
    "number": number,
    "large": large,
    "year": year,
    "years": years,
    "time": clock,
    "timespan": clock_span,
    "date": date,
    "money": money,
    "percent": percent,
    "decimal": decimal,
    "ordinal": ordinal,
    "fraction": fraction,
    "phone": phone,
    "version": version,
    "code": code,
    "degrees": degrees,
    "web": web,
    "domain": domain,
    "email": email,
    "file": file_name,
    "tag": lambda r: "#" + "".join(word_part(r).capitalize() for _ in range(r.randint(1, 2))),
    "handle": lambda r: "@" + word_part(r) + r.choice(["", "_" + word_part(r), str(r.randint(1, 99))]),
    "emoji": emoji,
    "emoticon": lambda r: r.choice(EMOTICONS),
    "roman": lambda r: r.choice(ROMAN),
    "initial": lambda r: r.choice("BCDEFGHJKLMNPRSTW") + ".",
    "letters": lambda r: "".join(r.choice("BCDFGHJKLMNPQRSTVWXZ") for _ in range(r.randint(2, 4))),
    "letter": lambda r: r.choice("ABCDEFGHJKLMNOPQRSTUVWXYZ"),
    **{kind: measure(kind) for kind in UNITS},
}
