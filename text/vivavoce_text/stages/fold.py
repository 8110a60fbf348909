"""Stage fold: only letters, digits and marks of ASCII remain, for voices that know nothing else."""

import re
import unicodedata

from vivavoce_text.packages import optional
from vivavoce_text.profile import Context
from vivavoce_text.scripts import script_of
from vivavoce_text.tables import readings_of
from vivavoce_text.traced import Traced

FOREIGN = re.compile(r"[^\w\s.,;:!?'\"()-]|[^\W\x00-\x7f][^\W\x00-\x7f\u0300-\u036f]*|_|[^\S \n]")
OTHER = re.compile(r"[^A-Za-z0-9 .,;:!?'\"()\n-]+")


def apply(text: Traced, context: Context) -> Traced:
    if context.profile.alphabet != "ascii" or not FOREIGN.search(text.text):
        return text
    return text.replaced(FOREIGN, lambda match: _folded(match, context))


def _folded(match: re.Match[str], context: Context) -> str:
    """A sign, or a run of letters and digits without ASCII ones, in ASCII."""
    run = match[0]
    if len(run) == 1:
        said = readings_of("en", "left_signs").get(run)
        if said is not None:
            is_joined = said[-1:].isalpha() and match.string[match.end() : match.end() + 1].isalnum()
            return f"{said} " if is_joined else said
        if unicodedata.category(run)[0] in "SC":
            return ""
    if run.isspace():
        return " "
    foreign = any(script_of(char) not in ("", "Latin") for char in run)
    if foreign and not context.profile.romanize:
        context.notes.leave_out([run])
        return ""
    package = optional("anyascii")
    return OTHER.sub("", package.anyascii(run) if package else unicodedata.normalize("NFKD", run))
