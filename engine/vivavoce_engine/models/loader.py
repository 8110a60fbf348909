"""Loads safetensors files into modules. A tensor that is neither used nor known to be unused is an error.

Modules hold some weights in another form than the file: packed, projected, exponentiated. Each change is made once,
here. Tensor names are those of the released checkpoints.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vivavoce_engine.checkpoint.files import SPEECH_TOKENIZER, Checkpoint
from vivavoce_engine.checkpoint.networks import CodecDecoderConfig, EncoderConfig, TalkerConfig, TransformerConfig
from vivavoce_engine.checkpoint.omni import SPEECH_TENSORS
from vivavoce_engine.checkpoint.shards import shards_of
from vivavoce_engine.errors import CheckpointError, is_device_lost, is_out_of_memory
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.codec_decoder import Code2Wav, decoder_of
from vivavoce_engine.models.codec_encoder import CodecEncoder
from vivavoce_engine.models.speaker_encoder import SpeakerEncoder
from vivavoce_engine.models.talker import InputProjection, Talker
from vivavoce_engine.models.weights import Weights

SNAKE_EPS = 1e-9
USAGE_MIN = 1e-5
TEXT_ROWS_AT_ONCE = 8192
ENCODING_TENSORS = (
    "encoder.",
    "decoder.quantizer.rvq_first.input_proj.",
    "decoder.quantizer.rvq_rest.input_proj.",
)
"""Prefixes of tensors that decoding does not use: the codec's encoder, and the decoder's projections into codebook
space."""


TALKER, THINKER_EMBEDDING = "talker.", "thinker.model.embed_tokens."
OMNI_CODE2WAV, TTS_CODE2WAV = "code2wav.", "decoder."
SPEAKER_ENCODER = "speaker_encoder."
CODEC_ENCODER = "encoder."
UNSPOKEN_CODEBOOKS = "encoder.quantizer.acoustic_residual_vector_quantizer.layers."
"""Prefix of Mimi's codebooks. It has more of them than the talker."""


State = dict[str, Tensor]


def load_models(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype | None, codec_dtype: torch.dtype | None = None
) -> tuple[Talker, CodePredictor, Code2Wav]:
    """Loads all networks for inference, the codec's decoder in `codec_dtype` if that is given.

    With dtype None weights stay as they are in the files, which map them into memory; what is computed is float32. Such
    modules are read, and do not run.

    Raises:
        CheckpointError: a file is broken, or a tensor is missing, unexpected or of another shape (names it).
    """
    try:
        return _load_models(checkpoint, device, dtype, codec_dtype or dtype)
    except RuntimeError as error:  # tensors of shapes that cannot be packed or projected
        if is_out_of_memory(error) or is_device_lost(error):
            raise
        raise CheckpointError(f"{checkpoint.path}: the weights do not fit config.json: {error}") from error


def _load_models(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype | None, codec_dtype: torch.dtype | None
) -> tuple[Talker, CodePredictor, Code2Wav]:
    if checkpoint.chat is None:
        main = Weights(shards_of(checkpoint.path), device, dtype)
        codec_file = Weights(shards_of(checkpoint.path / SPEECH_TOKENIZER), device, codec_dtype)
    else:  # the speech side alone; the thinker's weights are not even opened
        shards = shards_of(checkpoint.path, SPEECH_TENSORS)
        main = Weights(shards, device, dtype, (TALKER, THINKER_EMBEDDING))
        codec_file = Weights(shards, device, codec_dtype, (OMNI_CODE2WAV,))
    talker, predictor, text_projection = _main_state(main, checkpoint.talker)
    main.check(unused=(SPEAKER_ENCODER,) if checkpoint.encoder else ())
    codec = _codec_state(codec_file, checkpoint.codec)
    codec_file.check(unused=ENCODING_TENSORS if checkpoint.chat is None else ())
    path = checkpoint.path
    with torch.no_grad():
        _project_text(checkpoint, talker, text_projection)
        _project_codes(checkpoint.talker, talker, predictor)
    return (
        _build(path, lambda: Talker(checkpoint.talker), talker, device),
        _build(path, lambda: CodePredictor(checkpoint.talker), predictor, device),
        _build(path, lambda: decoder_of(checkpoint.codec), codec, device),
    )


def load_encoders(path: Path, config: EncoderConfig, device: torch.device) -> tuple[SpeakerEncoder, CodecEncoder]:
    """Loads the encoders of reference audio, in float32. In bfloat16 a quarter of the codes would differ.

    Raises:
        CheckpointError: as load_models.
    """
    return _load_speaker_encoder(path, config, device), _load_codec_encoder(path, config, device)


