"""Reads a drafter's configuration from its file: a `dflash` GGUF, or safetensors next to config.json.

Only the tensors show whether there is an embedding, a head, a confidence head or a reduced vocabulary.
"""

import json
import struct
from dataclasses import replace
from pathlib import Path

from localdflash.base.errors import ModelError
from localdflash.base.files.regular import open_model
from localdflash.models.shapes.config_fields import Fields, Refused, as_count, as_counts, as_flag, as_number, list_of
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import SHORT_HEAD, SHORT_KEY, DFlashConfig, check_config
from localdflash.models.shapes.dflash_json import config_of_json, own_fields, shared_fields
from localdflash.models.shapes.gguf_config import LAYER_TENSORS, check_whole_heads, common_config, size_of, yarn_of
from localdflash.models.weights import gguf, safetensors

MAX_JSON_BYTES = 1 << 20
UNUSED = ("d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # tensors that only training reads
INTEGERS = {"I64": "<q", "I32": "<i"}  # dtype in safetensors -> struct format

# Names of a GGUF's tensors in z-lab's safetensors.
TOP_TENSORS = {"fc": "fc", "enc.output_norm": "hidden_norm", "output_norm": "norm"}
CONVOLUTION_TENSORS = {  # in a layer of DFlash 2
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
}
HEAD_TENSORS = {
    "token_embd.weight": "embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight",
    "conf_proj.weight": "confidence_head.proj.weight",
    "conf_proj.bias": "confidence_head.proj.bias",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
    "selector_successor.weight": "candidate_selector.successor_codebook",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
}
MAGNITUDE = "a YaRN magnitude other than that of its factor"  # for messages
REFUSED_METADATA: Refused = {
    "attention.value_scale": ("scaled attention values",),
    "attention.scale": ("scaled attention",),
    "hyper_connection.count": ("hyper-connections",),
    "decoder_arch": ("another network than Qwen3's", "qwen3"),
    "hidden_activation": ("another activation than SiLU", "silu"),
    "rope.scaling.yarn_log_multiplier": (MAGNITUDE,),
    "rope.scaling.attn_factor": (MAGNITUDE, 0.0, 1.0),
    "rope.scaling.yarn_attn_factor": (MAGNITUDE, 0.0, 1.0),
    "rope.scaling.yarn_ext_factor": ("partial YaRN", 0.0, 1.0),
}


def config_of_gguf(header: gguf.GGUFHeader) -> DFlashConfig:
    """Return a drafter's configuration from a `dflash` GGUF's metadata."""
    subject = str(header.path)
    if header.architecture != "dflash":
        raise ModelError(f"{subject}: architecture {header.architecture!r} is not a DFlash drafter (expected 'dflash')")
    fields = Fields(subject, {name.removeprefix("dflash."): value for name, value in header.metadata.items()})
    fields.refuse_all(REFUSED_METADATA)
    if any("lilicorr" in name for name in header.tensors):
        raise ModelError(f"{subject}: drafters with a LiLiCorr head are not supported; use another drafter")
    window = fields.get("attention.sliding_window", as_count, 0)
    markov = header.tensors.get("markov_w1.weight")
    settings = {
        **own_fields(fields),
        **shared_fields(fields),
        "own_embedding": "token_embd.weight" in header.tensors,
        "own_head": "output.weight" in header.tensors and SHORT_KEY not in header.metadata,
        "markov_rank": markov.shape[-1] if markov else 0,
        "has_confidence_head": "conf_proj.weight" in header.tensors,
    }
    if SHORT_HEAD[0] in header.tensors and not settings["short"]:
        settings["short"] = tuple(gguf.load_ids(header, SHORT_HEAD[0]))
    return check_config(
        DFlashConfig(
            decoder=_decoder(header),
            block_size=fields.need("block_size", as_count),
            mask_token_id=fields.need("tokenizer.ggml.mask_token_id", as_count),
            taps=tuple(layer - 1 for layer in fields.need("target_layers", as_counts)),  # llama.cpp numbers inputs
            window=window or None,
            sliding=fields.need("attention.sliding_window_pattern", list_of(as_flag)) if window else (),
            causal=fields.get("attention.causal", as_flag, None),
            embedding_scale=fields.get("embedding_scale", as_number, 1.0),
            logit_scale=fields.get("logit_scale", as_number, 1.0),
            from_anchor=fields.get("sample_from_anchor", as_flag, markov is not None),
            **settings,
        ),
        subject,
    )


def _decoder(header: gguf.GGUFHeader) -> DecoderConfig:
    common = common_config(header, len(header.require("tokenizer.ggml.tokens", list)))
    check_whole_heads(header, common.head_dim)
    return replace(
        yarn_of(header, common, round_outwards=True),  # as llama.cpp rounds
        intermediate_size=size_of(header, "feed_forward_length"),
        attention_bias="blk.0.attn_q.bias" in header.tensors,
    )


def own_tensors(header: gguf.GGUFHeader) -> dict[str, gguf.TensorInfo]:
    """Return a drafter's tensors without those that only llama.cpp reads: the short vocabulary's head and ids."""
    excluded = SHORT_HEAD if SHORT_KEY in header.metadata else SHORT_HEAD[:1]
    return {name: info for name, info in header.tensors.items() if name not in excluded}


def config_of_file(path: Path) -> DFlashConfig:
    """Return the configuration in a GGUF file, or in config.json next to safetensors."""
    if path.suffix == ".gguf":
        return config_of_gguf(gguf.read_header(path))
    config_file = path.with_name("config.json")
    with open_model(config_file) as (stream, size):
        if size > MAX_JSON_BYTES:
            raise ModelError(f"{config_file}: too large (expected at most {MAX_JSON_BYTES >> 20} MiB)")
        content = stream.read()
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{config_file}: cannot read the drafter's configuration: {error}") from None
    config = config_of_json(document, str(config_file))
    return _with_tensors(config, safetensors.read_header(path)) if path.exists() else config


def key_of(name: str) -> str:
    """Return z-lab's name of a GGUF's tensor, "" for an unknown tensor."""
    if name in HEAD_TENSORS:
        return HEAD_TENSORS[name]
    parts = name.split(".")
    stem, kind = ".".join(parts[:-1]), parts[-1]
    if stem in TOP_TENSORS:
        return f"{TOP_TENSORS[stem]}.{kind}"
    if len(parts) < 3 or parts[0] != "blk":
        return ""
    layer, inner = f"layers.{parts[1]}.", ".".join(parts[2:])
    if inner in CONVOLUTION_TENSORS:
        return layer + CONVOLUTION_TENSORS[inner]
    return f"{layer}{LAYER_TENSORS[parts[2]]}.{kind}" if len(parts) == 4 and parts[2] in LAYER_TENSORS else ""


def plain_name(name: str) -> str:
    """Return our networks' name of a tensor (z-lab's, where it has one), which other tools named differently."""
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")


def _with_tensors(config: DFlashConfig, header: safetensors.SafetensorsHeader) -> DFlashConfig:
    names = {plain_name(name): info for name, info in header.tensors.items()}
    offsets = names.get("d2t")
    settings = replace(
        config,
        own_embedding="embed_tokens.weight" in names,
        own_head="lm_head.weight" in names,
        has_confidence_head=config.has_confidence_head or "confidence_head.proj.weight" in names,
    )
    if offsets and offsets.shape[0] < config.decoder.vocab_size and not config.short:
        settings = replace(settings, short=_ids(header.files[offsets.part], offsets))
    return check_config(settings, str(header.path))


def _ids(path: Path, info: safetensors.SafetensorInfo) -> tuple[int, ...]:
    """Return the token ids of a reduced vocabulary, which the file stores as offsets from the row numbers."""
    if info.dtype not in INTEGERS or len(info.shape) != 1:
        raise ModelError(f"{path}: tensor {info.name} is not a list of token ids; download it again")
    with open_model(path) as (stream, _):
        stream.seek(info.offset)
        offsets = struct.iter_unpack(INTEGERS[info.dtype], stream.read(info.nbytes))
        return tuple(row + offset for row, (offset,) in enumerate(offsets))
