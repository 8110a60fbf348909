"""The codec's encoder: 24 kHz audio → codec frames, by transformers' Mimi (arXiv 2410.00037).

Reference: qwen-tts 0.1.1, Qwen3TTSTokenizerV2Encoder, on transformers 4.57.3. There, attention sees every earlier
position and ignores the configuration's sliding_window. Later versions of transformers apply the window, so it is set
to more than any audio has.
"""

from typing import Any

from torch import Tensor, nn

from vivavoce_engine.checkpoint.networks import CodecEncoderConfig

NO_WINDOW = 1_000_000
"""Window in positions, longer than any reference."""


class CodecEncoder(nn.Module):
    """Mimi without its decoder, and with only the codebooks that the talker speaks."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        from transformers import MimiConfig, MimiModel  # seconds to import, and most checkpoints do not encode

        changes: dict[str, Any] = {"num_quantizers": config.num_quantizers, "sliding_window": NO_WINDOW}
        self.mimi = MimiModel(MimiConfig(**{**config.mimi, **changes}))
        self.groups = config.num_quantizers
        for decoding in ("upsample", "decoder_transformer", "decoder"):
            delattr(self.mimi, decoding)

    def forward(self, audio: Tensor) -> Tensor:
        """audio [B, samples] float32 → codes [B, frames, groups]. The last frame may be partly silence.

        Do not pad audio of different lengths into one batch: padding changes the last frame of the shorter one.
        """
        codes = self.mimi.encode(audio[:, None], return_dict=False)[0]
        assert isinstance(codes, Tensor)
        return codes.transpose(1, 2)