def _load_speaker_encoder(path: Path, config: EncoderConfig, device: torch.device) -> SpeakerEncoder:
    file = Weights(shards_of(path, (SPEAKER_ENCODER,)), device, torch.float32, (SPEAKER_ENCODER,))
    with torch.device("meta"):
        names = SpeakerEncoder(config.speaker).state_dict().keys()
    state = {name: file.take(f"{SPEAKER_ENCODER}{name}") for name in names}
    file.check(unused=())
    return _build(path, lambda: SpeakerEncoder(config.speaker), state, device)


def _load_codec_encoder(path: Path, config: EncoderConfig, device: torch.device) -> CodecEncoder:
    """Loads without `_build`, because Mimi's modules compute buffers that no file fills."""
    from huggingface_hub.errors import StrictDataclassError  # what transformers' configurations raise

    try:
        encoder = CodecEncoder(config.codec).requires_grad_(False)
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}/speech_tokenizer/config.json: encoder_config: {error}") from error
    file = Weights(shards_of(path / SPEECH_TOKENIZER, (CODEC_ENCODER,)), device, torch.float32, (CODEC_ENCODER,))
    state = {name: file.take(f"{CODEC_ENCODER}{name}") for name in encoder.mimi.state_dict()}
    file.check(unused=(UNSPOKEN_CODEBOOKS,))
    try:
        encoder.mimi.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: the weights do not fit config.json: {error}") from error
    return encoder.to(device).eval()


class SkipInit(TorchFunctionMode):
    """Leaves out the first values of weights, which are loaded afterwards.

    To draw them, even without storage, PyTorch imports its compiler, which takes seconds.
    """

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return function(*args, **(kwargs or {}))


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def _build(path: Path, make: Callable[[], ModuleT], state: State, device: torch.device) -> ModuleT:
    """Builds a module without storage, and assigns the loaded tensors."""
    with torch.device("meta"), SkipInit():
        module = make().requires_grad_(False)
    try:
        module.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: the weights do not fit config.json: {error}") from error
    return module.to(device).eval()


def _main_state(file: Weights, config: TalkerConfig) -> tuple[State, State, State]:
    """Reads model.safetensors → states of talker, code predictor and text projection. Embeddings are not yet projected,
    and that of the text is still on the host."""
    talker = _transformer_state(file, "talker.model.", config.transformer)
    embedding = THINKER_EMBEDDING if config.reads_hidden_states else "talker.model.text_embedding."
    talker["text_embedding.weight"] = file.take_as_it_is(f"{embedding}weight")
    talker["codec_embedding.weight"] = file.take("talker.model.codec_embedding.weight")
    talker["codec_head.weight"] = file.take("talker.codec_head.weight")
    prefix = "talker.code_predictor."
    predictor = _transformer_state(file, f"{prefix}model.", config.predictor)
    for group in range(config.num_code_groups - 1):
        predictor[f"codec_embedding.{group}.weight"] = file.take(f"{prefix}model.codec_embedding.{group}.weight")
        predictor[f"lm_head.{group}.weight"] = file.take(f"{prefix}lm_head.{group}.weight")
    if config.has_projection:
        for kind in ("weight", "bias"):
            predictor[f"projection.{kind}"] = file.take_to_compute(f"{prefix}small_to_mtp_projection.{kind}")
    if config.reads_hidden_states:
        projection = _projection_state(file, "talker.hidden_projection.")
        talker |= {f"hidden_projection.{name}": tensor for name, tensor in projection.items()}
    return talker, predictor, _projection_state(file, "talker.text_projection.")


def _projection_state(file: Weights, source: str) -> State:
    layers, kinds = ("linear_fc1", "linear_fc2"), ("weight", "bias")
    return {f"{layer}.{kind}": file.take_to_compute(f"{source}{layer}.{kind}") for layer in layers for kind in kinds}


def _transformer_state(file: Weights, prefix: str, config: TransformerConfig) -> State:
    state = {"transformer.norm.weight": file.take(f"{prefix}norm.weight")}
    for layer in range(config.num_hidden_layers):
        source, target = f"{prefix}layers.{layer}.", f"transformer.layers.{layer}."
        state |= _attention_state(file, source, target)
        if config.experts is None:
            state |= _gated_state(file, f"{source}mlp.", f"{target}mlp.")
        else:
            state |= _experts_state(file, f"{source}mlp.", f"{target}mlp.", config.experts.count)
        norms = [
            file.take(f"{source}self_attn.{name}.weight").expand(heads, -1)
            for name, heads in (("q_norm", config.num_attention_heads), ("k_norm", config.num_key_value_heads))
        ]
        state[f"{target}self_attn.qk_norm.weight"] = torch.cat(norms)
    return state


