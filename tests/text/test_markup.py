"""Markdown, HTML, SSML and LaTeX leave the words that they mark."""

from collections.abc import Mapping

import pytest
from vivavoce_text import Profile, speakable
from vivavoce_text.tables import rows_of

from tests.text.marks import english, said

MARKDOWN = {
    "# Title\n\nSome text.": "Title. Some text.",
    "## Heading two ##\nBody.": "Heading two. Body.",
    "Title\n=====\nText": "Title. Text",
    "Text\n---\nMore": "Text. More",
    "This is **bold**, *italic*, ***both*** and ~~gone~~.": "This is bold, italic, both and gone.",
    "__bold__ and _it_ and `make test` and ``a `b` c``": "bold and it and make test and a b c",
    "Read [the guide](https://example.com/a) first.": "Read the guide first.",
    "[link](<a b> 'title') [**bold**](u) [](v)": "link bold",
    "[text][1] is\n\n[1]: https://example.com 'Title'": "text is.",
    "![A red barn](barn.png) ![](x.png)": "A red barn",
    "[![alt](image.png)](https://example.com) end": "alt end",
    "[Alice]: Hello there.": "Alice: Hello there.",
    "A note[^1].\n\n[^1]: The text.": "A note. The text.",
    "1. Preheat the oven.\n2. Mix the eggs": "1. Preheat the oven. 2. Mix the eggs.",
    "1) Preheat\n2) Mix": "1. Preheat. 2. Mix.",
    "2024. That was the year it began.": "2024. That was the year it began.",
    "10. 9. 8. 7.": "10. 9. 8. 7.",
    "- milk\n- eggs\n- bread": "milk. eggs. bread.",
    "* one\n  + two\n\u2022 three": "one. two. three.",
    "- [ ] do\n- [x] done!": "do. done!",
    "- **Key**: value": "Key: value.",
    "| Name | Age |\n|:--|--:|\n| Ann | 30 |": "Name, Age. Ann, 30.",
    "a | b\n---|---\n1 | 2": "a, b. 1, 2",
    "> To be\n>> or not": "To be or not",
    "> - item\n> - other": "item. other.",
    "```python\nx = 1\n```\nDone.": "x equals 1. Done.",
    "~~~\n**kept**\n```\n~~~\nDone.": "kept. Done.",
    "```inline``` is **code**": "inline is code",
    "***\nOne\n\n* * *\n\n___\nTwo": "One. Two",
    "First line  \nsecond line\\\nthird": "First line second line third",
    "A **bold": "A bold",
    "bold** and _ and ** alone": "bold and and alone",
    "*footnote and price*": "footnote and price",
    "\\*literal\\* \\_x\\_ 1986\\. \\[x\\]": "literal x 1986. x",
    "<https://example.com> or <jo@example.com>": "example dot com or jo at example dot com",
    "That costs 5 * 3 * 2 coins, or 5*3*2.": "That costs 5 times 3 times 2 coins, or 5 times 3 times 2.",
    "H~2~O and x^2^": "H2O and x squared",
    "==marked== [brackets] list[0]": "marked brackets list 0",
    "Term\n: its meaning": "Term its meaning",
    "Yes, we have no bananas (none at all).": "Yes, we have no bananas (none at all).",
    "One line\nand another.": "One line and another.",
    "One paragraph\n\nAnother one\n\n": "One paragraph. Another one.",
    "To do:\n\n- sleep": "To do: sleep.",
}
HTML = {
    "<p>Good morning, everyone.</p>": "Good morning, everyone.",
    "<h1>Title</h1><p>Body <b>text</b></p>": "Title. Body text.",
    "<div>\n<p>One</p>\n<p>Two</p>\n</div>": "One. Two.",
    "<ul><li>milk</li><li>eggs</li></ul>": "milk. eggs.",
    "<table><tr><td>Ann</td><td>30</td></tr><tr><td>Bob</td><td>4</td></tr></table>": "Ann, 30. Bob, 4.",
    "<tr>\n<td>Ann</td>\n<td>30</td>\n</tr>": "Ann, 30.",
    "One line<br>and<br/>another.": "One line and another.",
    "One<br><br>Two": "One. Two",
    'Click <a href="https://x.example">here</a> now.': "Click here now.",
    "An <input type=text disabled> and <img src='a.png' alt='A dog'>.": "An and A dog.",
    "Hi <x-unknown data='1'>there</x-unknown>": "Hi there",
    "Tom &amp; Jerry, caf&eacute; &#39;x&#x27; &amp;amp; y": "Tom and Jerry, caf\u00e9 'x' and y",
    "&ldquo;Hi&rdquo;&nbsp;&mdash; he": '"Hi", he',
    "If a<b and c>d then stop.": "If a is less than b and c is greater than d then stop.",
    "x &lt; y, 5 < 6 && 7 > 3": "x is less than y, 5 is less than 6 and 7 is greater than 3",
    "Say <hello> to <your name here>.": "Say hello to your name here.",
    "Say &lt;hello&gt; to List<String>": "Say hello to List String",
    "x<sup>2</sup> m, 10<sup>6</sup>, 1<sup>st</sup>, H<sub>2</sub>O": "x squared m, 10 to the power of 6, 1st, H2O",
    "A claim.<sup>1</sup> A word<sup>[2]</sup> more": "A claim. A word more",
    "<script>alert('x')</script>Hello <!-- hidden > too -->you": "Hello you",
    "<style>\np { color: red; }\n</style>\nHello": "Hello",
    "<!--\nnot said, \nnor this\n-->and this": "and this",
    "<!DOCTYPE html><html><body>Hi</body></html>": "Hi.",
    "<span>One.</span><span>Two.</span>": "One. Two.",
}
SSML = {
    '<speak>Hello <break time="500ms"/> world.</speak>': "Hello [pause:500ms] world.",
    'That is <emphasis level="strong">really</emphasis> big.': "That is really big.",
    '<say-as interpret-as="characters">abc</say-as>, <phoneme alphabet="ipa" ph="x">hey</phoneme>!': "abc, hey!",
    '<prosody rate="slow">Slowly</prosody> <voice name="x">now</voice>': "Slowly now",
    '<sub alias="World Wide Web">WWW</sub> it': "World Wide Web it",
    "<p><s>One.</s><s>Two.</s></p>": "One. Two.",
    '<?xml version="1.0"?><speak version="1.1" xml:lang="en-US">Yo</speak>': "Yo",
}
LATEX = {
    "So $E = mc^2$ holds.": "So E equals m c squared holds.",
    "We get $\\frac{1}{2}$ of it.": "We get one half of it.",
    "Then $\\alpha + \\beta \\leq 24$ follows.": "Then alpha plus beta is less than or equal to twenty-four follows.",
    "$$x_i$$ and \\(x^2\\) and \\[\\sqrt{16}\\]": "x sub i and x squared and square root of sixteen",
    "$$\nx = 1\n$$": "x equals 1",
    "so \\alpha is \\frac{1}{2} here": "so alpha is one half here",
    "\\alpha \u00b2 or \\beta \u00bd": "alpha \u00b2 or beta \u00bd",
    "**$a_1 * b_1 * c_1$**": "a sub one times b sub one times c sub one",
    "It is $5 and $6, US$ 7, $5-$10 (or $6)": "It is $5 and $6, US$ 7, $5-$10 (or $6)",
    "$20 million and $30 million": "$20 million and $30 million",
    "\\$5 and \\$6": "$5 and $6",
    "$2x+1$ and $3$": "two x plus one and three",
    "$HOME and $PATH": "HOME and PATH",
    "C:\\alpha\\new": "C colon backslash alpha backslash new",
}


