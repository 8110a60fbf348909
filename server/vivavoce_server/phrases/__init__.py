"""The phrase cache: speech of seeded requests, kept on the disk as the samples that the engine made.

`keys.py` says which requests have the same speech, `entry.py` what a file looks like, `folder.py` which files there
are, and `cache.py` puts a request's speech in or takes it out.
"""

from vivavoce_server.phrases.cache import PhraseCache

__all__ = ["PhraseCache"]
