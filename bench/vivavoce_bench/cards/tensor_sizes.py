"""Maps tensor names to sizes, for a model and a codec with given configuration files."""

from typing import Any

Sizes = dict[str, tuple[int, ...]]


def model_sizes(config: dict[str, Any]) -> Sizes:
    """Name and size of every tensor of model.safetensors."""
    talker = config["talker_config"]
    predictor = talker["code_predictor_config"]
    hidden, text, inner = talker["hidden_size"], talker["text_hidden_size"], predictor["hidden_size"]
    sizes: Sizes = {
        "talker.model.text_embedding.weight": (talker["text_vocab_size"], text),
        "talker.model.codec_embedding.weight": (talker["vocab_size"], hidden),
        **_linear("talker.text_projection.linear_fc1", text, text),
        **_linear("talker.text_projection.linear_fc2", hidden, text),
        **_stack_sizes("talker.model", talker),
        "talker.codec_head.weight": (talker["vocab_size"], hidden),
        **_stack_sizes("talker.code_predictor.model", predictor),
    }
    for group in range(talker["num_code_groups"] - 1):
        codes = predictor["vocab_size"]
        # The embedding also feeds the talker, so it is as wide as the talker.
        sizes[f"talker.code_predictor.model.codec_embedding.{group}.weight"] = (codes, hidden)
        sizes[f"talker.code_predictor.lm_head.{group}.weight"] = (codes, inner)
    if inner != hidden:
        sizes |= _linear("talker.code_predictor.small_to_mtp_projection", inner, hidden)
    if "speaker_encoder_config" in config:
        sizes |= _speaker_encoder_sizes(config["speaker_encoder_config"])
    return sizes


def _linear(name: str, *size: int) -> Sizes:
    return {f"{name}.weight": size, f"{name}.bias": (size[0],)}


def _stack_sizes(prefix: str, config: dict[str, Any]) -> Sizes:
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    sizes: Sizes = {f"{prefix}.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        sizes |= {
            f"{prefix}.layers.{layer}.{name}.weight": size
            for name, size in {
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (queries, hidden),
                "self_attn.k_proj": (keys, hidden),
                "self_attn.v_proj": (keys, hidden),
                "self_attn.o_proj": (hidden, queries),
                "self_attn.q_norm": (head,),
                "self_attn.k_norm": (head,),
                "mlp.gate_proj": (inner, hidden),
                "mlp.up_proj": (inner, hidden),
                "mlp.down_proj": (hidden, inner),
            }.items()
        }
    return sizes


def _speaker_encoder_sizes(config: dict[str, Any]) -> Sizes:
    mel, res2net_scale = 128, 8  # defaults of the reference, absent from the released files
    width, merged = config["enc_channels"][0], config["enc_channels"][-1]
    attention, squeeze = config["enc_attention_channels"], config["enc_se_channels"]
    chunk = width // res2net_scale
    sizes = _linear("speaker_encoder.blocks.0.conv", width, mel, 5)
    for block in (1, 2, 3):
        prefix = f"speaker_encoder.blocks.{block}"
        sizes |= _linear(f"{prefix}.tdnn1.conv", width, width, 1)
        for part in range(res2net_scale - 1):
            sizes |= _linear(f"{prefix}.res2net_block.blocks.{part}.conv", chunk, chunk, 3)
        sizes |= _linear(f"{prefix}.tdnn2.conv", width, width, 1)
        sizes |= _linear(f"{prefix}.se_block.conv1", squeeze, width, 1)
        sizes |= _linear(f"{prefix}.se_block.conv2", width, squeeze, 1)
    sizes |= _linear("speaker_encoder.mfa.conv", merged, 3 * width, 1)
    sizes |= _linear("speaker_encoder.asp.tdnn.conv", attention, 3 * merged, 1)
    sizes |= _linear("speaker_encoder.asp.conv", merged, attention, 1)
    return sizes | _linear("speaker_encoder.fc", config["enc_dim"], 2 * merged, 1)


def codec_sizes(config: dict[str, Any]) -> Sizes:
    """Name and size of every tensor of speech_tokenizer/model.safetensors."""
    return _decoder_sizes(config["decoder_config"]) | _encoder_sizes(config["encoder_config"])