@pytest.mark.parametrize("cases", [MARKDOWN, HTML, SSML, LATEX], ids=["markdown", "html", "ssml", "latex"])
def test_markup_leaves_its_words(cases: Mapping[str, str]) -> None:
    assert {written: english(written) for written in cases} == cases


@pytest.mark.parametrize("cases", [MARKDOWN, HTML, LATEX], ids=["markdown", "html", "latex"])
def test_words_of_markup_are_read_alike_a_second_time(cases: Mapping[str, str]) -> None:
    again = [words for words in cases.values() if not words[:1].isdigit()]
    assert [english(words) for words in again] == again


@pytest.mark.parametrize("row", [row for row in rows_of("any", "tags") if row[0] != "break"], ids=lambda row: row[0])
def test_every_tag_vanishes(row: tuple[str, str]) -> None:
    name, kind = row
    parted = {"block": "one. two", "line": "one two", "cell": "one, two", "inline": "one two", "hidden": "one. two"}
    assert english(f"one <{name}>two") == parted[kind]
    assert english(f"one <{name} class='x'/> two") == parted[kind]


def test_a_voice_of_any_alphabet_keeps_the_lines() -> None:
    assert said("# Titre\n\nUne ligne\nune autre\n\n\n\nFin", "fr") == "Titre.\n\nUne ligne\nune autre.\n\nFin"


