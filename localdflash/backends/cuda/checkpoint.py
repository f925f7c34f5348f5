"""A target from a Hugging Face folder: config.json with safetensors, in one file or in shards with an index.

Linear layers keep their quantization (backends/cuda/repack/checkpoint_planes.py lists the formats); what the checkpoint
has in float (the embedding and the head as a rule, or every layer) is quantized to int8; norms and routers become
float32. Every tensor must have a place in the decoder, and every place a tensor: that is checked before one of them is
read.

This is a feature of the engine, ids in and ids out: the registry and the tokenizer know only GGUF targets so far.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from localdflash.backends.cuda.checkpoint_config import INSTEAD, decoder_config_of_json
from localdflash.backends.cuda.memory import INT8, matrix_bytes
from localdflash.backends.cuda.repack.checkpoint_planes import AGAIN, BLOCK, linear_planes
from localdflash.backends.cuda.repack.gguf_planes import in_turn, join, layout, stack
from localdflash.backends.cuda.weights import Progress
from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.planes import Planes
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.gguf_config import EXPERT_TENSORS, LAYER_TENSORS
from localdflash.models.weights import safetensors
from localdflash.models.weights.safetensors import SafetensorInfo, SafetensorsHeader, read_index, read_object

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
METHODS = (
    *("gptq", "awq", "auto-round", "intel/auto-round"),
    *("compressed-tensors", "fp8", "fbgemm_fp8", "modelopt"),
)
FLOATS = ("F32", "F16", "BF16")
# Ends of the names in a linear layer: what holds its weights, and what only quantized activations need.
WEIGHTS = ("weight", "qweight", "weight_packed")
CODES = (
    *(*WEIGHTS, "qzeros", "scales", "g_idx", "weight_scale", "weight_scale_inv", "weight_scale_2"),
    *("weight_global_scale", "weight_shape", "weight_zero_point", "weight_g_idx"),
)
UNUSED = ("input_scale", "input_global_scale", "output_scale", "k_scale", "v_scale")
WITHOUT_PLACE = (".rotary_emb.inv_freq", ".attn.k_scale", ".attn.v_scale")  # computed here, or of a quantized cache
BIASED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
FP4 = {"F8_E4M3": (5.0, 16), "U8": (4.5, 32)}  # by the dtype of the scales: NVFP4, MXFP4


@dataclass(frozen=True)
class _Matrix:
    """The place of a linear layer [n, k], or of one of every expert."""

    prefixes: tuple[str, ...]
    n: int
    k: int


@dataclass(frozen=True)
class _Vector:
    """The place of a tensor in float32."""

    name: str
    shape: tuple[int, ...]


class CheckpointSource:
    """A folder's tensors by their GGUF names; see `TensorSource`. ModelError tells what is missing or not supported."""

    def __init__(self, folder: Path, device: torch.device, progress: Progress | None = None) -> None:
        document = read_object(folder / "config.json")
        self.config = decoder_config_of_json(document, str(folder / "config.json"))
        self._quantization = _quantization(document, folder)
        self._folder, self._device, self._progress = folder, device, progress
        headers = [safetensors.read_part(file) for file in _shards(folder)]
        self._files = {name: header.path for header in headers for name in header.tensors}
        self._layers = _by_layer(headers)
        self._matrices, self._vectors = dict(_matrices(self.config)), dict(_vectors(self.config))
        self._check()
        self._open: dict[Path, Any] = {}
        self._loaded: dict[str, Planes] = {}  # matrices of which only the kind was asked
        self._done, self._total = 0, sum(map(self._matrix_bytes, self._matrices.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole target on the device, zero points counted wherever there may be some."""
        return self._total + sum(prod(vector.shape) * 4 for vector in self._vectors.values())

    @property
    def head_nbytes(self) -> int:
        """Bytes of the head, which may be the embedding."""
        name = "token_embd.weight" if self.config.tie_word_embeddings else "output.weight"
        return self._matrix_bytes(self._matrices[name])

    def kind(self, name: str) -> object:
        """See `TensorSource`. Only the weights tell: zero points may be in one layer and not in the next."""
        self._loaded[name] = self._linear(self._matrices[name], 0)
        return layout(self._loaded[name])

    def planes(self, names: Sequence[str], interleave: bool = False, order: Tensor | None = None) -> Planes:
        """See `TensorSource`."""
        places = [self._matrices[name] for name in names]
        if interleave:
            turns = in_turn(places[0].n, len(names))
            order = turns if order is None else turns[order]

        def part(name: str, expert: int) -> Planes:
            return self._loaded.pop(name, None) or self._linear(self._matrices[name], expert)

        experts = range(len(places[0].prefixes))
        try:
            return stack([join([part(name, expert) for name in names], order) for expert in experts])
        except ValueError:
            layers = ", ".join(place.prefixes[0] for place in places)
            problem = "are quantized in different ways and make no single matrix"
            raise ModelError(f"{self._folder}: the layers {layers} {problem}; {INSTEAD}") from None

    def vector(self, name: str) -> Tensor | None:
        """See `TensorSource`."""
        vector = self._vectors.get(name)
        return None if vector is None else self._read(vector.name).float().to(self._device)

    def _linear(self, place: _Matrix, expert: int) -> Planes:
        """One linear layer. A bias that the decoder has no place for must be zero, as some tools write it."""
        prefix = place.prefixes[expert]
        ends = self._layers[prefix]
        tensors = {f"{prefix}.{end}": self._read(f"{prefix}.{end}").to(self._device) for end in ends if end in CODES}
        try:
            planes = linear_planes(tensors, prefix, self._quantization)
        except ModelError as error:
            raise ModelError(f"{self._folder}: {error}") from error
        if (planes.n, planes.k) != (place.n, place.k):
            found, wanted = [planes.n, planes.k], [place.n, place.k]
            raise ModelError(f"{self._folder}: layer {prefix} is {found}, config.json says {wanted}; {AGAIN}")
        biased = self.config.attention_bias and prefix.endswith(BIASED)
        if "bias" in ends and not biased and bool(self._read(f"{prefix}.bias").any()):
            raise ModelError(f"{self._folder}: the CUDA engine does not run the bias of {prefix}; {INSTEAD}")
        self._done += self._layer_bytes(prefix, place)
        if self._progress:
            self._progress(self._done, self._total)
        return planes

    def _read(self, name: str) -> Tensor:
        file = self._files[name]
        try:
            if file not in self._open:
                self._open[file] = safe_open(file, framework="pt")
            tensor: Tensor = self._open[file].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: cannot read tensor {name}: {error}; {AGAIN}") from error
        return tensor

    def _check(self) -> None:
        """Raise ModelError for a place without a tensor, and for a tensor without a place."""
        prefixes = {prefix for place in self._matrices.values() for prefix in place.prefixes}
        for prefix in prefixes:
            if not any(end in self._layers.get(prefix, ()) for end in WEIGHTS):
                raise ModelError(f"{self._folder}: tensor {prefix}.weight is missing; {AGAIN}")
        names = {vector.name for vector in self._vectors.values()}
        for vector in self._vectors.values():
            self._check_vector(vector)
        for name in self._files.keys() - names:
            prefix, _, end = name.rpartition(".")
            known = prefix in prefixes and end in (*CODES, *UNUSED, "bias")
            tied = self.config.tie_word_embeddings and prefix == "lm_head"
            if not (known or tied or name.endswith(WITHOUT_PLACE)):
                raise ModelError(f"{self._folder}: tensor {name} has no place in this kind of decoder; {INSTEAD}")

    def _check_vector(self, vector: _Vector) -> None:
        prefix, _, end = vector.name.rpartition(".")
        info = self._layers.get(prefix, {}).get(end)
        if info is None:
            raise ModelError(f"{self._folder}: tensor {vector.name} is missing; {AGAIN}")
        if info.dtype not in FLOATS:
            raise ModelError(f"{self._folder}: no kernel reads tensor {vector.name} of type {info.dtype}; {INSTEAD}")
        if info.shape != vector.shape:
            found, wanted = list(info.shape), list(vector.shape)
            raise ModelError(f"{self._folder}: tensor {vector.name} is {found}, config.json says {wanted}; {AGAIN}")

    def _matrix_bytes(self, place: _Matrix) -> int:
        return sum(self._layer_bytes(prefix, place) for prefix in place.prefixes)

    def _layer_bytes(self, prefix: str, place: _Matrix) -> int:
        """Bytes of one layer's planes, by the headers alone."""
        ends = self._layers[prefix]
        codes, scale = ends.get("weight_packed") or ends.get("weight"), ends.get("weight_scale")
        bits: float
        if codes is not None and codes.dtype == "U8":
            bits, rows = FP4.get(scale.dtype if scale else "", INT8)
        elif "qweight" in ends or "weight_packed" in ends:
            bits, rows = self._integer_bits(ends, place.k), 32
        else:
            bits, rows = INT8
        return matrix_bytes(bits, rows, place.n, place.k)

    def _integer_bits(self, ends: Mapping[str, SafetensorInfo], k: int) -> float:
        """Bits of a weight with its share of a scale and, unless the file says that there are none, of a zero point."""
        if "qweight" in ends:
            eight, scales = self._quantization.get("bits") == 8, ends.get("scales")
            groups, symmetric = scales.shape[0] if scales else 1, self._quantization.get("sym") is True
        else:
            eight, scales = ends["weight_packed"].shape[-1] == -(-k // 4), ends.get("weight_scale")
            groups, symmetric = scales.shape[-1] if scales else 1, "weight_zero_point" not in ends
        one_scale = symmetric and (groups <= 1 or k // groups % BLOCK == 0)
        return (8 if eight else 4) + (0.25 if one_scale else 0.5)


def _matrices(config: DecoderConfig) -> Iterator[tuple[str, _Matrix]]:
    """Places of the linear layers, by their GGUF names."""
    c = config
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    shapes = {"attn_q": (q, c.hidden_size), "attn_k": (kv, c.hidden_size), "attn_v": (kv, c.hidden_size)}
    shapes["attn_output"] = (c.hidden_size, q)
    inner, end = (c.moe_intermediate_size, "_exps") if c.num_experts else (c.intermediate_size, "")
    shapes |= {f"ffn_gate{end}": (inner, c.hidden_size), f"ffn_up{end}": (inner, c.hidden_size)}
    shapes[f"ffn_down{end}"] = (c.hidden_size, inner)
    yield "token_embd.weight", _Matrix(("model.embed_tokens",), c.vocab_size, c.hidden_size)
    if not c.tie_word_embeddings:
        yield "output.weight", _Matrix(("lm_head",), c.vocab_size, c.hidden_size)
    for index in range(c.num_hidden_layers):
        for name, (n, k) in shapes.items():
            yield f"blk.{index}.{name}.weight", _Matrix(tuple(_prefixes(c, index, name)), n, k)


def _prefixes(config: DecoderConfig, index: int, name: str) -> Iterator[str]:
    if name in LAYER_TENSORS:
        yield f"model.layers.{index}.{LAYER_TENSORS[name]}"
        return
    stem, _, last = EXPERT_TENSORS[name].rpartition(".")
    for expert in range(config.num_experts):
        yield f"model.layers.{index}.{stem}.{expert}.{last}"


def _vectors(config: DecoderConfig) -> Iterator[tuple[str, _Vector]]:
    """Places of norms, biases and routers, by their GGUF names."""
    c = config
    kv = c.num_key_value_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {"attn_norm.weight": (c.hidden_size,), "ffn_norm.weight": (c.hidden_size,)}
    if c.qk_norm:
        shapes |= {"attn_q_norm.weight": (c.head_dim,), "attn_k_norm.weight": (c.head_dim,)}
    if c.attention_bias:
        shapes |= {"attn_q.bias": (c.num_attention_heads * c.head_dim,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if c.num_experts:
        shapes["ffn_gate_inp.weight"] = (c.num_experts, c.hidden_size)
    yield "output_norm.weight", _Vector("model.norm.weight", (c.hidden_size,))
    for index in range(c.num_hidden_layers):
        for name, shape in shapes.items():
            stem, end = name.split(".")
            ours = (LAYER_TENSORS | EXPERT_TENSORS)[stem]
            yield f"blk.{index}.{name}", _Vector(f"model.layers.{index}.{ours}.{end}", shape)


def _by_layer(headers: Iterable[SafetensorsHeader]) -> dict[str, dict[str, SafetensorInfo]]:
    """All tensors by the parts of their names before and after the last dot."""
    layers: dict[str, dict[str, SafetensorInfo]] = {}
    for header in headers:
        for name, info in header.tensors.items():
            prefix, _, end = name.rpartition(".")
            layers.setdefault(prefix, {})[end] = info
    return layers


def _quantization(document: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """The `quantization_config` of config.json; empty if there is none."""
    found = document.get("quantization_config") or {}
    if not isinstance(found, dict):
        raise ModelError(f"{folder / 'config.json'}: quantization_config is no object; {AGAIN}")
    method = found.get("quant_method")
    if method not in (None, *METHODS):
        raise ModelError(f"{folder}: the quantization method {str(method)[:40]!r} is not supported; {INSTEAD}")
    if found.get("transform_config"):
        raise ModelError(f"{folder}: the CUDA engine does not run rotated weights (transform_config); {INSTEAD}")
    return found


def _shards(folder: Path) -> list[Path]:
    """The folder's safetensors files: those of the index, or the only one."""
    if not (folder / INDEX).exists():
        single, found = folder / SINGLE, sorted(folder.glob("*.safetensors"))
        if not single.exists() and len(found) != 1:
            raise ModelError(f"{folder}: expected {SINGLE} or {INDEX}; {AGAIN}")
        return [single if single.exists() else found[0]]
    names = sorted(set(read_index(folder / INDEX).values()))
    for name in names:
        if not (folder / name).exists():
            raise ModelError(f"{folder}: the shard {name} is missing; {AGAIN}")
    return [folder / name for name in names]
