"""A Pipecat pipeline of one speaking service, fed with a language model's words and heard at its end."""

import asyncio
import sys

from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    StartFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.ai_service import AIService

from tests.clients.real.steps import FIRST_TEXT, Client, Sound, Words, follow

logger.remove()
logger.add(sys.stderr, level="WARNING")


class Listener(FrameProcessor):  # type: ignore[misc]
    """The end of the pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.sound = Sound()
        self.over = asyncio.Event()
        """Set at the end of a turn."""
        self.interrupted = asyncio.Event()
        self.started = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        match frame:
            case StartFrame():
                self.started.set()
            case TTSAudioRawFrame():
                self.sound.add(frame.audio, frame.sample_rate)
            case TTSStoppedFrame():
                self.over.set()
            case InterruptionFrame():
                self.interrupted.set()
        await self.push_frame(frame, direction)


class Agent(Client):
    """A service that speaks the words of a language model."""

    def __init__(self, service: AIService) -> None:
        super().__init__()
        self.service = service
        self.listener = Listener()
        self.task = PipelineTask(
            Pipeline([service, self.listener]),
            params=PipelineParams(audio_out_sample_rate=24000),
            idle_timeout_secs=None,
        )
        self.task.add_event_handler("on_pipeline_error", self._take_error)

    async def say(self, words: Words, sound: Sound) -> None:
        self.listen(sound)
        await self.task.queue_frame(LLMFullResponseStartFrame())
        async for word in words:
            await self.task.queue_frame(LLMTextFrame(word))
        await self.task.queue_frame(LLMFullResponseEndFrame())
        await self.listener.over.wait()

    def listen(self, sound: Sound) -> None:
        """Begins a turn."""
        self.listener.sound = sound
        self.listener.over.clear()
        self.listener.interrupted.clear()

    async def interrupt(self) -> None:
        await self.task.queue_frame(InterruptionFrame())
        await self.listener.interrupted.wait()

    async def _take_error(self, task: PipelineTask, frame: ErrorFrame) -> None:
        self.errors.append(frame.error)


async def run(agent: Agent, first_text: str = FIRST_TEXT) -> None:
    """Follows the session, with the pipeline beside it."""
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(agent.task))
    await agent.listener.started.wait()
    await follow(agent, first_text)
    await agent.task.queue_frame(EndFrame())
    await running