def test_a_chinese_heading_ends_with_its_own_full_stop() -> None:
    assert said("# \u6807\u9898\n\n\u6b63\u6587", "zh") == "\u6807\u9898\u3002\n\n\u6b63\u6587"


def test_emphasis_between_ideographs_is_read() -> None:
    assert said("\u4ed6\u2014\u2014**\u597d**\u7684\u3002", "zh") == "\u4ed6\u2014\u2014\u597d\u7684\u3002"


def test_german_formulas_are_said_and_others_keep_their_signs() -> None:
    text = "so $x^2$ und $\\frac{1}{2}$ da"
    assert said(text, "de") == "so x zum Quadrat und ein halb da"
    assert said(text, "fr") == "so x^2 und da"


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("f(g(h(x)))(a)(b)", "f of g of h of x open paren a close paren open paren b close paren"),
        ("(a" * 60, "(a" * 60),
        ("\\frac{" + "(a" * 60 + "}{2}", ""),
        ("\\left(" + "(a" * 60 + "\\right)" + ")a" * 60, ""),
        ("{(a" * 30 + "}" * 30 + ")a" * 30, "(a" * 30 + ")a" * 30),
    ],
    ids=["nested", "open", "open-in-fraction", "closed-outside", "crossed"],
)
def test_brackets_that_do_not_close_each_other_are_not_read(formula: str, words: str) -> None:
    """The reader would take a time that doubles with every bracket."""
    assert english(f"so ${formula}$ is") == " ".join(f"so {words} is".split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The <option> tags are below <select> elements.", "The option tags are below select elements."),
        ("Add the <br> tag.", "Add the br tag."),
        ("<p> Tags are good</p> here.", "Tags are good. here."),
        ("Some <b>bold</b> tags.", "Some bold tags."),
        ("a <br> b", "a b"),
    ],
)
def test_a_tag_that_the_text_speaks_of_is_a_word(text: str, words: str) -> None:
    assert english(text) == words


def test_code_with_blanks_at_its_edges_joins_no_words() -> None:
    assert english("An Error` on the keys to `int.") == "An Error on the keys to int."
    assert english("Use `` ab `` here.") == "Use ab here."


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("the file `/` is", "the file slash is"),
        ("use `*`, `~` or `_` here", "use asterisk, tilde or underscore here"),
        ("a `&&` and a `->` here", "a ampersand ampersand and a arrow here"),
        ("run `a/b` or `////` here", "run a/b or //// here"),
        ("run a`/`b here", "run a slash b here"),
    ],
)
def test_code_that_is_a_sign_is_its_name(written: str, spoken: str) -> None:
    assert speakable(written, "en", Profile(frozenset(["markup"]))).text == spoken


def test_signs_as_code_stay_in_other_languages() -> None:
    assert speakable("die Datei `/` ist", "de", Profile(frozenset(["markup"]))).text == "die Datei / ist"
