"""Stage urls: addresses of the web are said in English: example dot com slash docs. Other languages keep them."""

import re
from functools import cache
from typing import TYPE_CHECKING

from vivavoce_text.packages import optional
from vivavoce_text.profile import Context
from vivavoce_text.stages.addresses import is_extension, said_email, said_url
from vivavoce_text.tables import words_of
from vivavoce_text.traced import Edit, Traced

if TYPE_CHECKING:
    from linkify_it import LinkifyIt
    from linkify_it.main import Match

MAY_HAVE_URL = re.compile(r"\w\.\w|://")
OTHER_SCHEMES = ("ws:", "wss:", "sftp:", "ssh:", "git:", "s3:")
LOCAL = re.compile(r"(?<![\w./@:-])localhost:\d{2,5}(?!\d)(?:/[\w./-]*\w)?", re.IGNORECASE)


def apply(text: Traced, context: Context) -> Traced:
    if context.language != "en":
        return text
    finder = _finder()
    if finder and MAY_HAVE_URL.search(text.text):
        text = text.edited(
            Edit(match.index, match.last_index, _said(match))
            for match in finder.match(text.text) or ()
            if (match.schema and not _is_mail(match)) or _is_address(match)
        )
    return text.replaced(LOCAL, lambda match: said_url(f"//{match[0]}")) if "localhost" in text.text.lower() else text


def _said(match: "Match") -> str:
    if match.schema == "mailto:":
        return said_email(re.sub(r"\Amailto:", "", match.raw, flags=re.IGNORECASE))
    return said_url(match.raw)


def _is_mail(match: "Match") -> bool:
    """True for a mail address that names no scheme. The stage emails says it."""
    return match.schema == "mailto:" and not match.raw.lower().startswith("mailto:")


def _is_address(match: "Match") -> bool:
    """True for a name without a scheme that is neither a file nor the joint of two sentences."""
    host, slash, _ = match.raw.partition("/")
    end = host.rpartition(".")[2]
    if "@" in match.raw or match.raw in words_of("en", "spoken_names"):
        return False
    if slash or host.lower().startswith("www."):
        return True
    if not end.islower() and host != host.upper():
        return False
    return end.lower() not in words_of("en", "word_domains") and not is_extension(end)


@cache
def _finder() -> "LinkifyIt | None":
    linkify_it, tlds = optional("linkify_it"), optional("linkify_it.tlds")
    if linkify_it is None or tlds is None:
        return None
    finder: LinkifyIt = linkify_it.LinkifyIt().tlds(tlds.TLDS)
    for scheme in OTHER_SCHEMES:
        finder.add(scheme, "http:")
    return finder
