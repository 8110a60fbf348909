"""A checkpoint folder on disk: its location, and its JSON files as typed values. Torch-free.

Two families can be served. Qwen3-TTS (reference: qwen-tts 0.1.1) has config.json, generation_config.json, tokenizer
files, model.safetensors, and speech_tokenizer/ with the codec. Qwen3-Omni (`omni.py`) has all weights in shards beside
its config.json. Field names are those of the files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast, get_args

from vivavoce_engine.checkpoint import omni
from vivavoce_engine.checkpoint.alignment import Alignment, read_alignment
from vivavoce_engine.checkpoint.json_file import JsonFile
from vivavoce_engine.checkpoint.networks import (
    CODEBOOKS_MAX,
    CodecDecoderConfig,
    CodecEncoderConfig,
    EncoderConfig,
    SpeakerEncoderConfig,
    TalkerConfig,
    read_transformer,
)
from vivavoce_engine.checkpoint.omni import ChatConfig
from vivavoce_engine.checkpoint.shards import shards_of
from vivavoce_engine.checkpoint.speakers import released_speakers
from vivavoce_engine.errors import CheckpointError
from vivavoce_engine.request import ReadableText, Sampling, SamplingParams, SpeakerInfo, SpeechTask, TaskType

REFERENCE_SAMPLE_RATE = 24000
"""Sample rate, in Hz, of the audio that both encoders read. The speaker encoder's mel bins are defined for it."""
TTS_MODEL_TYPE = "qwen3_tts"
SPEECH_TOKENIZER = "speech_tokenizer"
"""Folder of a Qwen3-TTS checkpoint that holds the codec."""
SHARD_PATTERN = "model-*-of-*.safetensors"
JSON_FILES = ("config.json", "generation_config.json", "vocab.json", "merges.txt")
CODEC_CONFIG = f"{SPEECH_TOKENIZER}/config.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything about a checkpoint except its weights."""

    path: Path
    task: TaskType
    model_size: str
    im_start_token_id: int
    im_end_token_id: int
    assistant_token_id: int
    tts_pad_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int
    talker: TalkerConfig
    codec: CodecDecoderConfig
    sampling: Sampling
    max_new_tokens: int
    encoder: EncoderConfig | None = None
    max_utterance_chars: int | None = None
    """Longest text that the model speaks reliably as one utterance. Not in the reference's generation_config.json."""
    max_context_chars: int | None = None
    """Longest text of an utterance with that of the context before it, for a model that has `max_utterance_chars`. None
    if it goes on from no context. Not in the reference's generation_config.json."""
    text: ReadableText = field(default_factory=ReadableText)
    """The text that the model reads. Not in the reference's generation_config.json."""
    speakers: Mapping[str, SpeakerInfo] = field(default_factory=dict)
    """Sound of the preset speakers that are known, by name. Not in the reference's generation_config.json."""
    alignment: Alignment | None = None
    """The talker's head that follows the text, if one is known. Not in the reference's generation_config.json."""
    chat: ChatConfig | None = None
    """Ids of which the prompts of a chat model are made. None for a model that reads text aloud."""

    @property
    def max_frames(self) -> int:
        """Frames of the longest speech. Qwen3-Omni counts the token that would have drawn one more."""
        return self.max_new_tokens if self.chat is None else self.max_new_tokens - 1

    @property
    def takes_instructions(self) -> bool:
        """False for a 0.6B CustomVoice model, which was not trained with instructions. The reference drops them."""
        return self.task == "voice_design" or (self.task == "custom_voice" and self.model_size != "0b6")


def weight_files(path: Path) -> tuple[Path, ...]:
    """The safetensors files from which a checkpoint speaks; of Qwen3-Omni those of the talker and Code2Wav alone.

    Raises:
        CheckpointError: config.json or an index of shards is broken.
    """
    if _model_type(path) == omni.MODEL_TYPE:
        return shards_of(path, omni.SPEECH_TENSORS)
    return (*shards_of(path), *shards_of(path / SPEECH_TOKENIZER))


def missing_files(path: Path) -> list[str]:
    """The files that a checkpoint lacks and could not speak without. Raises CheckpointError as `weight_files` does."""
    named = JSON_FILES if _model_type(path) == omni.MODEL_TYPE else (*JSON_FILES, CODEC_CONFIG)
    files = (*(path / name for name in named), *weight_files(path))
    return [file.relative_to(path).as_posix() for file in files if not file.is_file()]


