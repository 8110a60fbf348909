"""Stages capitals and letters: words and letters in capitals."""

import pytest
from vivavoce_text import Letters, Profile, speakable


def read(written: str, letters: Letters = "spaced") -> str:
    return speakable(written, "en", Profile(frozenset(["capitals", "letters"]), letters)).text


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("THE CAT SAT ON THE MAT.", "The cat sat on the mat."),
        ("WARNING: DO NOT TOUCH. IT IS HOT!", "Warning: do not touch. It is hot!"),
        ("THE FBI IS HERE.", "The F B I is here."),
        ("STOP right there!", "Stop right there!"),
        ("You must NOT go.", "You must not go."),
        ("DO IT NOW, please.", "Do it now, please."),
        ("TWO CATS AND KOWALSKI LEFT.", "Two cats and kowalski left."),
        ("I CAN'T GO. IT ISN'T FAR.", "I can't go. It isn't far."),
        ("I'M FINE AND WE'LL SEE.", "I'm fine and we'll see."),
        ("I HAVE A CAT.", "I have a cat."),
    ],
)
def test_shouted_words_become_small(written: str, spoken: str) -> None:
    assert read(written) == spoken


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("The FBI called NASA.", "The F B I called nasa."),
        ("We left the US for our IT, it is the LED.", "We left the U S for our I T, it is the L E D."),
        ("The WHO told us who.", "The W H O told us who."),
        ("Old DVDs and the CEO's TV.", "Old D V Ds and the C E O's T V."),
        ("NASA's API returns JSON.", "Nasa's A P I returns Jason."),
        ("The U.S. and the U.S.A. agreed in the U.S.", "The U S and the U S A agreed in the U S."),
        ("ChatGPT on iOS and iPhone.", "Chat G P T on i O S and iPhone."),
        ("Set maxRetries and getUserName, eBay.", "Set max Retries and get User Name, eBay."),
        ("J. R. R. Tolkien met J.K. Rowling.", "J R R Tolkien met J K Rowling."),
        ("We chose plan B. He left.", "We chose plan B. He left."),
        ("A BaseHTTPServer and XMLHttpRequest.", "A Base H T T P Server and X M L Http Request."),
        ("GeoJSON, parseJSONFile, getURLs.", "Geo Jason, parse Jason File, get U R Ls."),
        ("An IOError of MySQL and OAuth.", "An I O Error of my S Q L and O Auth."),
        ("A NON-INFRINGEMENT, a WELL-KNOWN one.", "A non-infringement, a well-known one."),
        ("EX-WIFE and CO-FOUNDER of NON.", "Ex-wife and co-founder of N O N."),
        ("A NON-EU man of CO-UK.", "A non-E U man of C O-U K."),
        ("AN A-LEVEL AND A CD-ROM.", "An A-level and a C D-rom."),
    ],
)
def test_abbreviations_become_letters(written: str, spoken: str) -> None:
    assert read(written) == spoken


@pytest.mark.parametrize("written", ["I am in Paris with McDonald.", "A man saw Ann.", "Malcolm X spoke.", "So do I."])
def test_ordinary_capitals_stay(written: str) -> None:
    assert read(written) == written


def test_capitals_of_other_languages_stay() -> None:
    assert (
        speakable("DER HUND und die CIA", "de", Profile(frozenset(["capitals"]), "spaced")).text
        == "DER HUND und die CIA"
    )


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("The FBI called.", "The eff bee eye called."),
        ("Old DVDs here.", "Old dee vee dees here."),
        ("AI is an A.", "ay eye is an ay."),
        ("At 5 p m or 6 a m.", "At 5 pee em or 6 ay em."),
        ("Take vitamin C.", "Take vitamin see."),
        ("As it is, Is it? Us too.", "As it is, Is it? Us too."),
        ("I saw a man. A man, I said.", "I saw a man. A man, I said."),
        ("(a) A dog, (ii) A cat.", "(a) A dog, (ii) A cat."),
        ("b) A dog or vitamin A here.", "bee) A dog or vitamin ay here."),
        ("Rock 'n' roll isn't X-ray.", "Rock 'n' roll isn't ex-ray."),
    ],
)
def test_letters_as_names(written: str, spoken: str) -> None:
    assert read(written, "names") == spoken


def test_letters_as_they_are_written() -> None:
    assert read("THE CAT and the FBI in the U.S.", "as_written") == "The cat and the FBI in the U.S."
