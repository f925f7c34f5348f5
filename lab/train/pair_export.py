"""Write a trained pair: the target as a `qwen3` GGUF, the drafter as a `dflash` GGUF and as z-lab safetensors."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import Tensor

from localdflash.backends.reference.decoder import Decoder
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.lab.train.dataset import SPECIALS, special_ids
from localdflash.lab.train.whole_file import replacing
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import OURS, SHORT_HEAD, SHORT_KEY
from localdflash.models.shapes.dflash_file import TOP_TENSORS as DRAFTER_TENSORS
from localdflash.models.shapes.fingerprint import TrainedFor, fingerprint_of
from localdflash.models.shapes.gguf_config import LAYER_TENSORS
from localdflash.models.shapes.gguf_config import TOP_TENSORS as TARGET_TENSORS
from localdflash.models.weights.gguf import GGUFHeader, find, load_blocks

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
CONTROL, NORMAL = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL


def write_target(path: Path, model: Decoder, tokenizer: Tokenizer, name: str) -> None:
    """Write a Qwen3 GGUF; matrices in Q8_0, norms in float32."""
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_name(name)
    _write_shape(writer, model.config)
    _write_vocabulary(writer, tokenizer)
    writer.add_chat_template(CHAT_TEMPLATE)
    names = dict(TARGET_TENSORS)
    if model.config.tie_word_embeddings:
        del names["output"]
    _write_tensors(writer, _tensor_names(names, model.config.num_hidden_layers), model.state_dict(), "Q8_0")
    finish(writer, path)


def write_drafter(path: Path, model: DFlash, tokenizer: Tokenizer, quantization: str, name: str) -> None:
    """Write a `dflash` GGUF as llama.cpp reads it, without embedding and head, which the target has."""
    _write_dflash(path, model, lambda writer: _write_vocabulary(writer, tokenizer), quantization, name)


def write_drafter_for(
    path: Path, model: DFlash, target: GGUFHeader, quantization: str, name: str, ids: Sequence[int] = (), tau: float = 0
) -> None:
    """Write a `dflash` GGUF with the vocabulary and fingerprint of any target, `tau`, and a short vocabulary `ids`."""

    def add(writer: gguf.GGUFWriter) -> None:
        _copy_vocabulary(writer, target)
        add_target(writer, fingerprint_of(target, tau))
        if ids:
            add_short_head(writer, target, ids)

    _write_dflash(path, model, add, quantization, name)


def add_target(writer: gguf.GGUFWriter, target: TrainedFor) -> None:
    """Add the fingerprint of the target that a drafter was trained for."""
    for key, value in asdict(target).items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(f"{OURS}.target.{key}", value)


def add_short_head(writer: gguf.GGUFWriter, target: GGUFHeader, ids: Sequence[int]) -> None:
    """Add the short vocabulary for localdflash, and its rows of the target's head for llama.cpp."""
    writer.add_array(SHORT_KEY, list(ids))
    ids_name, rows_name = SHORT_HEAD
    head = find(target, "output.weight" if "output.weight" in target.tensors else "token_embd.weight")
    rows = load_blocks(target, head.name).numpy().reshape(head.shape[0], -1)[np.array(ids)]
    writer.add_tensor(ids_name, np.array(ids, np.int64))
    writer.add_tensor(rows_name, rows, raw_dtype=gguf.GGMLQuantizationType(int(head.ggml_type)))


def _write_dflash(
    path: Path, model: DFlash, add_vocabulary: Callable[[gguf.GGUFWriter], None], quantization: str, name: str
) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, "dflash")
    writer.add_name(name)
    _write_shape(writer, config.decoder)
    add_vocabulary(writer)
    writer.add_mask_token_id(config.mask_token_id)
    writer.add_uint32("dflash.block_size", config.block_size)
    if config.from_anchor:
        writer.add_bool("dflash.sample_from_anchor", True)
    writer.add_array("dflash.target_layers", [tap + 1 for tap in config.taps])  # llama.cpp counts layer inputs
    if config.window:
        writer.add_sliding_window(config.window)
        writer.add_sliding_window_pattern(list(config.sliding))
    if config.causal is not None:
        writer.add_causal_attention(config.causal)
    names = _tensor_names(DRAFTER_TENSORS, config.decoder.num_hidden_layers)
    _write_tensors(writer, names, model.state_dict(), quantization)
    finish(writer, path)


def write_drafter_safetensors(
    path: Path, model: DFlash, target_layers: int, ours: Mapping[str, object] | None = None
) -> None:
    """Write z-lab's format: bfloat16 tensors, next to a config.json with localdflash's fields (see `our_fields`)."""
    tensors = {k: v.detach().cpu().bfloat16().contiguous() for k, v in model.state_dict().items()}
    with replacing(path) as part:
        part.write_bytes(save(tensors))  # save_file would create a file without permissions for others
    write_json(path.with_name("config.json"), json_config(model, target_layers) | ({OURS: ours} if ours else {}))