def _decoder_sizes(config: dict[str, Any]) -> Sizes:
    book, latent, hidden = config["codebook_dim"], config["latent_dim"], config["hidden_size"]
    entry = (config["codebook_size"], book // 2)
    sizes: Sizes = {}
    for part, books in (("rvq_first", 1), ("rvq_rest", config["num_quantizers"] - 1)):
        prefix = f"decoder.quantizer.{part}"
        sizes[f"{prefix}.input_proj.weight"] = (book // 2, book, 1)
        sizes[f"{prefix}.output_proj.weight"] = (book, book // 2, 1)
        for index in range(books):
            sizes[f"{prefix}.vq.layers.{index}._codebook.cluster_usage"] = entry[:1]
            sizes[f"{prefix}.vq.layers.{index}._codebook.embedding_sum"] = entry
    sizes |= _linear("decoder.pre_conv.conv", latent, book, 3)
    sizes |= _linear("decoder.pre_transformer.input_proj", hidden, latent)
    sizes |= _linear("decoder.pre_transformer.output_proj", latent, hidden)
    for name, size in _stack_sizes("decoder.pre_transformer", config).items():
        if "q_norm" not in name and "k_norm" not in name:
            sizes[name] = size
    for layer in range(config["num_hidden_layers"]):
        for scale in ("self_attn_layer_scale", "mlp_layer_scale"):
            sizes[f"decoder.pre_transformer.layers.{layer}.{scale}.scale"] = (hidden,)
    for index, ratio in enumerate(config["upsampling_ratios"]):
        sizes |= {
            f"decoder.upsample.{index}.0.conv.weight": (latent, latent, ratio),
            f"decoder.upsample.{index}.0.conv.bias": (latent,),
            f"decoder.upsample.{index}.1.gamma": (latent,),
            **_linear(f"decoder.upsample.{index}.1.dwconv.conv", latent, 1, 7),
            **_linear(f"decoder.upsample.{index}.1.norm", latent),
            **_linear(f"decoder.upsample.{index}.1.pwconv1", 4 * latent, latent),
            **_linear(f"decoder.upsample.{index}.1.pwconv2", latent, 4 * latent),
        }
    return sizes | _waveform_sizes(config["decoder_dim"], latent, config["upsample_rates"])


def _waveform_sizes(width: int, latent: int, rates: list[int]) -> Sizes:
    def snake(name: str, channels: int) -> Sizes:
        return {f"{name}.alpha": (channels,), f"{name}.beta": (channels,)}

    sizes = _linear("decoder.decoder.0.conv", width, latent, 7)
    for index, rate in enumerate(rates, start=1):
        prefix = f"decoder.decoder.{index}.block"
        sizes |= snake(f"{prefix}.0", width)
        sizes[f"{prefix}.1.conv.weight"] = (width, width // 2, 2 * rate)
        width //= 2
        sizes[f"{prefix}.1.conv.bias"] = (width,)
        for unit in (2, 3, 4):
            sizes |= snake(f"{prefix}.{unit}.act1", width)
            sizes |= _linear(f"{prefix}.{unit}.conv1.conv", width, width, 7)
            sizes |= snake(f"{prefix}.{unit}.act2", width)
            sizes |= _linear(f"{prefix}.{unit}.conv2.conv", width, width, 1)
    sizes |= snake(f"decoder.decoder.{len(rates) + 1}", width)
    return sizes | _linear(f"decoder.decoder.{len(rates) + 2}.conv", 1, width, 7)


def _encoder_sizes(config: dict[str, Any]) -> Sizes:
    width, hidden, inner = config["num_filters"], config["hidden_size"], config["intermediate_size"]
    sizes = _linear("encoder.encoder.layers.0.conv", width, 1, config["kernel_size"])
    index = 1  # each stage has three modules: a residual block, an activation, a strided convolution
    for ratio in reversed(config["upsampling_ratios"]):
        sizes |= _linear(f"encoder.encoder.layers.{index}.block.1.conv", width // 2, width, 3)
        sizes |= _linear(f"encoder.encoder.layers.{index}.block.3.conv", width, width // 2, 1)
        sizes |= _linear(f"encoder.encoder.layers.{index + 2}.conv", 2 * width, width, 2 * ratio)
        width, index = 2 * width, index + 3
    sizes |= _linear(f"encoder.encoder.layers.{index + 1}.conv", hidden, width, config["last_kernel_size"])
    attention = config["num_attention_heads"] * config["head_dim"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"encoder.encoder_transformer.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj"):
            sizes[f"{prefix}.self_attn.{name}.weight"] = (attention, hidden)
        sizes[f"{prefix}.self_attn.o_proj.weight"] = (hidden, attention)
        sizes[f"{prefix}.mlp.fc1.weight"] = (inner, hidden)
        sizes[f"{prefix}.mlp.fc2.weight"] = (hidden, inner)
        sizes |= _linear(f"{prefix}.input_layernorm", hidden)
        sizes |= _linear(f"{prefix}.post_attention_layernorm", hidden)
        for scale in ("self_attn_layer_scale", "mlp_layer_scale"):
            sizes[f"{prefix}.{scale}.scale"] = (hidden,)
    sizes["encoder.downsample.conv.weight"] = (hidden, hidden, 4)
    entry = (config["codebook_size"], config["codebook_dim"])
    for part, books in (("semantic", 1), ("acoustic", config["num_quantizers"] - 1)):
        prefix = f"encoder.quantizer.{part}_residual_vector_quantizer"
        sizes[f"{prefix}.input_proj.weight"] = (entry[1], hidden, 1)
        sizes[f"{prefix}.output_proj.weight"] = (hidden, entry[1], 1)
        for book in range(books):
            sizes[f"{prefix}.layers.{book}.codebook.initialized"] = (1,)
            sizes[f"{prefix}.layers.{book}.codebook.cluster_usage"] = entry[:1]
            sizes[f"{prefix}.layers.{book}.codebook.embed_sum"] = entry
    return sizes
