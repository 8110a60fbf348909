"""Facts about the checks of the conformance suite that several tests share."""

NEED_KEY = {
    "security.no_key",
    "security.wrong_key",
    "security.half_key",
    "security.longer_key",
    "security.no_key_lists",
    "security.authenticate",
    "security.key_not_repeated",
    "sockets.wrong_key",
}
"""Checks that are skipped on a server without keys."""
