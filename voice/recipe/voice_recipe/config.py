"""Every size and constant of the recipe in one place.

The names on the right of the tables below are the keys of the exported config.json files.
"""

from __future__ import annotations

from dataclasses import dataclass

SAMPLE_RATE_HZ = 24_000
SAMPLES_PER_FRAME = 1920  # one codec frame, 80 ms
MEL_HOP_SAMPLES = 240  # 10 ms
MELS_PER_FRAME = SAMPLES_PER_FRAME // MEL_HOP_SAMPLES  # 8
MEL_BINS = 80
TEACHER_HOP_SAMPLES = 600  # one duration unit of the teacher, 25 ms
PHONEME_SYMBOLS = 178  # size of the teacher's symbol table

# Voices of the teacher → their names in this voice.
SPEAKERS: dict[str, str] = {
    "heart": "af_heart",
    "bella": "af_bella",
    "michael": "am_michael",
    "fenrir": "am_fenrir",
    "emma": "bf_emma",
    "george": "bm_george",
}
# Accent of every speaker, in the order of SPEAKERS: an index in corpus.ACCENTS.
ACCENT_OF_SPEAKER = tuple(int(voice.startswith("b")) for voice in SPEAKERS.values())

# Text ids: first those of the byte-level BPE, then directly the 33 special tokens.
TEXT_BPE_SIZE = 1119
TEXT_VOCAB_SIZE = 1152  # = TEXT_BPE_SIZE + 33
SPECIAL_IM_START, SPECIAL_IM_END = 1, 2
SPECIAL_TTS_PAD, SPECIAL_TTS_BOS, SPECIAL_TTS_EOS = 28, 29, 30


@dataclass(frozen=True)
class CodecSizes:
    """The codec: eight codebooks, a causal decoder with 1920 samples a frame, a small Mimi encoder."""

    codebooks: int = 8
    codebook_size: int = 1024
    codebook_dim: int = 64  # width of one codebook vector
    quantizer_dim: int = 128  # width after output_proj ("codebook_dim" of decoder_config)
    latent_dim: int = 256
    decoder_dim: int = 512
    hidden_size: int = 256
    intermediate_size: int = 512
    num_heads: int = 4
    head_dim: int = 64
    num_layers: int = 3
    sliding_window: int = 32
    upsampling_ratios: tuple[int, ...] = (2, 2)
    upsample_rates: tuple[int, ...] = (5, 4, 4, 6)


@dataclass(frozen=True)
class TalkerSizes:
    """The talker and its code predictor."""

    hidden_size: int = 384
    intermediate_size: int = 832
    num_layers: int = 8
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    rope_theta: float = 10_000.0
    text_hidden_size: int = 256
    text_vocab_size: int = TEXT_VOCAB_SIZE
    code_groups: int = 8
    codebook_size: int = 1024
    codec_vocab_size: int = 2048
    predictor_hidden_size: int = 256
    predictor_intermediate_size: int = 640
    predictor_layers: int = 3
    predictor_heads: int = 4
    predictor_kv_heads: int = 2


# Ids in the talker's codec vocabulary; rows 0..1023 are code 0.  The engine and the reference suppress the last
# 1024 ids (vocab_size - 1024 ..) except EOS, so every special id must lie at or above 1024.
CODEC_PAD, CODEC_BOS, CODEC_EOS = 1124, 1125, 1126
CODEC_THINK, CODEC_NOTHINK, CODEC_THINK_BOS, CODEC_THINK_EOS = 1130, 1131, 1132, 1133
CODEC_ENGLISH = 1026
CODEC_FIRST_SPEAKER = 1224

CODEC = CodecSizes()
TALKER = TalkerSizes()


def speaker_codec_id(speaker_index: int) -> int:
    """Row of the talker's codec embedding for a speaker, in the order of SPEAKERS."""
    return CODEC_FIRST_SPEAKER + speaker_index
