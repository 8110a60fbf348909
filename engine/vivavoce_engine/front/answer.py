"""An answer that is spoken while its thinker still writes it: token ids go in, speech comes out.

Its prompt runs before the first id is there. From then on each id lets one frame be made, and while none is there the
row waits: no frame, no random number and no counter moves. So the speech does not depend on the times of the ids.
"""

from collections.abc import Sequence

from vivavoce_engine.batching.messages import AppendText, Finished
from vivavoce_engine.errors import EngineError
from vivavoce_engine.front.live import LiveQueue
from vivavoce_engine.request import UtteranceOptions
from vivavoce_engine.text.answer import AnswerFrontend
from vivavoce_engine.text.prompt import Prompt

EXPECTED_TOKENS = 64
"""Tokens that an answer is taken to have while nobody knows its length."""


class SpokenAnswer:
    """An answer's speech, made by `SpeechEngine.open_answer`. `stream` gives it; `stream.cancel()` ends it.

    The speech may end before the ids do; ids that follow then change nothing. Call the methods on the stream's event
    loop.
    """

    def __init__(self, engine: LiveQueue, text: AnswerFrontend, options: UtteranceOptions, prompt: Prompt) -> None:
        self.stream = engine.new_stream()
        self._engine = engine
        self._text = text
        self._tokens = prompt.text_tokens
        self._most_tokens = engine.config.max_context - prompt.prefill_tokens
        """Ids that the longest speech reads. Those behind them are not sent."""
        self._ended = False
        engine.enqueue(options, prompt, self.stream, complete=False)

    @property
    def ended(self) -> bool:
        """True if the answer has ended: by a token that ends it, by `end` or by `fail`."""
        return self._ended

    def append_ids(self, ids: Sequence[int]) -> None:
        """Adds the answer's next token ids. One that ends an answer ends this one, and is not spoken.

        Raises:
            Rejected: an id is unknown, or follows the end.
        """
        assert not self._ended, "the answer has ended"
        spoken, ends = self._text.split(ids)
        read = spoken[: max(0, self._most_tokens - self._tokens)]
        self._tokens += len(spoken)
        if ends:
            self._end(read)
        elif read:
            self._send(read, complete=False)

    def end(self) -> None:
        """Ends the answer where it is, as its limit of tokens does. All ids so far are spoken.

        The reference does not speak the last id before a limit. An answer that has ended stays as it is.
        """
        if not self._ended:
            self._end(())

    def fail(self, error: EngineError) -> None:
        """Ends the speech with an error, because the answer goes on no more. What was spoken stays spoken."""
        self._ended = True
        self.stream.end_with(error)

    def _end(self, spoken: tuple[int, ...]) -> None:
        self._ended = True
        if self._tokens == 0:  # nothing is spoken, as there is nothing to open the speech with
            self.stream.end_with(Finished(0, 0, "stop"))
            return
        self._send((*spoken, self._text.end_of_text_id), complete=True)

    def _send(self, ids: tuple[int, ...], complete: bool) -> None:
        if not self.stream.over:  # the speech may end before the answer does
            self._engine.append_text(AppendText(self.stream.utterance_id, ids, complete))
