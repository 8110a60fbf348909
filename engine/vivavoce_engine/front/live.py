"""An open utterance: text goes in while its speech comes out, in one acoustic context.

The text that has arrived is spoken at one token a frame. When it runs dry before its end is known, the row waits: no
frame, no random number and no counter moves. So the speech depends neither on the time of the fragments nor on how the
text was cut.
"""

from dataclasses import replace
from typing import Protocol

from vivavoce_engine.batching.messages import AppendText
from vivavoce_engine.batching.runner import PromptBuilder
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import Rejected
from vivavoce_engine.front.stream import AudioStream
from vivavoce_engine.request import UtteranceOptions
from vivavoce_engine.text.prompt import Prompt, check_characters


class LiveQueue(Protocol):
    """The part of an engine that an open utterance or an answer uses (EngineFront has it)."""

    @property
    def config(self) -> EngineConfig: ...

    def new_stream(self) -> AudioStream:
        """A stream for an utterance that is not queued yet."""
        ...

    def enqueue(
        self, options: UtteranceOptions, prompt: Prompt, stream: AudioStream, complete: bool = True
    ) -> AudioStream:
        """Queues an utterance; more text may follow by `append_text` unless it is `complete`."""
        ...

    def append_text(self, message: AppendText) -> None:
        """Adds text to an utterance that is queued or runs."""
        ...


class LiveUtterance:
    """An utterance with open text, made by `SpeechEngine.open`. `stream` gives its speech; `stream.cancel()` ends it.

    Both methods raise:
        Overloaded: the queue is full, when there is enough text to start with.
        Rejected: the text does not fit into the context, is not valid Unicode, or has no end of a word for thousands
            of characters.
    """

    def __init__(self, engine: LiveQueue, text: PromptBuilder, options: UtteranceOptions) -> None:
        self.stream = engine.new_stream()
        self._engine = engine
        self._text = text
        self._options = options
        self._committer = text.live_text(options.word_times)
        self._tokens_to_start = text.tokens_to_start(options)
        self._ids: list[int] = []
        """Final text ids that are not sent yet."""
        self._tokens = 0
        self._started = False
        self._complete = False
        text.build(options, [text.end_of_text_id], complete=True)  # for its errors, before the first text arrives

    def append(self, text: str, word_ends: bool = False) -> None:
        """Adds text. Its words are spoken once later text can no longer change their tokens.

        `word_ends` says that the text ends with a letter or a digit, and that no letter, digit or mark follows it. Its
        last word is then spoken at once.
        """
        assert not self._complete, "the text has been ended"
        check_characters("text", text)
        self._commit(self._committer.append(text, word_ends))

    def end(self) -> None:
        """Ends the text. Raises Rejected if there was none at all."""
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
                words = tuple(self._committer.take_words(self._complete))
                text = (*self._ids, *end)
                self._engine.append_text(AppendText(self.stream.utterance_id, text, self._complete, words))
                self._ids = []
        elif self._complete or len(self._ids) >= self._tokens_to_start:
            if not self._ids:
                raise Rejected("text", "the text is blank")
            prompt = self._text.build(self._options, self._ids, self._complete)
            prompt = replace(prompt, words=tuple(self._committer.take_words(self._complete)))
            self._engine.enqueue(self._options, prompt, self.stream, self._complete)
            self._started, self._ids = True, []
