"""Addresses as they are said: parts of host names, paths, files and mail addresses."""

import re
from functools import cache
from urllib.parse import unquote

from vivavoce_text.tables import rows_of

SIGN = re.compile(r"[./\\\-_@:+~=&,;%]")
SIGN_WORDS = {
    ".": "dot",
    "/": "slash",
    "\\": "backslash",
    "-": "dash",
    "_": "underscore",
    "@": "at",
    ":": "colon",
    "+": "plus",
    "~": "tilde",
    "=": "equals",
    "&": "and",
    ",": "",
    ";": "",
    "%": "percent",
}
SCHEME = re.compile(r"\A[a-z][a-z0-9+.-]*:(?://)?|\A//", re.IGNORECASE)
USER = re.compile(r"\A[^/?#@]*@")
UNSAID = re.compile(r"[!$'()*\[\]|<>\"{}^`]")
EXTENSION = re.compile(r"\.([A-Za-z0-9]{1,11})\Z")
IP_ADDRESS = re.compile(r"\d+(?:\.\d+){3}")
LONG_NUMBER = re.compile(r"\d{5,}|(?<![\d.])0\d+")
NUMBER_BEHIND_WORD = re.compile(r"(?<=[A-Za-z]{2})(?=\d+(?![A-Za-z\d]))")
DIGIT_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def said_url(url: str) -> str:
    """https://www.example.com:8080/a-b?x=1 → example dot com colon eight zero eight zero slash a dash b."""
    address = re.split(r"[?#]", USER.sub("", SCHEME.sub("", url, count=1)))[0].rstrip("/")
    host, slash, path = address.partition("/")
    host, colon, port = host.partition(":")
    if host.lower().startswith("www.") and host.count(".") > 1:
        host = host[4:]
    words = [said_host(host)]
    if colon and port:
        words.append(f"colon {digits(port)}")
    if slash:
        words.append(said_path(f"/{unquote(path)}"))
    return " ".join(words)


def said_host(host: str) -> str:
    """www.my-shop.co.uk → www dot my dash shop dot co dot UK."""
    if IP_ADDRESS.fullmatch(host):
        return " dot ".join(map(digits, host.split(".")))
    name, dot, end = host.rpartition(".")
    return _with_signs(f"{name}{dot}{_table('domains').get(end.lower(), end)}")


def said_path(path: str) -> str:
    """/docs/index.html → slash docs slash index dot HTML."""
    end = EXTENSION.search(path)
    if end and is_extension(end[1]):
        path = f"{path[: end.start()]}.{said_extension(end[1])}"
    return _with_signs(path)


def said_email(address: str) -> str:
    """jo.doe@example.com → jo dot doe at example dot com."""
    user, _, host = address.partition("@")
    return f"{_with_signs(user)} at {said_host(host)}"


def is_extension(end: str) -> bool:
    """True if files of a known format have names that end so."""
    return end.lower() in _table("extensions")


def said_extension(end: str) -> str:
    """The end of a file name, in letters or as a word."""
    return _table("extensions").get(end.lower(), end)


def parted(name: str) -> str:
    """report2024 → report 2024."""
    return NUMBER_BEHIND_WORD.sub(" ", name)


def digits(text: str) -> str:
    """The digits of a text, one by one, as words."""
    return " ".join(DIGIT_WORDS[int(char)] for char in text if char in "0123456789")


def _with_signs(text: str) -> str:
    text = LONG_NUMBER.sub(lambda match: f" {digits(match[0])} ", UNSAID.sub(" ", text))
    return " ".join(SIGN.sub(lambda match: f" {SIGN_WORDS[match[0]]} ", parted(text)).split())


@cache
def _table(name: str) -> dict[str, str]:
    return {row[0]: row[1] for row in rows_of("en", name)}
