"""Checks a model file for the CPU engine, maps its tensors' names to ours and reads them; imports no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from localdflash.backends.cpu.packing import FLOAT_READERS, GROUP, KINDS, KINDS_4_BIT, PANEL, Bytes, Floats, MatrixShape
from localdflash.base.errors import ModelError
from localdflash.base.system.descriptor import read_at
from localdflash.models.shapes.decoder_config import DecoderConfig, DeltaShape
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.shapes.dflash_file import UNUSED, config_of_file, key_of, own_tensors, plain_name
from localdflash.models.shapes.gguf_config import ROPE_FACTORS, count_layers
from localdflash.models.shapes.target_config import target_config
from localdflash.models.weights import gguf, safetensors
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import TensorInfo

Shape = tuple[int, ...]
Config = TypeVar("Config", DecoderConfig, DFlashConfig)

USE_LLAMA_CPP = "use `--backend llama.cpp`"
DTYPES = {"F32": GGMLType.F32, "F16": GGMLType.F16, "BF16": GGMLType.BF16}
CHUNK_WEIGHTS = 1 << 19  # weights in a chunk, so that packing it stays in the processor's cache

LAYER_FIELDS = {  # name of a layer's tensor in a GGUF file, without ".weight": our name
    "attn_norm": "attention_norm",
    "attn_q": "query",
    "attn_k": "key",
    "attn_v": "value",
    "attn_output": "output",
    "attn_q_norm": "query_norm",
    "attn_k_norm": "key_norm",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
EXPERT_FIELDS = {"ffn_gate_inp": "router", "ffn_gate_exps": "gate", "ffn_up_exps": "up", "ffn_down_exps": "down"}
MIXTURE_FIELDS = {k: v for k, v in LAYER_FIELDS.items() if v not in EXPERT_FIELDS.values()} | EXPERT_FIELDS
POST_NORMED = ("gpt-oss", "qwen35", "qwen35moe")  # architectures that call the MLP's norm post_attention_norm
BIASED = ("query", "key", "value", "output", "router", "gate", "up", "down")  # matrices that may have a bias
SHARED_FIELDS = {  # tensors of the expert that every token uses
    "ffn_gate_inp_shexp": "shared_router",
    "ffn_gate_shexp": "shared_gate",
    "ffn_up_shexp": "shared_up",
    "ffn_down_shexp": "shared_down",
}
DELTA_FIELDS = {  # tensors that a delta-net layer has instead of `ATTENTION_PARTS`
    "attn_qkv.weight": "mixed",
    "attn_gate.weight": "mixed_gate",
    "ssm_alpha.weight": "alpha",
    "ssm_beta.weight": "beta",
    "ssm_conv1d.weight": "conv",
    "ssm_a": "rate",
    "ssm_dt.bias": "shift",
    "ssm_norm.weight": "delta_norm",
    "ssm_out.weight": "output",
}
ATTENTION_PARTS = frozenset({"query", "key", "value", "output", "query_norm", "key_norm"})
DRAFTER_FIELDS = {  # tensors of a `dflash` GGUF, outside the layers
    "fc.weight": "fuse",
    "enc.output_norm.weight": "fuse_norm",
    "output_norm.weight": "norm",
    "token_embd.weight": "embedding",
    "output.weight": "head",
    "markov_w1.weight": "markov_w1",
    "markov_w2.weight": "markov_w2",
    "conf_proj.weight": "confidence",
    "conf_proj.bias": "confidence_bias",
    "selector_predecessor.weight": "predecessor",
    "selector_successor.weight": "successor",
    "selector_hidden.weight": "selector",
}
CONVOLUTION_FIELDS = {  # tensors of a layer of a DFlash 2 drafter
    "attn_conv_proj.weight": "attention_changes",
    "attn_conv_base": "attention_base",
    "ffn_conv_proj.weight": "mlp_changes",
    "ffn_conv_base": "mlp_base",
}
TARGET_FIELDS = {"token_embd": "embedding", "output_norm": "norm", "output": "head"}  # outside the layers
CONVOLVED = ("attention", "mlp")  # sublayers of a DFlash 2 layer that have convolutions
FLOAT_PARTS = frozenset(
    {"attention_norm", "mlp_norm", "query_norm", "key_norm", "router", "query_bias", "key_bias", "value_bias"}
    | {"output_bias", "router_bias", "gate_bias", "up_bias", "down_bias", "sinks", "shared_router"}
    | {"conv", "rate", "shift", "delta_norm", "confidence", "confidence_bias", "norm", "fuse_norm"}
    | {f"{name}_base" for name in CONVOLVED}
)
OPTIONAL_PART = "confidence_bias"  # zero if the file lacks it


@dataclass(frozen=True)
class FileTensor:
    """Part of a model: a tensor under our name, such as "layers.0.query" for the matrix `query` of the first layer."""

    name: str
    tensor: TensorInfo
    matrix: MatrixShape | None  # None: a float part, which stays float32
    paired: int = 0  # head_dim if RoPE pairs rows 2i and 2i + 1 of a head in the file (ours: i and i + head_dim / 2)

    @property
    def packed_bytes(self) -> int:
        """Size of the packed part in bytes."""
        return self.matrix.nbytes if self.matrix else prod(self.tensor.shape) * np.dtype(np.float32).itemsize


@dataclass(frozen=True)
class CheckedFile(Generic[Config]):
    """Model file whose tensors are complete, and of supported types and the expected shapes."""

    path: Path
    config: Config
    parts: tuple[FileTensor, ...]
    data_offset: int  # where the tensor data begins in the file


class RowChunk(NamedTuple):
    """Consecutive rows of one expert's matrix, starting at a whole panel; or a complete float part."""

    part: FileTensor
    expert: int = 0
    first: int = 0
    rows: int = 0


