"""Memory of a pair on a GPU, planned before loading. `RESERVE` stays free for memory that the plan cannot predict."""

from dataclasses import replace
from math import prod
from pathlib import Path

import torch

from localdflash.backends.cuda.cuda_checks import PLANES, check_drafter, check_tensor_types
from localdflash.backends.cuda.prompt_reader import BLOCK_TOKENS
from localdflash.backends.cuda.stack import ROWS
from localdflash.backends.cuda.stepper import DOCUMENTS, SLACK, TAP_SLOTS
from localdflash.base.errors import ModelError, OutOfMemory
from localdflash.kernels.cuda.attention import BUCKETS, chunks_of, slots_of
from localdflash.kernels.cuda.planes import COLUMNS
from localdflash.kernels.cuda.split_k import MAX_TILES
from localdflash.models.memory.fit import NO_DRAFTER, UNCHANGED, Fit, MemoryBudget, MemorySizes, fit
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH, TARGET, TARGET_KV, Parts, total
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig, check_fit
from localdflash.models.shapes.dflash_file import config_of_file, own_tensors
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import GGUFHeader, padded, read_header

KV_TYPES = {"auto": torch.float16, "f16": torch.float16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
# Bytes for torch's rounding (up to 1 MB per tensor), compiled kernels, graphs, and cuBLAS's workspaces.
RESERVE = 700 << 20
MAX_CONTEXT = slots_of(BUCKETS[-1]) - SLACK
INT8, INT4 = (8.25, 32), (4.25, 32)  # bits per weight and R, as in `PLANES`
FLOAT16_TABLES = ("markov_w1.weight", "selector_predecessor.weight", "selector_successor.weight")
BITS = {"8 bits": 8, "4 bits": 4}  # bits per weight of a safetensors drafter, by `Fit.drafter`


def gguf_drafter_bytes(header: GGUFHeader) -> int:
    """Return a GGUF drafter's bytes on the device; K and V weights are stored twice: with Q, and alone for context."""
    once = {name: info for name, info in own_tensors(header).items() if not name.startswith("conf_proj")}
    tables = sum(table_bytes(name, *once.pop(name).shape) for name in FLOAT16_TABLES if name in once)
    bases = [once.pop(name) for name in list(once) if name.endswith("_conv_base")]
    twice = [info for name, info in once.items() if name.endswith(("attn_k.weight", "attn_v.weight"))]
    matrices = sum(tensor_bytes(info.ggml_type, info.shape) for info in [*once.values(), *twice])
    return matrices + tables + sum(prod(info.shape) * 4 for info in bases)


def drafter_bytes(config: DFlashConfig, bits: int) -> int:
    """Return a safetensors drafter's bytes, quantized to `bits`; K and V weights are stored twice (see above)."""
    c = config.decoder
    h, f, d = c.hidden_size, c.intermediate_size, c.head_dim
    q, kv = c.num_attention_heads * d, c.num_key_value_heads * d
    kind = INT8 if bits == 8 else INT4
    shapes = [(q + 2 * kv, h), (2 * kv, h), (h, q), (2 * f, h), (h, f)] * c.num_hidden_layers
    shapes += [(h, len(config.taps) * h)]
    shapes += [(c.vocab_size, h)] * config.own_embedding + [(config.draft_vocab_size, h)] * config.own_head
    shapes += [(config.draft_vocab_size, config.markov_rank), (config.selector_rank, h)]
    convolutions, sides = 2 * c.num_hidden_layers, 2 * config.conv_kernel
    if sides:
        shapes += [(sides * h // config.conv_group, h)] * convolutions
    ranks = config.markov_rank, config.selector_rank, config.selector_rank
    tables = sum(table_bytes(name, c.vocab_size, rank) for name, rank in zip(FLOAT16_TABLES, ranks, strict=True))
    return sum(matrix_bytes(*kind, n, k) for n, k in shapes) + tables + convolutions * sides * h * 4


def table_bytes(name: str, tokens: int, rank: int) -> int:
    """Return the bytes of a table in float16; rows of a Markov table are padded like the planes that they multiply."""
    return tokens * (padded(rank, 128) if name.startswith("markov") else rank) * 2


def tensor_bytes(kind: GGMLType, shape: tuple[int, ...]) -> int:
    """Return the bytes on the device of a GGUF tensor: planes for a matrix (8-bit if of another type), else float32."""
    if len(shape) < 2:
        return prod(shape) * 4
    bits, rows = PLANES.get(kind, INT8)
    return prod(shape[:-2]) * matrix_bytes(bits, rows, shape[-2], shape[-1])


def matrix_bytes(bits: float, rows: int, n: int, k: int) -> int:
    """Return the bytes of planes [n, k] with `bits` per weight, k padded to blocks of 4 * `rows` weights."""
    return int(padded(n, COLUMNS) * padded(k, 4 * rows) * bits / 8)


def kv_bytes(config: DecoderConfig, kv: torch.dtype) -> int:
    """Return the bytes of one token's KV cache in all layers."""
    scales = 4 if kv.itemsize == 1 else 0
    return config.num_hidden_layers * 2 * config.num_key_value_heads * (config.head_dim * kv.itemsize + scales)


def _activation_bytes(config: DecoderConfig) -> int:
    c = config
    widths = c.hidden_size * 3 + c.num_attention_heads * c.head_dim * 2 + c.intermediate_size
    return ROWS * (widths * 2 + (2 * c.num_hidden_layers + 1) * c.hidden_size // 32)


class CudaSizes:
    """See `MemorySizes`. `bits`: maximum for a safetensors drafter. ModelError if this engine cannot run the pair."""

    def __init__(self, target: Path, drafter: Path | None, kv: str = "f16", bits: int = 8) -> None:
        if kv not in KV_TYPES:
            raise ModelError(f"--kv {kv}: the CUDA engine has no such KV cache; use int8 or fp8")
        self.header = read_header(target)
        check_tensor_types(self.header)
        self._config = decoder_config(self.header)
        self._kv = KV_TYPES[kv]
        self._target = sum(tensor_bytes(info.ggml_type, info.shape) for info in self.header.tensors.values())
        self._path, self._drafter = drafter, config_of_file(drafter) if drafter else None
        if self._drafter:
            c = self._config
            check_drafter(self._drafter, str(drafter))
            check_fit(self._drafter, c.hidden_size, c.vocab_size, c.num_hidden_layers, str(drafter))
        self.trained = min(self._config.context_length, MAX_CONTEXT)
        forms = [UNCHANGED] if drafter and drafter.suffix == ".gguf" else [name for name in BITS if BITS[name] <= bits]
        self.drafters = (*forms, NO_DRAFTER) if drafter else (NO_DRAFTER,)

    def parts(self, context: int, drafter: str) -> Parts:
        """See `MemorySizes`."""
        c, slots = self._config, context + SLACK
        parts = {TARGET: self._target, TARGET_KV: kv_bytes(c, self._kv) * slots}
        scratch = MAX_TILES * _activation_bytes(c) + DOCUMENTS * 4
        scratch += ROWS * c.vocab_size * 4 * 35 // 32  # logits of all rows, and sampling scratch for every 32
        scratch += chunks_of(slots) * ROWS * c.num_attention_heads * (c.head_dim + 2) * 4  # attention's partial results
        scratch += slots * (c.head_dim * 4 + 4)
        scratch += self._reader_bytes(slots)
        if drafter != NO_DRAFTER and (drafting := self._drafter):
            d, width = drafting.decoder, len(drafting.taps) * c.hidden_size
            cache = kv_bytes(d, torch.float16) * slots
            parts |= {DRAFTER: self._drafter_bytes(drafting, drafter), DRAFTER_KV: cache}
            scratch += slots * d.head_dim * 4 + _activation_bytes(d) + (TAP_SLOTS + ROWS) * width * 2
            scratch += ROWS * c.hidden_size * 6 + (ROWS * d.hidden_size * 6 if drafting.conv_kernel else 0)
            scratch += ROWS * drafting.draft_vocab_size * 4 if drafting.kind != "dflash" else 0  # logits
        return parts | {SCRATCH: scratch}

    def _reader_bytes(self, slots: int) -> int:
        """Return the bytes of `PromptReader`: activations, a matrix and its product."""
        c = self._config
        if c.num_experts or slots <= 2 * BLOCK_TOKENS[0]:
            return 0
        heads = c.num_attention_heads * c.head_dim
        widest = max(2 * c.intermediate_size, heads + 2 * c.num_key_value_heads * c.head_dim)
        matrix = padded(c.hidden_size, COLUMNS) * padded(widest, COLUMNS) * 2
        rows = BLOCK_TOKENS[0] // ROWS * _activation_bytes(c) + BLOCK_TOKENS[0] * padded(widest, COLUMNS) * 4
        return rows + matrix

    def _drafter_bytes(self, config: DFlashConfig, drafter: str) -> int:
        assert self._path is not None
        gguf = self._path.suffix == ".gguf"
        size = gguf_drafter_bytes(read_header(self._path)) if gguf else drafter_bytes(config, BITS[drafter])
        if not config.short or config.own_head:
            return size
        rows, tied = len(config.short), self._config.tie_word_embeddings
        head = self.header.tensors["token_embd.weight" if tied else "output.weight"]
        share = tensor_bytes(head.ggml_type, head.shape) * padded(rows, COLUMNS)
        return size + share // padded(self._config.vocab_size, COLUMNS) + rows * 4


DESKTOP_BYTES, OTHER_BYTES = 512 << 20, 128 << 20  # left free on a GPU with a display, and on one without
SPARE_DIVISOR = 8  # an automatic context leaves 1 / SPARE_DIVISOR of the free memory unused
MAX_ATTEMPTS = 4  # loads, each with a smaller plan


def budget_of(device: torch.device) -> MemoryBudget:
    """Return the memory that is free on a GPU now. It changes all the time, so a plan must use one measurement."""
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    margin = RESERVE + (DESKTOP_BYTES if has_display(device) else OTHER_BYTES)
    return MemoryBudget(free, margin, "GPU memory", spare=free // SPARE_DIVISOR)


def has_display(device: torch.device) -> bool:
    """Return whether a display is active on a GPU; False if NVIDIA's management library (NVML) does not report it."""
    try:
        import pynvml  # type: ignore[import-untyped]

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        return bool(pynvml.nvmlDeviceGetDisplayActive(handle))
    except Exception:  # no library, an old one, an old torch, no CUDA
        return False


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that the GPU is full; Triton and graphs only have the driver's message."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


def plan_smaller(sizes: MemorySizes, planned: Fit, requested: int, budget: MemoryBudget, attempt: int) -> Fit:
    """Return a smaller plan after `attempt` loads ran out of memory; raise OutOfMemory if nothing fits."""
    less = total(planned.parts) >> (MAX_ATTEMPTS + 1 - attempt)  # a 16th, then an 8th, then a quarter
    budget = replace(budget, free=min(budget.free, budget.needed(planned.parts) - less), spare=0)
    if requested:
        try:
            return fit(sizes, budget, requested)
        except OutOfMemory:
            pass
    return fit(_LimitedContext(sizes, planned.context), budget, 0)


def fallback_notice(planned: Fit, tried: Fit, failure: str) -> str:
    """Return a notice about the plan that was loaded instead of the first one."""
    now = [f"{planned.context} tokens of context"]
    if planned.drafter != tried.drafter:
        now.append("no drafter" if planned.drafter == NO_DRAFTER else f"a drafter of {planned.drafter}")
    return f"{failure}: loaded with {' and '.join(now)} instead of {tried.context} tokens"


class _LimitedContext:  # the given `MemorySizes` with a shorter trained context
    def __init__(self, sizes: MemorySizes, longest: int) -> None:
        self.trained, self.drafters, self.parts = longest, sizes.drafters, sizes.parts
