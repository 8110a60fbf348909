"""Encodes reference audio for a Base checkpoint to clone: speaker embedding and codec frames."""

from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.device import use_device
from vivavoce_engine.errors import is_out_of_memory
from vivavoce_engine.models.loader import load_encoders
from vivavoce_engine.request import VoiceReference
from vivavoce_engine.text.transcript import TranscriptJudge


class ReferenceEncoder:
    """Encodes concurrently with the engine's thread, on a CUDA stream of its own or on the CPU.

    It computes in float32 even if the engine computes in bfloat16, where codes close to the edge between two codebook
    entries would change.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, judge: TranscriptJudge | None = None) -> None:
        assert checkpoint.encoder is not None, "only Base checkpoints encode"
        self._device, self._judge = device, judge
        self._speaker, self._codec = load_encoders(checkpoint.path, checkpoint.encoder, device)
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))  # the weights were loaded on it

    def encode(self, audio: NDArray[np.float32]) -> VoiceReference:
        """audio [samples] float32, mono, 24 kHz → speaker embedding and codes, without text.

        If memory is short, PyTorch gives back what it holds unused, and the work is done once more: libraries and
        kernels that are loaded at their first use cannot take that memory.
        """
        assert audio.ndim == 1
        assert audio.dtype == np.float32
        use_device(self._device)
        try:
            return self._encode(audio)
        except RuntimeError as error:
            if self._device.type != "cuda" or not is_out_of_memory(error):
                raise
        torch.cuda.empty_cache()
        return self._encode(audio)

    def fit(self, reference: VoiceReference) -> float | None:
        """The fit of a reference's text and codes, in nats a frame; None without a judge. See text/transcript.py.

        Raises:
            Rejected: recording and text are too long for the talker.
        """
        return None if self._judge is None else self._judge.fit(reference)

    def _encode(self, audio: NDArray[np.float32]) -> VoiceReference:
        beside = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        with torch.inference_mode(), beside:
            samples = torch.tensor(audio, device=self._device)[None]
            embedding = self._speaker(samples)[0].cpu().numpy()
            codes = self._codec(samples)[0].cpu().numpy().astype(np.int16, order="C")
        return VoiceReference(embedding, codes)