def our_fields(target: GGUFHeader, ids: Sequence[int], tau: float) -> dict[str, object]:
    """Return the fields of config.json that only localdflash reads."""
    return {"short_vocabulary": list(ids), "target": asdict(fingerprint_of(target, tau))}


def write_json(path: Path, fields: Mapping[str, object]) -> None:
    """Write a JSON object, one line per field."""
    lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())
    with replacing(path) as part:
        part.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def json_config(model: DFlash, target_layers: int) -> dict[str, Any]:
    """Return the fields of z-lab's config.json."""
    c, window = model.config.decoder, model.config.window
    kinds = [
        "sliding_attention" if model.config.is_sliding(i) else "full_attention" for i in range(c.num_hidden_layers)
    ]
    slides = {"layer_types": kinds, "sliding_window": window, "use_sliding_window": True} if window else {}
    causal = {} if model.config.causal is None else {"is_causal": model.config.causal}
    anchor = {"sample_from_anchor": True} if model.config.from_anchor else {}
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": model.config.block_size,
        "dflash_config": {"mask_token_id": model.config.mask_token_id, "target_layer_ids": list(model.config.taps)},
        "num_target_layers": target_layers,
        "num_hidden_layers": c.num_hidden_layers,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "max_position_embeddings": c.context_length,
        "attention_bias": c.attention_bias,
        "vocab_size": c.vocab_size,
        "dtype": "bfloat16",
        **slides,
        **causal,
        **anchor,
    }


def _tensor_names(top: Mapping[str, str], layers: int) -> Iterable[tuple[str, str]]:
    """Yield the GGUF name and the state-dict name of every tensor."""
    for gguf_name, state_name in top.items():
        yield f"{gguf_name}.weight", f"{state_name}.weight"
    for layer in range(layers):
        for gguf_name, state_name in LAYER_TENSORS.items():
            yield f"blk.{layer}.{gguf_name}.weight", f"layers.{layer}.{state_name}.weight"


def _write_shape(writer: gguf.GGUFWriter, config: DecoderConfig) -> None:
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _write_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    special = special_ids(tokenizer)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([token for token, _ in vocabulary] + list(SPECIALS))
    writer.add_token_types([NORMAL] * len(vocabulary) + [CONTROL] * len(SPECIALS))
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(special["<|endoftext|>"])
    writer.add_eot_token_id(special["<|im_end|>"])
    writer.add_pad_token_id(special["<|endoftext|>"])
    writer.add_add_bos_token(False)
    for key, token in (("pre", "prefix"), ("suf", "suffix"), ("mid", "middle"), ("pad", "pad")):
        writer.add_uint32(f"tokenizer.ggml.fim_{key}_token_id", special[f"<|fim_{token}|>"])


def _copy_vocabulary(writer: gguf.GGUFWriter, target: GGUFHeader) -> None:
    metadata = {key.removeprefix("tokenizer.ggml."): value for key, value in target.metadata.items()}
    writer.add_tokenizer_model(metadata["model"])
    if "pre" in metadata:
        writer.add_tokenizer_pre(metadata["pre"])
    for key, add in (
        ("tokens", writer.add_token_list),
        ("token_type", writer.add_token_types),
        ("merges", writer.add_token_merges),
        ("scores", writer.add_token_scores),
        ("bos_token_id", writer.add_bos_token_id),
        ("eos_token_id", writer.add_eos_token_id),
        ("eot_token_id", writer.add_eot_token_id),
        ("unknown_token_id", writer.add_unk_token_id),
        ("padding_token_id", writer.add_pad_token_id),
        ("add_bos_token", writer.add_add_bos_token),
        ("add_space_prefix", writer.add_add_space_prefix),
    ):
        if key in metadata:
            add(metadata[key])


def _write_tensors(
    writer: gguf.GGUFWriter, names: Iterable[tuple[str, str]], state: Mapping[str, Tensor], quantization: str
) -> None:
    for gguf_name, state_name in names:
        values = state[state_name].detach().float().cpu().numpy()
        if values.ndim == 1:
            writer.add_tensor(gguf_name, values.astype(np.float32))
            continue
        kind = gguf.GGMLQuantizationType[quantization]
        writer.add_tensor(gguf_name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def finish(writer: gguf.GGUFWriter, path: Path) -> None:
    """Write a GGUF file, which replaces an older one only if it is complete: a running daemon may have that mapped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part, closing(writer):
        writer.write_header_to_file(part)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
