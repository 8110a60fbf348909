"""Texts of a certain length."""


def plain_text(chars: int) -> str:
    """Words of `chars` characters in all, which are read as they are written."""
    text = ("words" + " word" * (chars // 5))[:chars]
    return text if not text.endswith(" ") else f"{text[:-1]}s"