def _model_type(path: Path) -> str:
    """The family that config.json names; that of Qwen3-TTS without such a file."""
    config = path / "config.json"
    return JsonFile(config).value("model_type", str) if config.is_file() else TTS_MODEL_TYPE


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint folder's JSON files.

    Raises:
        CheckpointError: names the missing file, or the file and key at fault.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder")
    readers = {TTS_MODEL_TYPE: ("Qwen3-TTS", _read_tts), omni.MODEL_TYPE: ("Qwen3-Omni", _read_omni)}
    model_type = _model_type(path)
    if model_type not in readers:
        known = " or ".join(map(repr, readers))
        raise CheckpointError(f"{path / 'config.json'}: model_type is {model_type!r}, not {known}")
    family, read = readers[model_type]
    if missing := missing_files(path):
        raise CheckpointError(f"{path} is no complete {family} checkpoint; missing: {', '.join(missing)}")
    for partial in path.rglob("*.incomplete"):
        raise CheckpointError(f"{path} is a half-finished download: {partial.name}")
    checkpoint = read(path, JsonFile(path / "config.json"), JsonFile(path / "generation_config.json"))
    groups, books = checkpoint.talker.num_code_groups, checkpoint.codec.num_quantizers
    if books < groups:
        raise CheckpointError(f"{path}: the talker makes {groups} codes a frame, the codec knows {books}")
    return checkpoint


def _read_omni(path: Path, main: JsonFile, generation: JsonFile) -> Checkpoint:
    omni.must_speak(main)
    talker = omni.read_talker(main)
    return Checkpoint(
        path=path,
        task="chat",
        model_size="",
        im_start_token_id=main.value("im_start_token_id", int),
        im_end_token_id=main.value("im_end_token_id", int),
        assistant_token_id=main.value("assistant_token_id", int),
        tts_pad_token_id=main.value("tts_pad_token_id", int),
        tts_bos_token_id=main.value("tts_bos_token_id", int),
        tts_eos_token_id=main.value("tts_eos_token_id", int),
        talker=talker,
        codec=omni.read_codec(main),
        sampling=omni.read_sampling(generation),
        max_new_tokens=generation.value("talker_max_new_tokens", int),
        speakers={**released_speakers(talker.spk_id), **_speakers(generation, talker)},
        chat=omni.read_chat(main),
    )


def _read_tts(path: Path, main: JsonFile, generation: JsonFile) -> Checkpoint:
    task = main.value("tts_model_type", str)
    if task not in get_args(SpeechTask):
        raise CheckpointError(f"{main.where('tts_model_type')} is {task!r}, not one of {get_args(SpeechTask)}")
    talker = _talker(main.section("talker_config"))
    stack = talker.transformer
    codec_file = JsonFile(path / CODEC_CONFIG)
    return Checkpoint(
        path=path,
        task=cast("TaskType", task),
        model_size=main.value("tts_model_size", str),
        im_start_token_id=main.value("im_start_token_id", int),
        im_end_token_id=main.value("im_end_token_id", int),
        assistant_token_id=main.value("assistant_token_id", int),
        tts_pad_token_id=main.value("tts_pad_token_id", int),
        tts_bos_token_id=main.value("tts_bos_token_id", int),
        tts_eos_token_id=main.value("tts_eos_token_id", int),
        talker=talker,
        codec=_codec(codec_file),
        sampling=_sampling(generation),
        max_new_tokens=generation.value("max_new_tokens", int),
        encoder=_encoder(main, codec_file, talker) if task == "base" else None,
        max_utterance_chars=_most_chars(generation, "max_utterance_chars"),
        max_context_chars=_max_context_chars(generation),
        text=_readable_text(generation),
        speakers={**released_speakers(talker.spk_id), **_speakers(generation, talker)},
        alignment=read_alignment(generation, stack.num_hidden_layers, stack.num_attention_heads),
    )


def _most_chars(generation: JsonFile, key: str) -> int | None:
    if not generation.has(key):
        return None
    chars = generation.value(key, int)
    if chars < 1:
        raise CheckpointError(f"{generation.where(key)} must be above 0, not {chars}")
    return chars


