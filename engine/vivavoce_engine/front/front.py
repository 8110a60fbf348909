"""The callers' side of an engine, wherever its loop runs: requests go in, streams come out. Torch-free."""

import asyncio
import itertools
import math
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.batching.line import Accepted, Line, LoopState, Waiting
from vivavoce_engine.batching.messages import AppendText, Cancel, Command, Submit
from vivavoce_engine.batching.pending import Pending, TrailingText
from vivavoce_engine.batching.runner import Frontend, builder_of
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import NotServing, Rejected
from vivavoce_engine.front.answer import EXPECTED_TOKENS, SpokenAnswer
from vivavoce_engine.front.interface import EngineStats, SpeechEngine
from vivavoce_engine.front.live import LiveUtterance
from vivavoce_engine.front.stream import AudioStream
from vivavoce_engine.request import ModelInfo, SynthesisRequest, ThinkerPrompt, UtteranceOptions, draw_seed
from vivavoce_engine.text.answer import AnswerFrontend
from vivavoce_engine.text.prompt import Prompt
from vivavoce_engine.voices.registry import Voices


class EngineFront(SpeechEngine):
    """An engine whose loop runs on another thread or in another process. Subclasses say where."""

    def __init__(self, info: ModelInfo, text: Frontend, config: EngineConfig, voices: Voices) -> None:
        super().__init__(info, config, voices)
        self.text = text
        self._admission = Admission(config, info.frame_s)
        self._sharing: Sequence[SpeechEngine] = (self,)
        self._ids = itertools.count(1)
        self._accepting = False
        self._gate = threading.Lock()
        """Held while a request is sent and while the loop ends, so that no request goes to a loop that has ended."""
        self._accepted = Accepted()

    # ---- for subclasses ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def step_s(self) -> float:
        """Duration of the present step, as in EngineStats."""

    @abstractmethod
    def _loop_state(self) -> LoopState: ...

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Hands a command to the loop, from any thread, without waiting."""

    @abstractmethod
    def _on_read(self, stream: AudioStream) -> None:
        """Called when a reader takes a piece. Its row may have rested because of unread audio."""

    # ---- callers ----------------------------------------------------------------------------------------------

    def drain(self) -> None:
        self._accepting = False

    def stats(self) -> EngineStats:
        state = self._loop_state()
        return EngineStats(self._accepted.waiting(state), state.running, state.steps, state.frames, self.step_s)

    def share_queue(self, engines: Sequence[SpeechEngine]) -> None:
        self._sharing = engines

    def check_room(self, max_wait_s: float | None) -> None:
        if not self.ready:
            raise NotServing("the engine is not serving")
        self._check(Waiting("", 0.0), max_wait_s)

    def _check(self, request: Waiting, max_wait_s: float | None) -> None:
        others = [line for engine in self._sharing for line in engine.lines(but=self)]
        self._admission.check(self.line, request, max_wait_s, others)

    def submit(self, request: SynthesisRequest) -> AudioStream:
        if not self.ready:
            raise NotServing("the engine is not serving")
        self._check_word_times(request)
        return self.enqueue(request, self._prompt(request), self.new_stream())

    def open(self, options: UtteranceOptions) -> LiveUtterance:
        if not self.ready:
            raise NotServing("the engine is not serving")
        assert options.context is None, "live text begins an acoustic context of its own"
        self._check_word_times(options)
        return LiveUtterance(self, builder_of(self.text), replace(options, streaming_text=True, end_after_text=True))

    def open_answer(self, options: UtteranceOptions, prompt: ThinkerPrompt) -> SpokenAnswer:
        if not self.ready:
            raise NotServing("the engine is not serving")
        if not isinstance(self.text, AnswerFrontend):
            raise Rejected("model", "this model speaks texts, and has no thinker whose answers it could speak")
        self._check_word_times(options)
        return SpokenAnswer(self, self.text, options, self.text.prompt(options, prompt))

    def _check_word_times(self, options: UtteranceOptions) -> None:
        if options.word_times and not self.info.word_times:
            raise Rejected("word_times", "this model cannot tell when its words are spoken")

    def new_stream(self) -> AudioStream:
        """A stream for an utterance that is not queued yet."""
        return AudioStream(next(self._ids), asyncio.get_running_loop(), self._cancel, self._on_read)

    def enqueue(
        self, options: UtteranceOptions, prompt: Prompt, stream: AudioStream, complete: bool = True
    ) -> AudioStream:
        """Queues an utterance; more text may follow by `append_text` unless it is `complete`. Raises as `submit`."""
        max_frames = self._frame_limit(options, prompt)
        tokens = max(prompt.text_tokens, EXPECTED_TOKENS) if prompt.reads_first else prompt.text_tokens
        frames = self._admission.estimate_frames(tokens, max_frames)
        queued_s = time.monotonic()
        deadline_s = math.inf if options.max_wait_s is None else queued_s + options.max_wait_s
        pending = Pending(
            utterance_id=stream.utterance_id,
            request=options,
            prompt=prompt,
            seed=draw_seed() if options.seed is None else options.seed,
            max_frames=max_frames,
            stream=stream,
            trailing=TrailingText(prompt.trailing_ids, complete, prompt.text_tokens, prompt.words),
            frames=frames,
            deadline_s=deadline_s,
            queued_s=queued_s,
        )
        if not options.is_next:
            self._check(pending.waiting(self.info.frame_s), options.max_wait_s)
        with self._gate:
            self._accept(pending)
        return stream

    def _accept(self, pending: Pending) -> None:
        """Sends an utterance to the loop. Call it with the gate held."""
        if not self._accepting:
            raise NotServing("the engine has stopped")
        self._accepted.add(pending.utterance_id, pending.waiting(self.info.frame_s))
        self._send(Submit(pending))

    @property
    def line(self) -> Line:
        """The queue of this engine."""
        return Line.of(self._accepted, self._loop_state(), self.config.rows)

    def lines(self, but: SpeechEngine | None = None) -> Sequence[Line]:
        return () if self is but else (self.line,)

    def append_text(self, message: AppendText) -> None:
        """Sends more text of a live utterance that has been queued."""
        self._send(message)

    def _prompt(self, request: SynthesisRequest) -> Prompt:
        """The prompt of a request.

        It includes the request's context if the model can go on from it and half of the positions stay free.
        """
        builder = builder_of(self.text)
        prompt = builder.prompt(request)
        if request.context is None:
            return prompt
        positions = prompt.prefill_tokens + len(prompt.trailing_ids)
        chars = len(request.context.text) + len(request.text)
        known = self.info.max_utterance_chars is None or chars <= (self.info.max_context_chars or 0)
        if known and 2 * positions <= self.config.max_context:
            return prompt
        text = request.text.lstrip()
        prompt, blanks = builder.prompt(replace(request, context=None, text=text)), len(request.text) - len(text)
        return replace(prompt, words=tuple(word.moved(blanks) for word in prompt.words))

    def _frame_limit(self, options: UtteranceOptions, prompt: Prompt) -> int:
        room = self.config.max_context - prompt.prefill_tokens
        if room <= len(prompt.trailing_ids):
            tokens = prompt.prefill_tokens + len(prompt.trailing_ids)
            field = "prompt" if prompt.reads_first else "text"
            raise Rejected(field, f"the {field} takes {tokens} of {self.config.max_context} positions")
        return min(room, options.max_frames or self.info.max_frames)

    def _cancel(self, utterance_id: int) -> None:
        self._send(Cancel(utterance_id))
