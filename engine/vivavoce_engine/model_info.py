"""What a checkpoint can do, told from its files alone: nothing has to be loaded for it."""

from vivavoce_engine.checkpoint import Checkpoint
from vivavoce_engine.request import ModelInfo
from vivavoce_engine.text import TextFrontend


def model_info(name: str, checkpoint: Checkpoint, text: TextFrontend) -> ModelInfo:
    """`name` is what clients call it."""
    return ModelInfo(
        name=name,
        task=checkpoint.task,
        speakers=text.speakers,
        languages=text.languages,
        takes_instructions=checkpoint.takes_instructions,
        sampling=checkpoint.sampling,
        max_frames=checkpoint.max_new_tokens,
        sample_rate=checkpoint.codec.sample_rate,
        samples_per_frame=checkpoint.codec.samples_per_frame,
        embedding_size=0 if checkpoint.task == "voice_design" else checkpoint.talker.transformer.hidden_size,
        clones=checkpoint.encoder is not None,
        max_utterance_chars=checkpoint.max_utterance_chars,
    )
