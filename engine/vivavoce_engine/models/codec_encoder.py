"""The codec's encoder: 24 kHz audio → codec frames, by transformers' Mimi (arXiv 2410.00037).

Reference: qwen-tts 0.1.1, Qwen3TTSTokenizerV2Encoder, on transformers 4.57.3, whose attention saw every earlier
position, whatever the configuration's sliding_window says. Later versions apply the window, so it is set out of reach.
"""

from typing import Any

from torch import Tensor, nn

from vivavoce_engine.checkpoint.files import CodecEncoderConfig

NO_WINDOW = 1_000_000
"""Positions; more than any reference has."""


class CodecEncoder(nn.Module):
    """Has no decoder, and of the codebooks only those that the talker speaks."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        from transformers import MimiConfig, MimiModel  # seconds to import, and most checkpoints do not encode

        changes: dict[str, Any] = {"num_quantizers": config.num_quantizers, "sliding_window": NO_WINDOW}
        self.mimi = MimiModel(MimiConfig(**{**config.mimi, **changes}))
        self.groups = config.num_quantizers
        for decoding in ("upsample", "decoder_transformer", "decoder"):
            delattr(self.mimi, decoding)

    def forward(self, audio: Tensor) -> Tensor:
        """audio [B, samples] float32 → codes [B, frames, groups]; the last frame may be partly silence.

        Audio of another length is not padded here: padding changes the last frame of what is shorter.
        """
        codes = self.mimi.encode(audio[:, None], return_dict=False)[0]
        assert isinstance(codes, Tensor)
        return codes.transpose(1, 2)