def _max_context_chars(generation: JsonFile) -> int | None:
    """Refuses a limit that nothing reads: a model that says any text in one go takes any context."""
    key = "max_context_chars"
    chars = _most_chars(generation, key)
    if chars is not None and not generation.has("max_utterance_chars"):
        raise CheckpointError(f"{generation.where(key)} has no effect without max_utterance_chars")
    return chars


def _readable_text(generation: JsonFile) -> ReadableText:
    if not generation.has("text"):
        return ReadableText()
    text, defaults = generation.section("text"), ReadableText()
    text.must_have_only("reads", "alphabet", "letters")
    return ReadableText(
        reads=text.choice("reads", ("words", "prose", "anything"), defaults.reads),
        alphabet=text.choice("alphabet", ("ascii",)) if text.has("alphabet") else None,
        letters=text.choice("letters", ("names", "spaced", "as_written"), defaults.letters),
    )


def _speakers(generation: JsonFile, talker: TalkerConfig) -> dict[str, SpeakerInfo]:
    """Reads what a checkpoint says of its speakers: speaker → sex, accent, language and description, each optional."""
    if not generation.has("speakers"):
        return {}
    speakers = generation.section("speakers")
    speakers.must_have_only(*talker.spk_id)
    infos = {}
    for name in talker.spk_id:
        if speakers.has(name):
            file = speakers.section(name)
            file.must_have_only("sex", "accent", "language", "description")
            infos[name.lower()] = SpeakerInfo(
                sex=file.choice("sex", ("female", "male", None)),
                accent=file.optional("accent", str),
                language=file.choice("language", (*talker.codec_language_id, None)),
                description=file.optional("description", str),
            )
    return infos


def _talker(file: JsonFile) -> TalkerConfig:
    file.must_be("use_sliding_window", False)
    predictor = file.section("code_predictor_config")
    predictor.must_be("use_sliding_window", False)
    groups = file.value("num_code_groups", int)
    predictor.must_be("num_code_groups", groups)
    if groups > CODEBOOKS_MAX:
        raise CheckpointError(f"{file.where('num_code_groups')} is {groups}; at most {CODEBOOKS_MAX} are supported")
    return TalkerConfig(
        transformer=read_transformer(file),
        predictor=read_transformer(predictor),
        predictor_vocab_size=predictor.value("vocab_size", int),
        num_code_groups=groups,
        vocab_size=file.value("vocab_size", int),
        text_vocab_size=file.value("text_vocab_size", int),
        text_hidden_size=file.value("text_hidden_size", int),
        text_projection_size=file.value("text_hidden_size", int),
        codec_pad_id=file.value("codec_pad_id", int),
        codec_bos_id=file.value("codec_bos_id", int),
        codec_eos_token_id=file.value("codec_eos_token_id", int),
        codec_think_id=file.value("codec_think_id", int),
        codec_nothink_id=file.value("codec_nothink_id", int),
        codec_think_bos_id=file.value("codec_think_bos_id", int),
        codec_think_eos_id=file.value("codec_think_eos_id", int),
        codec_language_id=file.ids("codec_language_id", file.value("vocab_size", int)),
        spk_id=file.ids("spk_id", file.value("vocab_size", int)),
        spk_is_dialect=file.value("spk_is_dialect", dict),
    )


def _codec(file: JsonFile) -> CodecDecoderConfig:
    if file.value("model_type", str) != "qwen3_tts_tokenizer_12hz":
        raise CheckpointError(f"{file.where('model_type')} must be 'qwen3_tts_tokenizer_12hz'")
    decoder = file.section("decoder_config")
    rates = decoder.ints("upsample_rates")
    ratios = decoder.ints("upsampling_ratios")
    samples_per_frame = file.value("decode_upsample_rate", int)
    total = 1
    for rate in (*rates, *ratios):
        total *= rate
    if total != samples_per_frame:
        raise CheckpointError(f"{file.where('decode_upsample_rate')} is {samples_per_frame}; the decoder makes {total}")
    return CodecDecoderConfig(
        transformer=read_transformer(decoder),
        sliding_window=decoder.value("sliding_window", int),
        latent_dim=decoder.value("latent_dim", int),
        codebook_dim=decoder.value("codebook_dim", int),
        codebook_size=decoder.value("codebook_size", int),
        num_quantizers=decoder.value("num_quantizers", int),
        num_semantic_quantizers=decoder.value("num_semantic_quantizers", int),
        decoder_dim=decoder.value("decoder_dim", int),
        upsample_rates=rates,
        upsampling_ratios=ratios,
        sample_rate=file.value("output_sample_rate", int),
        samples_per_frame=samples_per_frame,
    )