def iterate_chunks(source: CheckedFile[Config]) -> Iterator[RowChunk]:
    """Yield all parts: matrices in chunks of about `CHUNK_WEIGHTS`, float parts undivided."""
    for part in source.parts:
        if (m := part.matrix) is None:
            yield RowChunk(part)
            continue
        unit = part.paired or PANEL
        step = max(CHUNK_WEIGHTS // m.k // unit, 1) * unit
        for expert in range(m.experts):
            yield from (RowChunk(part, expert, first, min(step, m.n - first)) for first in range(0, m.n, step))


def read_floats(descriptor: int, part: FileTensor) -> Floats:
    """Read a float part as float32; raise ModelError if a number is not finite or the file ends early."""
    info = part.tensor
    numbers = FLOAT_READERS[info.ggml_type](_read(descriptor, info.offset, info.nbytes))
    if not np.isfinite(numbers).all():
        raise ModelError("a number is not finite")
    return numbers


def read_rows(descriptor: int, chunk: RowChunk) -> Bytes:
    """Read rows in the file's format [rows, row_bytes], `paired` rows reordered for rotate-half RoPE."""
    info, m, paired = chunk.part.tensor, chunk.part.matrix, chunk.part.paired
    assert m is not None
    row_bytes = m.k // info.ggml_type.block_weights * info.ggml_type.block_bytes
    raw = _read(descriptor, info.offset + (chunk.expert * m.n + chunk.first) * row_bytes, chunk.rows * row_bytes)
    if paired:
        raw = np.ascontiguousarray(raw.reshape(-1, paired // 2, 2, row_bytes).swapaxes(1, 2))
    return raw.reshape(chunk.rows, row_bytes)


def _read(descriptor: int, offset: int, size: int) -> Bytes:
    raw = bytearray()
    while len(raw) < size:
        if not (data := read_at(descriptor, size - len(raw), offset + len(raw))):
            raise ModelError("the file became shorter while it was read")
        raw += data
    return np.frombuffer(raw, np.uint8)


def check_target_file(path: Path, header: gguf.GGUFHeader | None = None) -> CheckedFile[DecoderConfig]:
    """Return a GGUF target's config and parts; read the header unless it is given. ModelError if unsupported."""
    config = target_config(header := header or gguf.read_header(path))
    top = {"embedding": (config.vocab_size, config.hidden_size), "norm": (config.hidden_size,)}
    if not config.tie_word_embeddings:
        top["head"] = top["embedding"]
    names = map_target_names(header.architecture, config)
    tensors = {name: info for name, info in header.tensors.items() if not _is_unused(header, config, name)}
    paired = config.head_dim if header.architecture == "llama" else 0
    parts = _find_parts(path, config, tensors, names, top | list_layer_shapes(config), paired)
    return CheckedFile(path, config, parts, header.data_offset)


def _is_unused(header: gguf.GGUFHeader, config: DecoderConfig, name: str) -> bool:
    """Return whether a tensor is ignored: Llama's RoPE factors, or layers for multi-token prediction."""
    if name == ROPE_FACTORS:
        return header.architecture == "llama"
    parts = name.split(".")
    is_layer = parts[0] == "blk" and parts[1].isdecimal()
    return is_layer and config.num_hidden_layers <= int(parts[1]) < count_layers(header)


def check_drafter_file(path: Path, bits: int = 8) -> CheckedFile[DFlashConfig]:
    """Return a drafter's config and parts: a `dflash` GGUF, or z-lab's safetensors next to its config.json.

    If `bits` is 4, float and Q8_0 matrices become Q4_0. Raise ModelError if the drafter is not supported.
    """
    config = config_of_file(path)
    names = map_drafter_names(config)
    if path.suffix == ".gguf":
        header = gguf.read_header(path)
        tensors, data_offset = own_tensors(header), header.data_offset
    else:
        tensors, data_offset = _read_safetensors_header(path)
        names = {key_of(theirs): ours for theirs, ours in names.items()}
    shapes = list_drafter_shapes(config)
    if OPTIONAL_PART not in {names.get(theirs) for theirs in tensors}:
        shapes.pop(OPTIONAL_PART, None)
    parts = _find_parts(path, config.decoder, tensors, names, shapes, bits=bits)
    return CheckedFile(path, config, parts, data_offset)


def _read_safetensors_header(path: Path) -> tuple[dict[str, TensorInfo], int]:
    tensors, header = {}, safetensors.read_header(path)
    for name, info in header.tensors.items():
        if plain_name(name) in UNUSED:
            continue
        if info.dtype not in DTYPES:
            raise ModelError(f"{path}: tensor {name} is {info.dtype}, which the CPU engine cannot read")
        file_type = DTYPES[info.dtype]
        tensors[plain_name(name)] = TensorInfo(name, info.shape, file_type, info.offset, info.nbytes, info.part)
    return tensors, min((info.offset for info in header.tensors.values()), default=0)


def _find_parts(
    path: Path,
    config: DecoderConfig,
    tensors: Mapping[str, TensorInfo],
    names: Mapping[str, str],
    shapes: Mapping[str, Shape],
    paired: int = 0,
    bits: int = 8,
) -> tuple[FileTensor, ...]:
    """Return the parts in `shapes`; `names` maps the file's names to ours. ModelError for a wrong or missing tensor."""
    if config.head_dim % PANEL:
        raise ModelError(
            f"{path}: heads of {config.head_dim} channels (expected a multiple of {PANEL}); {USE_LLAMA_CPP}"
        )
    for name in tensors:
        if names.get(name) not in shapes:
            raise ModelError(f"{path}: unexpected tensor {name} in this architecture; {USE_LLAMA_CPP}")
    for name, ours in names.items():
        if ours in shapes and name not in tensors:
            raise ModelError(f"{path}: tensor {name} is missing; download or convert the model again")
    tensors_by_part = {names[name]: info for name, info in tensors.items()}
    return tuple(
        _check_part(path, ours, tensors_by_part[ours], shape, paired if ours.endswith((".query", ".key")) else 0, bits)
        for ours, shape in shapes.items()
    )


def is_float_part(ours: str) -> bool:
    """Return whether a part stays float32."""
    return ours.rpartition(".")[2] in FLOAT_PARTS


def strip_ones(shape: Shape) -> Shape:
    """Strip leading ones from a shape; some files omit them."""
    return strip_ones(shape[1:]) if len(shape) > 1 and shape[0] == 1 else shape


def _check_part(path: Path, ours: str, info: TensorInfo, shape: Shape, paired: int, bits: int) -> FileTensor:
    file_type, subject = info.ggml_type, f"{path}: tensor {info.name}"
    if strip_ones(info.shape) != strip_ones(shape):
        raise ModelError(f"{subject} has shape {list(info.shape)} (expected {list(shape)}); convert the model again")
    if file_type not in (FLOAT_READERS if is_float_part(ours) else KINDS):
        raise ModelError(f"{subject} is {file_type.name}, which the CPU engine cannot read; {USE_LLAMA_CPP}")
    if is_float_part(ours):
        return FileTensor(ours, info, None)
    if shape[-1] % GROUP:
        raise ModelError(f"{subject} has rows of {shape[-1]} weights (expected a multiple of {GROUP}); {USE_LLAMA_CPP}")
    kinds, experts = KINDS_4_BIT if bits == 4 else KINDS, shape[0] if len(shape) == 3 else 1
    return FileTensor(ours, info, MatrixShape(kinds[file_type], shape[-2], shape[-1], experts), paired)


def map_target_names(architecture: str, config: DecoderConfig) -> dict[str, str]:
    """Return our name for each tensor that a file of this architecture may have."""
    weights = dict(MIXTURE_FIELDS if config.num_experts else LAYER_FIELDS)
    if config.shared_intermediate_size:
        weights |= SHARED_FIELDS
    if architecture in POST_NORMED:
        weights["post_attention_norm"] = weights.pop("ffn_norm")
    fields = {f"{theirs}.weight": ours for theirs, ours in weights.items()}
    fields |= {f"{theirs}.bias": f"{ours}_bias" for theirs, ours in weights.items() if ours in BIASED}
    fields |= {"attn_sinks.weight": "sinks"}
    recurrent = {theirs: ours for theirs, ours in fields.items() if ours not in ATTENTION_PARTS} | DELTA_FIELDS
    names = {f"{theirs}.weight": ours for theirs, ours in TARGET_FIELDS.items()}
    for layer in range(config.num_hidden_layers):
        own = recurrent if config.recurrent and config.recurrent[layer] else fields
        names |= {f"blk.{layer}.{theirs}": f"layers.{layer}.{ours}" for theirs, ours in own.items()}
    return names


def map_drafter_names(config: DFlashConfig) -> dict[str, str]:
    """Return our name for each tensor that a `dflash` GGUF may have."""
    names = dict(DRAFTER_FIELDS)
    for layer in range(config.decoder.num_hidden_layers):
        fields = CONVOLUTION_FIELDS | {f"{theirs}.weight": ours for theirs, ours in LAYER_FIELDS.items()}
        fields |= {f"{theirs}.bias": f"{ours}_bias" for theirs, ours in LAYER_FIELDS.items() if ours in BIASED}
        names |= {f"blk.{layer}.{theirs}": f"layers.{layer}.{ours}" for theirs, ours in fields.items()}
    return names


def list_drafter_shapes(config: DFlashConfig) -> dict[str, Shape]:
    """Return the shape of every part of a drafter, by our names."""
    c, hidden, vocabulary = config, config.decoder.hidden_size, config.decoder.vocab_size
    shapes: dict[str, Shape] = {"fuse": (hidden, len(c.taps) * hidden), "fuse_norm": (hidden,), "norm": (hidden,)}
    if c.own_embedding:
        shapes["embedding"] = (vocabulary, hidden)
    if c.own_head:
        shapes["head"] = (c.draft_vocab_size, hidden)
    if c.markov_rank:
        shapes |= {"markov_w1": (vocabulary, c.markov_rank), "markov_w2": (c.draft_vocab_size, c.markov_rank)}
    if c.has_confidence_head:
        shapes |= {"confidence": (1, hidden + c.markov_rank), "confidence_bias": (1,)}
    if c.selector_rank:
        shapes |= dict.fromkeys(("predecessor", "successor"), (vocabulary, c.selector_rank))
        shapes["selector"] = (c.selector_rank, hidden)
    for layer in range(c.decoder.num_hidden_layers if c.conv_kernel else 0):
        for name in CONVOLVED:
            shapes[f"layers.{layer}.{name}_changes"] = (2 * c.conv_kernel * hidden // c.conv_group, hidden)
            shapes[f"layers.{layer}.{name}_base"] = (2, c.conv_kernel, hidden)
    return shapes | list_layer_shapes(c.decoder)


def list_layer_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Return the shape of every part of the layers, by our names."""
    recurrent, common = config.recurrent or (False,) * config.num_hidden_layers, _list_common_shapes(config)
    shapes: dict[str, Shape] = {}
    for i, is_net in enumerate(recurrent):
        d = config.delta if is_net else None
        own = common | (_list_delta_net_shapes(config, d) if d else _list_attention_shapes(config))
        shapes |= {f"layers.{i}.{name}": shape for name, shape in own.items()}
    return shapes


def _list_delta_net_shapes(c: DecoderConfig, d: DeltaShape) -> dict[str, Shape]:
    hidden, heads = (c.hidden_size,), (d.v_heads,)
    return {
        "mixed": (d.mixed, *hidden),
        "mixed_gate": (d.values, *hidden),
        **dict.fromkeys(("alpha", "beta"), (d.v_heads, *hidden)),
        "conv": (d.mixed, d.kernel),
        **dict.fromkeys(("rate", "shift"), heads),
        "delta_norm": (d.v_dim,),
        "output": (*hidden, d.values),
    }


def _list_attention_shapes(c: DecoderConfig) -> dict[str, Shape]:
    hidden, q, kv = c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    shapes: dict[str, Shape] = {
        "query": (2 * q if c.output_gate else q, hidden),
        "key": (kv, hidden),
        "value": (kv, hidden),
        "output": (hidden, q),
    }
    if c.qk_norm:
        shapes |= {"query_norm": (c.head_dim,), "key_norm": (c.head_dim,)}
    if c.attention_bias or c.qkv_bias:
        shapes |= {"query_bias": (q,), "key_bias": (kv,), "value_bias": (kv,)}
    if c.attention_bias:
        shapes["output_bias"] = (hidden,)
    if c.sinks:
        shapes["sinks"] = (c.num_attention_heads,)
    return shapes


def _list_common_shapes(c: DecoderConfig) -> dict[str, Shape]:
    """Return the shapes that attention and delta-net layers share."""
    hidden, experts = c.hidden_size, (c.num_experts,) if c.num_experts else ()
    inner = (*experts, c.moe_intermediate_size or c.intermediate_size)
    shapes: dict[str, Shape] = {
        "attention_norm": (hidden,),
        "mlp_norm": (hidden,),
        "gate": (*inner, hidden),
        "up": (*inner, hidden),
        "down": (*experts, hidden, inner[-1]),
    }
    if experts:
        shapes["router"] = (*experts, hidden)
    if c.expert_bias:
        shapes |= {"router_bias": experts, "gate_bias": inner, "up_bias": inner, "down_bias": (*experts, hidden)}
    if shared := c.shared_intermediate_size:
        shapes |= {"shared_router": (hidden,), "shared_gate": (shared, hidden), "shared_up": (shared, hidden)}
        shapes["shared_down"] = (hidden, shared)
    return shapes
