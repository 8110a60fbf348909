"""Addresses, names and signs in English words."""

from collections.abc import Mapping

import pytest
from vivavoce_text.tables import rows_of

from tests.text.marks import english, said

URLS = {
    "Go to https://www.example.com today.": "Go to example dot com today.",
    "See https://example.com/docs.": "See example dot com slash docs.",
    "See example.com/docs for more.": "See example dot com slash docs for more.",
    "Open https://example.com:8080/a-b?x=1#top": "Open example dot com colon eight zero eight zero slash a dash b",
    "The code is on github.com.": "The code is on github dot com.",
    "(https://en.wikipedia.org/wiki/Foo_(bar))": "(en dot wikipedia dot org slash wiki slash Foo underscore bar)",
    "BBC.CO.UK or bbc.co.uk": "BBC dot CO dot UK or bbc dot co dot UK",
    "ftp://x.org/a.tar wss://y.org //z.org/b": "x dot org slash a dot tar y dot org z dot org slash b",
    "http://localhost:3000/api": "localhost colon three zero zero zero slash api",
    "localhost:80 is up": "localhost colon eight zero is up",
    "https://me:secret@example.com/": "example dot com",
    "http://10.0.0.1/": "one zero dot zero dot zero dot one",
    "https://example.com/a%20b/index.html": "example dot com slash a b slash index dot HTML",
    "https://youtu.be/dQw4w9WgXcQ?t=42": "youtu dot be slash dQw4w9WgXcQ",
    "It ended.Then it began. I like e.g. this": "It ended.Then it began. I like e.g. this",
    "https://example.com/" + "part/" * 60 + " end": "example dot com" + " slash part" * 60 + " end",
}
EMAILS = {
    "Write to jo.doe@example.com today.": "Write to jo dot doe at example dot com today.",
    "mailto:a_b-c+d@sub.example.co.uk": "a underscore b dash c plus d at sub dot example dot co dot UK",
    "jo99@example.com?": "jo 99 at example dot com?",
    "git@github.com:user/project.git": "git at github dot com colon user slash project dot git",
}
NAMES = {
    "Look in /usr/local/bin first.": "Look in slash usr slash local slash bin first.",
    "Run ./run.sh or ~/.bashrc or ../up/x.txt": (
        "Run dot slash run dot SH or tilde slash dot bashrc or dot dot slash up slash x dot TXT"
    ),
    "Open C:\\Users\\joe\\file.txt now": "Open C colon backslash Users backslash joe backslash file dot TXT now",
    "in src/main.rs and docs/": "in src slash main dot RS and docs slash",
    "Open the file report.pdf now.": "Open the file report dot PDF now.",
    "Edit config.yaml, my-file_2.tar.gz": "Edit config dot yaml, my-file 2 dot tar dot GZ",
    "See report_2024-05-01.pdf or log2.txt": "See report 2024-05-01 dot PDF or log 2 dot TXT",
    "os.path.join in .gitignore": "os dot path dot join in dot gitignore",
    "Call get_user_name() and std::vector": "Call get user name and std vector",
    "MAX_VALUE, _private, __init__.py": "MAX VALUE, private, init dot PY",
    "Run it --verbose -v": "Run it dash dash verbose dash v",
    "Ask @john_doe or @a.b: yes": "Ask at john doe or at a dot b: yes",
    "#ThrowbackThursday #100DaysOfCode #AI": "hashtag Throwback Thursday hashtag 100 Days Of Code hashtag AI",
    "We are #1 in room #5": "We are number 1 in room number 5",
    "The iPhone camelCase stays": "The iPhone camelCase stays",
    "input/output at miles/hour, HTTP/HTTPS": "input slash output at miles per hour, HTTP HTTPS",
    "24/7, 50/50, 1/2, km/h, w/o": "24/7, 50/50, 1/2, km/h, w/o",
    "AT&T and R&D": "A T and T and R and D",
    "an A+ for 18+ and 100+ people, B- grades": "an A plus for 18 plus and 100 plus people, B minus grades",
    "tel:+1-555-123-4567": "+1-555-123-4567",
}
SIGNS = {
    "So 2 + 2 = 4 and 5 - 3 = 2.": "So 2 plus 2 equals 4 and 5 minus 3 equals 2.",
    "And 5 \u00d7 3 > 10, 6 \u00f7 2": "And 5 times 3 is greater than 10, 6 divided by 2",
    "a \u2264 b \u2265 c \u2260 d \u2248 e \u00b1 3": (
        "a is less than or equal to b is greater than or equal to c is not equal to d is about e plus or minus 3"
    ),
    "x\u00b2, mc\u00b2, 2^10, x^3, 10\u2076": (
        "x squared, mc squared, 2 to the power of 10, x cubed, 10 to the power of 6"
    ),
    "9 m\u00b2 and 5 km\u00b2": "9 m\u00b2 and 5 km\u00b2",
    "CO\u2082 and x\u2081": "CO2 and x 1",
    "~5 people, speeds >10, x >5": "about 5 people, speeds more than 10, x is greater than 5",
    "Turn by 90\u00b0 or 1\u00b0, 20\u00b0C": "Turn by 90 degrees or 1 degree, 20\u00b0C",
    "2\u03c0r and \u0394t, 5 \u03bcm, 5 k\u03a9": "2 pi r and delta t, 5 \u03bcm, 5 k\u03a9",
    "File > Save > As, A \u2192 B": "File, Save, As, A to B",
    "\u00a7 5, \u00a9 2024, Lego\u2122, \u2116 5": "section 5, copyright 2024, Lego, number 5",
    "B\u266d and C\u266f": "B flat and C sharp",
    "one \u2022 two {three} ^ four": "one, two three four",
    "Tom & Jerry, 3 @ $2": "Tom and Jerry, 3 at $2",
    "a -> b, x != y, key=value": "a to b, x is not equal to y, key equals value",
    "f(x) = 2x + 1, 3x\u00b2": "f(x) equals 2 x plus 1, 3 x squared",
    "Ring +44 20 7946": "Ring +44 20 7946",
    "1920\u00d71080": "1920 by 1080",
    "\u03bc = 5, \u221e = x, \u03b1-ray": "mu equals 5, infinity equals x, alpha-ray",
    "Na\u207a and 45\u00b030": "Na plus and 45 degrees 30",
    "<-- look": "look",
    "100% of $5 is -5": "100% of $5 is -5",
}


