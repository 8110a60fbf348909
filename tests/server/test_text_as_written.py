"""Text as people write it, through the server, for a model that reads words alone: exactly what would be said."""

from collections.abc import Iterator

import pytest

from tests.support.live_server import LiveServer
from tests.support.readers import answer_of, ask, reading_server
from tests.text.pairs import Pair

TABLE = "|" + " a |" * 32 + "\n|" + " - |" * 32 + "\n"


@pytest.fixture(scope="module")
def reader() -> Iterator[LiveServer]:
    with reading_server() as server:
        yield server


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("We\u2019re here and don\u2019t know what you\u2019ll do.", "We're here and don't know what you'll do."),
        ("She said \u201chello\u201d and left.", 'She said "hello" and left.'),
        ("It was late \u2014 we went home.", "It was late, we went home."),
        ("The wea\u00adther is some\u200bthing.", "The weather is something."),
        ("I went\u00a0home at\u00a0ten.", "I went home at ten."),
        ("[Alice]: Hello", "Alice: Hello"),
        ("<p>Good morning, everyone.</p>", "Good morning, everyone."),
        ("Before.\n<div>\nInside.\n</div>\nAfter.", "Before. Inside. After."),
        ("**Hello** _world_, see https://example.com", "Hello world, see example dot com"),
        ("The item(s) and box(es) are here.", "The items and boxes are here."),
        ("Let's go!!!!!!!!!!!!!!!!!!!!", "Let's go!"),
    ],
)
def test_signs(written: str, said: str, reader: LiveServer) -> None:
    spoken = answer_of(reader, written)["text"]
    assert spoken == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("He waited\u2026 then he left.", ["He waited... then he left."]),
        ("THE CAT SAT ON THE MAT.", ["The cat sat on the mat."]),
        ("That is -5 degrees.", ["That is minus five degrees."]),
        ("They raised $1.5 million.", ["They raised one point five million dollars."]),
        ("It cost $99,070.01.", ["It cost ninety-nine thousand seventy dollars and one cent."]),
        ("It is \u00a320 and \u20ac50.", ["It is twenty pounds and fifty euros."]),
        ("He fought in World War II.", ["He fought in World War Two."]),
        ("This is Act \u2163.", ["This is Act Four."]),
        ("She lives in Beverly Hills, CA 90210.", ["She lives in Beverly Hills, California nine zero two one zero."]),
        ("Today is 5/6/2026.", ["Today is May sixth, twenty twenty-six."]),
        ("2024. That was the year.", ["Twenty twenty-four. That was the year."]),
        ("1. Eggs\n2. Milk", ["One. Eggs. Two. Milk.", "One eggs. Two milk.", "One, eggs. Two, milk."]),
        ("The deal is worth $5 m to us.", ["The deal is worth five million dollars to us."]),
        ("We took Route 66 W.", ["We took Route sixty-six West.", "We took Route sixty-six double you."]),
        ("We built a 5 g network.", ["We built a five g network.", "We built a five jee network."]),
    ],
)
def test_words(written: str, said: list[str], reader: LiveServer) -> None:
    spoken = answer_of(reader, written)["text"]
    assert Pair("en", "server", written, tuple(said)).is_right(spoken), spoken


@pytest.mark.parametrize("normalize", [None, True, False, ["units"], ["markdown"]])
@pytest.mark.parametrize("tag", ["[pause:0.5s]", "[pause:500ms]", "[PAUSE: 500 ms]"])
def test_no_stage_touches_a_pause(tag: str, normalize: bool | list[str] | None, reader: LiveServer) -> None:
    answer = answer_of(reader, f"Good morning. {tag} Hi.", normalize=normalize)
    texts = [part["text"].strip() if "text" in part else part["pause_s"] for part in answer["parts"]]
    assert texts == ["Good morning.", 0.5, "Hi."]


def test_the_breaks_of_ssml_are_pauses_and_its_other_tags_are_their_text(reader: LiveServer) -> None:
    text = (
        '<speak>Hi <emphasis>there</emphasis>.<break time="750ms"/>It is <say-as interpret-as="x">ten</say-as>.</speak>'
    )
    parts = answer_of(reader, text)["parts"]
    assert [part["text"].strip() if "text" in part else part["pause_s"] for part in parts] == [
        "Hi there.",
        0.75,
        "It is ten.",
    ]


@pytest.mark.parametrize("text", ["_" * 4096, "!" * 4096, "<" * 4096, "*" * 4096, "\u200b" * 4096])
def test_signs_without_end_are_refused(text: str, reader: LiveServer) -> None:
    response = ask(reader, text)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "nothing_to_speak")


def test_a_table_is_its_cells(reader: LiveServer) -> None:
    text = (TABLE + "|" + " b |" * 32 + "\n" + "a\n" * 4096)[:4096]
    said = answer_of(reader, text, "fake")["text"]
    assert said.count("b") == 32
    assert "|" not in said
