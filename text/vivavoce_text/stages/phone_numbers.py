"""Stage phone_numbers: telephone numbers and other long codes, digit by digit, with a comma between groups."""

import re

from vivavoce_text.profile import Context
from vivavoce_text.rules import apply_rules
from vivavoce_text.stages.numbers import is_crowded
from vivavoce_text.traced import Traced

LONG_NUMBER = re.compile(r"\d\D{0,3}\d\D{0,3}\d|\d-[A-Z]")


def apply(text: Traced, context: Context) -> Traced:
    if context.language != "en" or not LONG_NUMBER.search(text.text) or is_crowded(text.text):
        return text
    return apply_rules(text, context, "phone_numbers")
