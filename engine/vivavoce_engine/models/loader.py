"""Loads safetensors files into modules. A tensor that is neither used nor known to be unused is an error.

Modules hold some weights in another form than the file: packed, projected, exponentiated. Each change is made once,
here. Tensor names are those of the released checkpoints.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.checkpoint.networks import CodecDecoderConfig, EncoderConfig, TalkerConfig, TransformerConfig
from vivavoce_engine.errors import CheckpointError, is_device_lost, is_out_of_memory
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.codec_decoder import CodecDecoder
from vivavoce_engine.models.codec_encoder import CodecEncoder
from vivavoce_engine.models.speaker_encoder import SpeakerEncoder
from vivavoce_engine.models.talker import Talker, TextProjection

NAMED_IN_ERROR = 5
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


SPEAKER_ENCODER = "speaker_encoder."
CODEC_ENCODER = "encoder."
UNSPOKEN_CODEBOOKS = "encoder.quantizer.acoustic_residual_vector_quantizer.layers."
"""Prefix of Mimi's codebooks. It has more of them than the talker."""


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Opens a safetensors file. Raises CheckpointError if it is broken."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is no complete safetensors file: {error}") from error


class Weights:
    """The tensors of one safetensors file, with a record of which were taken.

    A tensor goes to the device only when it is taken. On a GPU, temporary tensors between permanent ones would leave
    holes too small for anything else. Missing names are collected, and `check` reports all of them at once.
    """

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype, prefix: str = "") -> None:
        """Reads the tensors whose names begin with `prefix`."""
        with opened(path) as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 (no mapping)
            self._tensors = {name: file.get_tensor(name) for name in names}
        self._path = path
        self._device = device
        self.dtype = dtype
        self._asked: set[str] = set()

    def take(self, *names: str) -> Tensor:
        """Returns one tensor, or several joined along their first axis, on the device and in `dtype`. Empty if one of
        them is missing."""
        self._asked.update(names)
        if any(name not in self._tensors for name in names):
            return torch.empty(0)
        parts = [self._tensors[name].to(self._device, self.dtype) for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def take_as_it_is(self, name: str) -> Tensor:
        """Returns a tensor on the host and in the file's dtype. Empty if it is missing."""
        self._asked.add(name)
        return self._tensors[name] if name in self._tensors else torch.empty(0)

    def take_float32(self, name: str) -> Tensor:
        """Returns a tensor in float32, for arithmetic that must not be rounded to `dtype`. Empty if it is missing."""
        self._asked.add(name)
        return self._tensors[name].to(self._device, torch.float32) if name in self._tensors else torch.empty(0)

    def check(self, unused: Iterable[str]) -> None:
        """Raises CheckpointError if a taken tensor does not exist, or if a tensor was not taken and its name does not
        begin with one of `unused`."""
        missing = sorted(self._asked - self._tensors.keys())
        unexpected = sorted(name for name in self._tensors.keys() - self._asked if not name.startswith(tuple(unused)))
        for kind, names in (("lacks", missing), ("has unexpected", unexpected)):
            if names:
                more = f" and {len(names) - NAMED_IN_ERROR} more" if len(names) > NAMED_IN_ERROR else ""
                raise CheckpointError(f"{self._path} {kind} tensors: {', '.join(names[:NAMED_IN_ERROR])}{more}")


State = dict[str, Tensor]


def load_models(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, codec_dtype: torch.dtype | None = None
) -> tuple[Talker, CodePredictor, CodecDecoder]:
    """Loads all networks for inference, the codec's decoder in `codec_dtype` if that is given.

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
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, codec_dtype: torch.dtype
) -> tuple[Talker, CodePredictor, CodecDecoder]:
    main = Weights(checkpoint.path / "model.safetensors", device, dtype)
    talker, predictor, text_projection = _main_state(main, checkpoint.talker)
    main.check(unused=(SPEAKER_ENCODER,) if checkpoint.encoder else ())
    codec_file = Weights(checkpoint.path / "speech_tokenizer/model.safetensors", device, codec_dtype)
    codec = _codec_state(codec_file, checkpoint.codec)
    codec_file.check(unused=ENCODING_TENSORS)
    path = checkpoint.path
    with torch.no_grad():
        _project_text(path, checkpoint.talker, talker, text_projection)
        _project_codes(checkpoint.talker, talker, predictor)
    return (
        _build(path, lambda: Talker(checkpoint.talker), talker, device),
        _build(path, lambda: CodePredictor(checkpoint.talker), predictor, device),
        _build(path, lambda: CodecDecoder(checkpoint.codec), codec, device),
    )


def load_encoders(path: Path, config: EncoderConfig, device: torch.device) -> tuple[SpeakerEncoder, CodecEncoder]:
    """Loads the encoders of reference audio, in float32. In bfloat16 a quarter of the codes would differ.

    Raises:
        CheckpointError: as load_models.
    """
    return _load_speaker_encoder(path, config, device), _load_codec_encoder(path, config, device)


def _load_speaker_encoder(path: Path, config: EncoderConfig, device: torch.device) -> SpeakerEncoder:
    file = Weights(path / "model.safetensors", device, torch.float32, SPEAKER_ENCODER)
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
    file = Weights(path / "speech_tokenizer/model.safetensors", device, torch.float32, CODEC_ENCODER)
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
    talker["text_embedding.weight"] = file.take_as_it_is("talker.model.text_embedding.weight")
    talker["codec_embedding.weight"] = file.take("talker.model.codec_embedding.weight")
    talker["codec_head.weight"] = file.take("talker.codec_head.weight")
    prefix = "talker.code_predictor."
    predictor = _transformer_state(file, f"{prefix}model.", config.predictor)
    for group in range(config.num_code_groups - 1):
        predictor[f"codec_embedding.{group}.weight"] = file.take(f"{prefix}model.codec_embedding.{group}.weight")
        predictor[f"lm_head.{group}.weight"] = file.take(f"{prefix}lm_head.{group}.weight")
    if config.has_projection:
        for kind in ("weight", "bias"):
            predictor[f"projection.{kind}"] = file.take(f"{prefix}small_to_mtp_projection.{kind}")
    text_projection = {
        f"{layer}.{kind}": file.take(f"talker.text_projection.{layer}.{kind}")
        for layer in ("linear_fc1", "linear_fc2")
        for kind in ("weight", "bias")
    }
    return talker, predictor, text_projection


def _transformer_state(file: Weights, prefix: str, config: TransformerConfig) -> State:
    state = {"transformer.norm.weight": file.take(f"{prefix}norm.weight")}
    for layer in range(config.num_hidden_layers):
        source, target = f"{prefix}layers.{layer}.", f"transformer.layers.{layer}."
        state |= _packed_state(file, source, target)
        norms = [
            file.take(f"{source}self_attn.{name}.weight").expand(heads, -1)
            for name, heads in (("q_norm", config.num_attention_heads), ("k_norm", config.num_key_value_heads))
        ]
        state[f"{target}self_attn.qk_norm.weight"] = torch.cat(norms)
    return state


def _packed_state(file: Weights, source: str, target: str) -> State:
    """Packs q, k and v, and gate and up, of a block into one matrix each."""
    state = {
        f"{target}self_attn.qkv_proj.weight": file.take(*(f"{source}self_attn.{x}_proj.weight" for x in "qkv")),
        f"{target}mlp.gate_up_proj.weight": file.take(*(f"{source}mlp.{x}_proj.weight" for x in ("gate", "up"))),
    }
    for name in ("self_attn.o_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"):
        state[f"{target}{name}.weight"] = file.take(f"{source}{name}.weight")
    return state


def _project_text(path: Path, config: TalkerConfig, talker: State, projection: State) -> None:
    """Replaces the wide text embedding by its projection, so that a token is one look-up.

    The embedding goes to the device part by part: at once it would take more memory than the engine has left on a small
    card.
    """
    embedding, like = talker["text_embedding.weight"], projection["linear_fc1.weight"]
    hidden = config.transformer.hidden_size
    module = _build(path, lambda: TextProjection(config.text_hidden_size, hidden), projection, like.device)
    projected = like.new_empty(len(embedding), hidden)
    for at in range(0, len(embedding), TEXT_ROWS_AT_ONCE):
        part = slice(at, at + TEXT_ROWS_AT_ONCE)
        projected[part] = module(embedding[part].to(like))
    talker["text_embedding.weight"] = projected


def _project_codes(config: TalkerConfig, talker: State, predictor: State) -> None:
    """Adds the code predictor's inputs, projected to its width if that differs from the talker's."""
    tables = [talker["codec_embedding.weight"]]
    tables += [predictor[f"codec_embedding.{group}.weight"] for group in range(config.num_code_groups - 2)]
    for group, table in enumerate(tables):
        if config.has_projection:
            table = F.linear(table, predictor["projection.weight"], predictor["projection.bias"])
        predictor[f"input_embedding.{group}.weight"] = table


def _codec_state(file: Weights, config: CodecDecoderConfig) -> State:
    """Reads the decoder.* half of speech_tokenizer/model.safetensors."""
    state = _dequantizer_state(file, config)
    _take_taps(file, state, "decoder.pre_conv.conv", "pre_conv")
    source, target = "decoder.pre_transformer.", "pre_transformer."
    for name in ("input_proj", "output_proj"):
        _take_layer(file, state, f"{source}{name}", f"{target}{name}")
    state[f"{target}norm.weight"] = file.take(f"{source}norm.weight")
    for layer in range(config.transformer.num_hidden_layers):
        block = f"layers.{layer}."
        state |= _packed_state(file, f"{source}{block}", f"{target}{block}")
        for name in ("self_attn_layer_scale", "mlp_layer_scale"):
            state[f"{target}{block}{name}"] = file.take(f"{source}{block}{name}.scale")
    for stage in range(len(config.upsampling_ratios)):
        source, target = f"decoder.upsample.{stage}.", f"upsample.{stage}."
        _take_transposed(file, state, f"{source}0.conv", f"{target}conv", config.upsampling_ratios[stage])
        _take_taps(file, state, f"{source}1.dwconv.conv", f"{target}block.dwconv", flat=True)
        for name in ("norm", "pwconv1", "pwconv2"):
            _take_layer(file, state, f"{source}1.{name}", f"{target}block.{name}")
        state[f"{target}block.gamma"] = file.take(f"{source}1.gamma")
    _take_waveform_stages(file, state, config.upsample_rates)
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


def _take_waveform_stages(file: Weights, state: State, rates: tuple[int, ...]) -> None:
    """Takes decoder.decoder.0 to stages + 2: first convolution, upsampling blocks, last activation and convolution."""
    source, stages = "decoder.decoder.", len(rates)
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
    state[f"{target}.frequency"] = frequency.to(file.dtype)
    state[f"{target}.magnitude"] = magnitude.to(file.dtype)


def _dequantizer_state(file: Weights, config: CodecDecoderConfig) -> State:
    state: State = {}
    semantic = config.num_semantic_quantizers
    for group in range(config.num_quantizers):
        rvq, layer = ("rvq_first", group) if group < semantic else ("rvq_rest", group - semantic)
        prefix = f"decoder.quantizer.{rvq}.vq.layers.{layer}._codebook."
        usage = file.take_float32(f"{prefix}cluster_usage").clamp(min=USAGE_MIN)
        total = file.take_float32(f"{prefix}embedding_sum")
        both = total.numel() and usage.numel()  # `check` reports a missing one
        state[f"quantizer.codebooks.{group}"] = (total / usage[:, None]).to(file.dtype) if both else total
    for rvq, name in (("rvq_first", "semantic_proj"), ("rvq_rest", "acoustic_proj")):
        weight = file.take(f"decoder.quantizer.{rvq}.output_proj.weight")
        state[f"quantizer.{name}.weight"] = weight.flatten(1) if weight.numel() else weight  # a 1x1 convolution
    return state
