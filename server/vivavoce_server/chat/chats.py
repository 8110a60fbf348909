"""The thinkers of a server, and what its conversations share."""

from collections.abc import Mapping

from vivavoce_engine import Thinker

from vivavoce_server.chat.media import MediaReader
from vivavoce_server.chat.spoken_answers import SpokenAnswers
from vivavoce_server.fetching import Fetcher


class Chats:
    """State of one app. `thinkers` are by the model that speaks their answers. Only the event loop uses it."""

    def __init__(self, thinkers: Mapping[str, Thinker], fetcher: Fetcher) -> None:
        self.thinkers = thinkers
        self.media = MediaReader(fetcher)
        self.spoken = SpokenAnswers()

    @property
    def ready(self) -> bool:
        return all(thinker.ready for thinker in self.thinkers.values())

    @property
    def failed(self) -> bool:
        return any(thinker.failed for thinker in self.thinkers.values())
