"""Binds packed models to the ctypes structs that the kernels read; imports no torch."""

import ctypes
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from localdflash.backends.cpu.cpu_kv_cache import KVCache
from localdflash.backends.cpu.cpu_library import (
    ConvolutionStruct,
    DeltaNetStruct,
    DeltaShapeStruct,
    LayerStruct,
    MatrixStruct,
    ModelStruct,
    address,
)
from localdflash.backends.cpu.model_source import CONVOLVED, check_drafter_file, check_target_file
from localdflash.backends.cpu.packed_file import Layer, PackedModel, Progress, open_packed
from localdflash.backends.cpu.packing import Floats, PackedMatrix
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig


def open_target(path: Path, progress: Progress | None = None) -> PackedModel[DecoderConfig]:
    """Open a GGUF file's packed model, packing it first if needed; raise ModelError if the file cannot be run."""
    return open_packed(path, DecoderConfig, check_target_file, progress)


def open_drafter(path: Path, progress: Progress | None = None, bits: int = 8) -> PackedModel[DFlashConfig]:
    """Open the packed drafter of a `dflash` GGUF, or of safetensors next to their config.json.

    If `bits` is 4, float and Q8_0 matrices are rounded to Q4_0. Raise ModelError if the file cannot be run.
    """
    return open_packed(path, DFlashConfig, partial(check_drafter_file, bits=bits), progress, bits)


def bind_matrix(packed: PackedMatrix | None) -> MatrixStruct:
    """Return the struct of a matrix (of the first expert, if there are experts), or an empty struct for None."""
    if (p := packed) is None:
        return MatrixStruct()
    return MatrixStruct(p.kind, p.n, p.k, address(p.codes), address(p.scales), address(p.supers))


def bind_layers(
    layers: Sequence[Layer],
    cache: KVCache,  # has only the attention layers, in order
    causal: Sequence[bool],
    windows: Sequence[int],  # 0: no window
    nets: Sequence[DeltaNetStruct] = (),  # one per delta-net layer, in order
) -> Any:
    """Return an array of one struct per layer; it points into the arguments, which the caller must keep alive."""
    structs, net_index = (LayerStruct * len(layers))(), 0
    for i, (struct, layer) in enumerate(zip(structs, layers, strict=True)):
        for name, kind, *_ in LayerStruct._fields_:
            if name in layer:
                setattr(struct, name, bind_matrix(layer[name]) if kind is MatrixStruct else address(layer[name]))
        for name in CONVOLVED:
            changes, base = layer.get(f"{name}_changes"), layer.get(f"{name}_base")
            setattr(struct, f"{name}_conv", ConvolutionStruct(bind_matrix(changes), address(base)))
        struct.causal, struct.window = causal[i], windows[i]
        if "mixed" in layer:
            struct.delta = ctypes.pointer(nets[net_index])
            net_index += 1
        else:
            struct.cache = cache.bind(i - net_index)
    return structs


def bind_shape(config: DecoderConfig) -> ModelStruct:
    """Return a struct with the sizes of a model, for the caller to fill in weights and memory."""
    model = ModelStruct()
    model.blocks, model.hidden = config.num_hidden_layers, config.hidden_size
    model.heads, model.kv_heads = config.num_attention_heads, config.num_key_value_heads
    model.head_dim = config.head_dim
    model.inner = config.moe_intermediate_size if config.num_experts else config.intermediate_size
    model.experts, model.chosen = config.num_experts, config.num_experts_per_tok
    model.normalise, model.vocabulary = config.norm_topk_prob, config.vocab_size
    model.shared, model.gated = config.shared_intermediate_size, config.output_gate
    model.rotary = config.rotary_dim or config.head_dim
    if d := config.delta:
        model.delta = DeltaShapeStruct(d.k_heads, d.v_heads, d.k_dim, d.v_dim, d.kernel)
    model.eps, model.swiglu_limit = config.rms_norm_eps, config.swiglu_limit
    model.embedding_scale = model.logit_scale = 1.0
    return model


def bind_drafter_shape(config: DFlashConfig) -> ModelStruct:
    """Return `bind_shape` of a drafter, with the matrix sizes that determine the size of its workspace."""
    c, model = config, bind_shape(config.decoder)
    model.embedding_scale, model.logit_scale, model.softcap = c.embedding_scale, c.logit_scale, c.softcap
    model.tap_count, model.fuse.n = len(c.taps), c.decoder.hidden_size
    model.conv_kernel, model.conv_group = c.conv_kernel, c.conv_group
    model.slots.markov_w2.k, model.slots.selector.n = c.markov_rank, c.selector_rank
    model.slots.candidates, model.slots.first = c.selector_top_k, c.first_slot
    return model


def why_unsupported(config: DecoderConfig) -> str:
    """Return the reason why the kernels cannot run a decoder, or "" if they can."""
    c = config
    if c.head_dim % 32 or c.head_dim > 512:
        return f"heads of {c.head_dim} channels (supported: multiples of 32 up to 512)"
    if c.num_experts > 512 or c.num_experts_per_tok > 32:
        return f"{c.num_experts_per_tok} of {c.num_experts} experts (supported: up to 32 of 512)"
    if (d := c.delta) and (d.k_dim % 16 or d.v_dim % 32 or d.v_heads > 256 or d.v_heads % d.k_heads):
        return f"delta nets of {d.k_heads} key heads of {d.k_dim} and {d.v_heads} value heads of {d.v_dim}"
    return ""


def rope_tables(config: DecoderConfig, capacity: int) -> tuple[Floats, Floats]:
    """Return cosines and sines [capacity, rotary_dim / 2] of the rotate-half RoPE, with YaRN's magnitude."""
    size = config.rotary_dim or config.head_dim
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    divisors = np.array(config.rope_factors or 1.0, np.float32)
    frequencies = np.power(np.float32(config.rope_theta), -exponents) / divisors
    angles = np.arange(capacity, dtype=np.float32)[:, None] * frequencies
    magnitude = np.float32(config.rope_magnitude)
    return np.cos(angles) * magnitude, np.sin(angles) * magnitude