def _attention_state(file: Weights, source: str, target: str) -> State:
    """Takes a block without its MLP. q, k and v are packed into one matrix."""
    state = {f"{target}self_attn.qkv_proj.weight": file.take(*(f"{source}self_attn.{x}_proj.weight" for x in "qkv"))}
    for name in ("self_attn.o_proj", "input_layernorm", "post_attention_layernorm"):
        state[f"{target}{name}.weight"] = file.take(f"{source}{name}.weight")
    return state


def _gated_state(file: Weights, source: str, target: str) -> State:
    """Takes a gated MLP. Gate and up are packed into one matrix."""
    return {
        f"{target}gate_up_proj.weight": file.take(*(f"{source}{x}_proj.weight" for x in ("gate", "up"))),
        f"{target}down_proj.weight": file.take(f"{source}down_proj.weight"),
    }


def _experts_state(file: Weights, source: str, target: str, count: int) -> State:
    """Takes a mixture of experts. The files have three tensors an expert; here they are stacked."""
    experts = [f"{source}experts.{number}." for number in range(count)]
    state = {
        f"{target}router.weight": file.take(f"{source}gate.weight"),
        f"{target}gate_up_proj": file.take_stacked([[f"{x}gate_proj.weight", f"{x}up_proj.weight"] for x in experts]),
        f"{target}down_proj": file.take_stacked([[f"{x}down_proj.weight"] for x in experts]),
        f"{target}shared_gate.weight": file.take(f"{source}shared_expert_gate.weight"),
    }
    return state | _gated_state(file, f"{source}shared_expert.", f"{target}shared.")


def _project_text(checkpoint: Checkpoint, talker: State, projection: State) -> None:
    """Replaces the wide text embedding by its projection, so that a token is one look-up.

    The embedding goes to the device part by part: at once it would take more memory than the engine has left on a small
    card. The last bits of a product on a CPU depend on its shape, and the reference of Qwen3-Omni projects its three
    marks in a product of their own.
    """
    config, path = checkpoint.talker, checkpoint.path
    embedding, like = talker["text_embedding.weight"], projection["linear_fc1.weight"]
    module = _build(path, lambda: InputProjection(config), projection, like.device)
    projected = like.new_empty(len(embedding), config.transformer.hidden_size)
    for at in range(0, len(embedding), TEXT_ROWS_AT_ONCE):
        part = slice(at, at + TEXT_ROWS_AT_ONCE)
        projected[part] = module(embedding[part].to(like))
    if checkpoint.chat is not None:
        marks = [checkpoint.tts_bos_token_id, checkpoint.tts_eos_token_id, checkpoint.tts_pad_token_id]
        projected[marks] = module(embedding[marks][None].to(like))[0]
    talker["text_embedding.weight"] = projected


def _project_codes(config: TalkerConfig, talker: State, predictor: State) -> None:
    """Adds the code predictor's inputs, projected to its width if that differs from the talker's."""
    tables = [talker["codec_embedding.weight"]]
    tables += [predictor[f"codec_embedding.{group}.weight"] for group in range(config.num_code_groups - 2)]
    for group, table in enumerate(tables):
        if config.has_projection:
            weight, bias = predictor["projection.weight"], predictor["projection.bias"]
            table = F.linear(table.to(weight), weight, bias)
        predictor[f"input_embedding.{group}.weight"] = table


def _codec_state(file: Weights, config: CodecDecoderConfig) -> State:
    """Reads Code2Wav: of Qwen3-TTS the decoder.* half of speech_tokenizer/model.safetensors."""
    part = TTS_CODE2WAV if config.front == "split_rvq" else OMNI_CODE2WAV
    source, target = f"{part}pre_transformer.", "pre_transformer."
    if config.front == "split_rvq":
        state = _dequantizer_state(file, config)
        _take_taps(file, state, f"{part}pre_conv.conv", "pre_conv")
        for name in ("input_proj", "output_proj"):
            _take_layer(file, state, f"{source}{name}", f"{target}{name}")
    else:
        table = file.take(f"{part}code_embedding.weight")
        books = (config.num_quantizers, config.codebook_size, -1)
        state = {"embedding.weight": table.view(books) if table.numel() else table}
    state[f"{target}norm.weight"] = file.take(f"{source}norm.weight")
    for layer in range(config.transformer.num_hidden_layers):
        block = f"layers.{layer}."
        state |= _attention_state(file, f"{source}{block}", f"{target}{block}")
        state |= _gated_state(file, f"{source}{block}mlp.", f"{target}{block}mlp.")
        for name in ("self_attn_layer_scale", "mlp_layer_scale"):
            state[f"{target}{block}{name}"] = file.take(f"{source}{block}{name}.scale")
    for stage, ratio in enumerate(config.upsampling_ratios):
        source, target = f"{part}upsample.{stage}.", f"upsample.{stage}."
        _take_transposed(file, state, f"{source}0.conv", f"{target}conv", ratio)
        _take_taps(file, state, f"{source}1.dwconv.conv", f"{target}block.dwconv", flat=True)
        for name in ("norm", "pwconv1", "pwconv2"):
            _take_layer(file, state, f"{source}1.{name}", f"{target}block.{name}")
        state[f"{target}block.gamma"] = file.take(f"{source}1.gamma")
    _take_waveform_stages(file, state, f"{part}decoder.", config.upsample_rates)
    return state


