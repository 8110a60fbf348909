"""An open utterance: text goes in while its speech comes out, in one acoustic context.

The text that has arrived is spoken one token a frame. When it runs dry before its end is known, the row waits: no
frame, no random number, no counter moves; so the speech does not depend on when, or in which fragments, text came.
"""

from typing import TYPE_CHECKING

from vivavoce_engine.batching.runner import PromptBuilder
from vivavoce_engine.errors import Rejected
from vivavoce_engine.request import SynthesisRequest
from vivavoce_engine.text.prompt import check_characters

if TYPE_CHECKING:
    from vivavoce_engine.front.front import EngineFront


class LiveUtterance:
    """Made by `EngineFront.open`. `stream` gives the speech; leave early by `stream.cancel()`.

    Both methods raise:
        Overloaded: the queue is full, when there is enough text to start with.
        Rejected: the text does not fit into the context, or is no Unicode.
    """

    def __init__(self, engine: "EngineFront", text: PromptBuilder, request: SynthesisRequest) -> None:
        self.stream = engine.new_stream()
        self._engine = engine
        self._text = text
        self._request = request
        self._committer = text.live_text()
        self._tokens_to_start = text.tokens_to_start(request)
        self._ids: list[int] = []
        """Final text ids that are not queued yet: until there are enough to start with."""
        self._tokens = 0
        self._started = False
        self._complete = False
        text.build(request, [text.end_of_text_id], complete=True)  # for its errors: before the first text, not at it

    def append(self, text: str) -> None:
        """More text. Words are committed when what follows can no longer change their tokens."""
        assert not self._complete, "the text has been ended"
        check_characters("text", text)
        self._commit(self._committer.append(text))

    def end(self) -> None:
        """No text follows. Raises Rejected if there was none at all."""
        assert not self._complete, "the text has been ended"
        self._complete = True
        self._commit(self._committer.close())

    def _commit(self, ids: list[int]) -> None:
        self._ids += ids
        self._tokens += len(ids)
        if self._tokens >= self._engine.config.max_context:
            raise Rejected("text", f"the text has more than {self._engine.config.max_context} tokens")
        if self._started:
            if self._ids or self._complete:
                end = [self._text.end_of_text_id] if self._complete else []
                self._engine.append_text(self.stream.utterance_id, (*self._ids, *end), self._complete)
                self._ids = []
        elif self._complete or len(self._ids) >= self._tokens_to_start:
            if not self._ids:
                raise Rejected("text", "the text is blank")
            prompt = self._text.build(self._request, self._ids, self._complete)
            self._engine.enqueue(self._request, prompt, self.stream, self._complete)
            self._started, self._ids = True, []
