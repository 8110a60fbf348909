"""ElevenLabs' alignments: the characters of a text, with milliseconds at which each is said.

`alignment` has the characters as they were written, `normalizedAlignment` those that are said. A message tells those
of the words that became certain with it, and of all signs and blanks before them. Joined, they are the text. Each blank
is told as a space, and each utterance ends with one, because clients find words by spaces.

Clients count time in two ways. Without `sync_alignment`, an alignment begins where the one before it ended, as a piece
of the audio has no place of its own: Pipecat adds their lengths up. With `sync_alignment=true`, the times are those of
the whole file: LiveKit's plugin, which always sends it, adds nothing.
"""

from collections.abc import Iterable

from vivavoce_engine import WordTime

from vivavoce_server.live.utterance import SpokenWords
from vivavoce_server.word_times import CharacterTimes, spoken_times, written_times

NOT_KNOWN: dict[str, object] = {"alignment": None, "normalizedAlignment": None}


class _Track:
    """The characters of one form of the text."""

    def __init__(self, restarts: bool) -> None:
        self._restarts = restarts
        self._times = CharacterTimes()
        self._begin_s = 0.0
        """Seconds of the file before the utterance."""
        self._told_ms = 0
        """End of the last alignment in the file."""

    def begin(self, begin_s: float) -> None:
        self._times, self._begin_s = CharacterTimes(), begin_s

    def take(self, text: str, words: Iterable[WordTime], whole_s: float | None) -> dict[str, list[object]] | None:
        alignments = [self._times.take(text, words)]
        if whole_s is not None:
            alignments.append(self._times.finish(text if text[-1:].isspace() else f"{text} ", whole_s))
        chars = [" " if char.isspace() else char for each in alignments for char in each.characters]
        if not chars:
            return None
        starts_ms = [self._ms(start_s) for each in alignments for start_s in each.starts_s]
        ends_ms = [self._ms(end_s) for each in alignments for end_s in each.ends_s]
        zero_ms = self._told_ms if self._restarts else 0
        self._told_ms = ends_ms[-1]
        return {
            "chars": list(chars),
            "charStartTimesMs": [start_ms - zero_ms for start_ms in starts_ms],
            "charDurationsMs": [end_ms - start_ms for start_ms, end_ms in zip(starts_ms, ends_ms, strict=True)],
        }

    def _ms(self, seconds: float) -> int:
        return round((self._begin_s + seconds) * 1000)


class Aligner:
    """Makes the alignments of one file, which may hold several utterances: `begin`, `take` for each piece, `end`."""

    def __init__(self, sync_alignment: bool) -> None:
        self._written = _Track(restarts=not sync_alignment)
        self._spoken = _Track(restarts=not sync_alignment)
        self._file_s = 0.0

    def begin(self) -> None:
        """Begins an utterance."""
        self._written.begin(self._file_s)
        self._spoken.begin(self._file_s)

    def take(self, words: SpokenWords | None) -> dict[str, object]:
        """The two fields of a message. They are null without characters to tell."""
        if words is None or not (words.words or words.whole_s is not None):
            return NOT_KNOWN
        places, whole_s = words.places, words.whole_s
        return {
            "alignment": self._written.take(places.written, written_times(words.words), whole_s),
            "normalizedAlignment": self._spoken.take(places.spoken, spoken_times(words.words), whole_s),
        }

    def end(self, file_s: float) -> None:
        """Ends the utterance, which takes `file_s` seconds of the file."""
        self._file_s += file_s