def _take_layer(file: Weights, state: State, source: str, target: str) -> None:
    for kind in ("weight", "bias"):
        state[f"{target}.{kind}"] = file.take(f"{source}.{kind}")


def _take_taps(file: Weights, state: State, source: str, target: str, flat: bool = False) -> None:
    """Takes a Conv1d weight [out, in, kernel] as one matrix a tap, [kernel, in, out]. With `flat`, for in or out of 1,
    it is [kernel, channels]."""
    weight = file.take(f"{source}.weight")
    if weight.numel():
        weight = weight.permute(2, 1, 0).contiguous()
        weight = weight.flatten(1) if flat else weight
    state[f"{target}.weight"] = weight
    state[f"{target}.bias"] = file.take(f"{source}.bias")


def _take_transposed(file: Weights, state: State, source: str, target: str, stride: int) -> None:
    """Takes a ConvTranspose1d weight [in, out, taps * stride] as matrices [taps, in, stride * out], the oldest input
    first."""
    weight, bias = file.take(f"{source}.weight"), file.take(f"{source}.bias")
    if weight.numel():
        inputs, outputs, _ = weight.shape
        taps = weight.view(inputs, outputs, -1, stride).flip(2)
        weight = taps.permute(2, 0, 3, 1).reshape(-1, inputs, stride * outputs)
    state[f"{target}.conv.weight"] = weight
    state[f"{target}.conv.bias"] = bias.repeat(stride)


def _take_waveform_stages(file: Weights, state: State, source: str, rates: tuple[int, ...]) -> None:
    """Takes decoder.0 to stages + 2: first convolution, upsampling blocks, last activation and convolution."""
    stages = len(rates)
    _take_taps(file, state, f"{source}0.conv", "head")
    for stage in range(stages):
        block, target = f"{source}{stage + 1}.block.", f"blocks.{stage}."
        _take_snake(file, state, f"{block}0", f"{target}act")
        _take_transposed(file, state, f"{block}1.conv", f"{target}upsample", rates[stage])
        for unit in range(3):
            for name in ("act1", "act2"):
                _take_snake(file, state, f"{block}{unit + 2}.{name}", f"{target}units.{unit}.{name}")
            for name in ("conv1", "conv2"):
                _take_taps(file, state, f"{block}{unit + 2}.{name}.conv", f"{target}units.{unit}.{name}")
    _take_snake(file, state, f"{source}{stages + 1}", "final_act")
    _take_taps(file, state, f"{source}{stages + 2}.conv", "final_conv", flat=True)


def _take_snake(file: Weights, state: State, source: str, target: str) -> None:
    frequency = file.take_float32(f"{source}.alpha").exp()
    magnitude = 1.0 / (file.take_float32(f"{source}.beta").exp() + SNAKE_EPS)
    state[f"{target}.frequency"] = file.in_dtype(frequency)
    state[f"{target}.magnitude"] = file.in_dtype(magnitude)


def _dequantizer_state(file: Weights, config: CodecDecoderConfig) -> State:
    state: State = {}
    semantic = config.num_semantic_quantizers
    for group in range(config.num_quantizers):
        rvq, layer = ("rvq_first", group) if group < semantic else ("rvq_rest", group - semantic)
        prefix = f"decoder.quantizer.{rvq}.vq.layers.{layer}._codebook."
        usage = file.take_float32(f"{prefix}cluster_usage").clamp(min=USAGE_MIN)
        total = file.take_float32(f"{prefix}embedding_sum")
        both = total.numel() and usage.numel()  # `check` reports a missing one
        state[f"quantizer.codebooks.{group}"] = file.in_dtype(total / usage[:, None]) if both else total
    for rvq, name in (("rvq_first", "semantic_proj"), ("rvq_rest", "acoustic_proj")):
        weight = file.take(f"decoder.quantizer.{rvq}.output_proj.weight")
        state[f"quantizer.{name}.weight"] = weight.flatten(1) if weight.numel() else weight  # a 1x1 convolution
    return state