def _encoder(main: JsonFile, codec: JsonFile, talker: TalkerConfig) -> EncoderConfig:
    """Reads both encoders of reference audio. Their output must fit the talker, which reads it."""
    file = main.section("speaker_encoder_config")
    file.must_be("sample_rate", REFERENCE_SAMPLE_RATE)
    codec.must_be("input_sample_rate", REFERENCE_SAMPLE_RATE)
    codec.must_be("encoder_valid_num_quantizers", talker.num_code_groups)
    speaker = SpeakerEncoderConfig(
        embedding_size=file.value("enc_dim", int),
        mel_bins=file.value("mel_dim", int, 128),
        channels=file.ints("enc_channels", [512, 512, 512, 512, 1536]),
        kernel_sizes=file.ints("enc_kernel_sizes", [5, 3, 3, 3, 1]),
        dilations=file.ints("enc_dilations", [1, 2, 3, 4, 1]),
        attention_channels=file.value("enc_attention_channels", int, 128),
        res2net_scale=file.value("enc_res2net_scale", int, 8),
        se_channels=file.value("enc_se_channels", int, 128),
    )
    if speaker.embedding_size != talker.transformer.hidden_size:
        raise CheckpointError(
            f"{file.where('enc_dim')} is {speaker.embedding_size}; the talker takes {talker.transformer.hidden_size}"
        )
    if not len(speaker.channels) == len(speaker.kernel_sizes) == len(speaker.dilations):
        raise CheckpointError(f"{file.where('enc_channels')}, enc_kernel_sizes and enc_dilations differ in length")
    return EncoderConfig(speaker, CodecEncoderConfig(codec.value("encoder_config", dict), talker.num_code_groups))


def _sampling(file: JsonFile) -> Sampling:
    """Reads the default sampling from generation_config.json. The code predictor's keys begin with subtalker_."""

    def params(prefix: str, switch: str, penalty: float) -> SamplingParams:
        greedy = not file.value(switch, bool, True)
        temperature = 0.0 if greedy else file.value(f"{prefix}temperature", float)
        top_k, top_p = file.value(f"{prefix}top_k", int), file.value(f"{prefix}top_p", float)
        try:
            return SamplingParams(temperature, top_k, top_p, penalty)
        except ValueError as error:
            raise CheckpointError(f"{file.where(prefix)}{error}") from error

    penalty = file.value("repetition_penalty", float)
    return Sampling(params("", "do_sample", penalty), params("subtalker_", "subtalker_dosample", 1.0))


def is_hub_id(name: str) -> bool:
    """True if a name can be a model id of the Hugging Face hub, owner/model."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def locate_checkpoint(name: str, whole: bool = False) -> Path:
    """Returns the path of a checkpoint folder.

    A name that is not a folder counts as a model id of the Hugging Face hub. Its files are downloaded unless they are
    already in the cache; of weights in shards only those from which it speaks, unless `whole` asks for all of them.

    Raises:
        CheckpointError: the name is neither a folder nor a model that the hub offers.
    """
    if Path(name).is_dir():
        return Path(name)
    if not is_hub_id(name):
        raise CheckpointError(f"{name} is neither a folder nor a hub id of the form owner/model")
    from huggingface_hub import snapshot_download  # takes a second to import, and most starts do not need it
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        if whole:
            return Path(snapshot_download(name))
        path = Path(snapshot_download(name, ignore_patterns=[SHARD_PATTERN]))
        shards = [file.name for file in weight_files(path) if file.match(SHARD_PATTERN)]
        return Path(snapshot_download(name, allow_patterns=shards)) if shards else path
    except HFValidationError as error:
        raise CheckpointError(f"{name} is neither a folder nor a hub id: {error}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(f"{name} is no folder here, and the hub did not give it: {error}") from error
