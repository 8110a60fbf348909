"""Stage emails: mail addresses are said in English: jo dot doe at example dot com. Other languages keep them."""

import re

from vivavoce_text.profile import Context
from vivavoce_text.stages.addresses import said_email, said_path
from vivavoce_text.traced import Traced

EMAIL = re.compile(
    r"(?:mailto:)?(?<![\w.+%-])([\w.+%-]+@[\w-]+(?:\.[\w-]+)*\.[^\W\d_]{2,})(?::([\w.-]+/[\w./-]*\w))?(?![\w@])",
    re.IGNORECASE,
)


def apply(text: Traced, context: Context) -> Traced:
    if context.language != "en" or "@" not in text.text:
        return text
    return text.replaced(EMAIL, _said)


def _said(match: re.Match[str]) -> str:
    """A mail address, or a place in a repository, which has a path: git@example.com:user/project.git."""
    return said_email(match[1]) + (f" colon {said_path(match[2])}" if match[2] else "")