@pytest.mark.parametrize("cases", [URLS, EMAILS, NAMES, SIGNS], ids=["urls", "emails", "names", "signs"])
def test_names_and_signs_are_said(cases: Mapping[str, str]) -> None:
    assert {written: english(written) for written in cases} == cases


@pytest.mark.parametrize("cases", [URLS, EMAILS, NAMES, SIGNS], ids=["urls", "emails", "names", "signs"])
def test_what_is_said_stays_when_it_is_read_again(cases: Mapping[str, str]) -> None:
    assert [english(words) for words in cases.values()] == list(cases.values())


@pytest.mark.parametrize("row", rows_of("en", "spoken_names"), ids=lambda row: row[0])
def test_each_name_with_signs_is_said(row: tuple[str, str]) -> None:
    name, words = row
    assert english(f"I know {name} and {name}.") == f"I know {words} and {words}."


@pytest.mark.parametrize("row", rows_of("en", "extensions"), ids=lambda row: row[0])
def test_each_end_of_a_file_name_is_said(row: tuple[str, str]) -> None:
    end, words = row
    assert english(f"Open my_file.{end} now.") == f"Open my file dot {words} now."


@pytest.mark.parametrize("row", rows_of("en", "domains"), ids=lambda row: row[0])
def test_each_end_of_a_host_name_is_said(row: tuple[str, str]) -> None:
    end, letters = row
    assert english(f"See www.example.{end} now.") == f"See example dot {letters} now."


@pytest.mark.parametrize("row", rows_of("en", "word_domains"), ids=lambda row: row[0])
def test_an_end_that_is_a_word_needs_more_to_be_an_address(row: tuple[str]) -> None:
    assert english(f"See it.{row[0]}/page") == f"See it dot {words_for(row[0])} slash page"
    assert english(f"It Is.{row[0].capitalize()} again") == f"It Is.{row[0].capitalize()} again"


def words_for(end: str) -> str:
    return {row[0]: row[1] for row in rows_of("en", "domains")}.get(end, end)


EXAMPLES = {"between": ("7 {} 9", "7 {} 9"), "before": ("some {}9", "some {} 9"), "anywhere": ("a {} b", "a {} b")}


@pytest.mark.parametrize("row", rows_of("en", "signs"), ids=lambda row: "-".join(row))
def test_each_sign_is_said(row: tuple[str, str, str]) -> None:
    sign, words, where = row
    if where == "solved":
        assert english(f"7 {sign} 9 = 1") == f"7 {words} 9 equals 1"
    elif where == "letter":
        assert english(f"the {sign} is") == f"the {words} is"
    else:
        written, spoken = EXAMPLES[where]
        assert english(written.format(sign)) == " ".join(spoken.format(words).split())


@pytest.mark.parametrize("language", ["de", "zh", ""])
def test_other_languages_keep_addresses_and_signs(language: str) -> None:
    text = "https://example.com/a jo@example.com @name #Tag /usr/bin a_b 2 + 2 = 4 & 5 < 6"
    assert said(text, language) == text
