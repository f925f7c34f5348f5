"""How much device memory a pair takes, before it is loaded; and the largest context that fits.

Weights by the planes' own sizes, the KV cache by token, and what is the same for every context. What rounds tensors
up, the kernels themselves and their graphs are not in it: `RESERVE` is kept free for them.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from localdflash.backends.cuda.cuda_checks import PLANES, check_drafter, check_kinds
from localdflash.backends.cuda.stack import ROWS
from localdflash.backends.cuda.stepper import DOCUMENTS, SLACK, TAP_SLOTS
from localdflash.base.errors import OutOfMemory
from localdflash.kernels.cuda.attention import BUCKETS, CHUNK
from localdflash.kernels.cuda.planes import COLUMNS
from localdflash.kernels.cuda.split_k import MOST_TILES
from localdflash.models.memory.fit import AS_IT_IS, NO_DRAFTER
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH, TARGET, TARGET_KV, Parts
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig, check_fit
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.shapes.dflash_gguf import own_tensors
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import GGUFHeader, read_header

KV_TYPES = {"f16": torch.float16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
RESERVE = 700 << 20  # bytes of a GPU for what torch rounds up (by 1 MB a tensor), compiled kernels and graphs
LONGEST = BUCKETS[-1] * CHUNK - SLACK
INT8, INT4 = (8.25, 32), (4.25, 32)  # as in `PLANES`
GATHERED = ("markov_w1.weight", "selector_predecessor.weight", "selector_successor.weight")  # float16, row by row
BITS = {"8 bits": 8, "4 bits": 4}


@dataclass(frozen=True)
class Memory:
    """Bytes of each part of a pair."""

    target: int
    drafter: int
    fixed: int
    per_token: int

    def total(self, context: int) -> int:
        """Return the sum for a context of so many tokens."""
        return self.target + self.drafter + self.fixed + self.per_token * (context + SLACK)

    def largest_context(self, free: int, margin: int = RESERVE) -> int:
        """Tokens of context that fit into so much free memory, of which a margin stays; may be negative."""
        left = free - margin - self.target - self.drafter - self.fixed
        return min(left // self.per_token - SLACK, LONGEST)


def choose_context(memory: Memory, trained: int, free: int, margin: int = RESERVE) -> int:
    """As much of the trained context as fits; OutOfMemory if that is too little to be of use."""
    largest, least = memory.largest_context(free, margin), min(trained, 512)
    if largest < least:
        needed = memory.total(least) + margin
        raise OutOfMemory(
            f"{needed / 1e9:.1f} GB of GPU memory are needed, {free / 1e9:.1f} GB are free: choose a smaller pair"
        )
    return min(trained, largest)


def predict_bytes(
    target_bytes: int, config: DecoderConfig, drafter: DFlashConfig | None, drafter_bytes: int, kv: torch.dtype
) -> Memory:
    """Return what a target, whose weights take `target_bytes`, and its drafter will need."""
    per_token = kv_bytes(config, kv) + config.head_dim * 4 + 4 + _scratch_bytes(config)
    fixed = MOST_TILES * _activation_bytes(config) + _sampling_bytes(config.vocab_size) + DOCUMENTS * 4
    if drafter:
        per_token += kv_bytes(drafter.decoder, torch.float16) + drafter.decoder.head_dim * 4
        width = len(drafter.taps) * config.hidden_size
        fixed += _activation_bytes(drafter.decoder) + (TAP_SLOTS + ROWS) * width * 2
        fixed += ROWS * config.hidden_size * 6 + _slot_bytes(drafter)
    return Memory(target_bytes, drafter_bytes, fixed, per_token)


def gguf_drafter_bytes(header: GGUFHeader) -> int:
    """Return the bytes on the device of a GGUF drafter; k and v are held twice: with q, and stacked for the context."""
    once = {name: info for name, info in own_tensors(header).items() if not name.startswith("conf_proj")}
    tables = sum(table_bytes(name, *once.pop(name).shape) for name in GATHERED if name in once)
    bases = [once.pop(name) for name in list(once) if name.endswith("_conv_base")]
    twice = [info for name, info in once.items() if name.endswith(("attn_k.weight", "attn_v.weight"))]
    matrices = sum(tensor_bytes(info.ggml_type, info.shape) for info in [*once.values(), *twice])
    return matrices + tables + sum(prod(info.shape) * 4 for info in bases)


def short_head_bytes(head_nbytes: int, vocab_size: int, rows: int) -> int:
    """Return the bytes of so many rows of the target's head, a short draft vocabulary, and of their ids."""
    return head_nbytes * _up(rows, COLUMNS) // _up(vocab_size, COLUMNS) + rows * 4


def file_bytes(header: GGUFHeader) -> int:
    """Return the bytes on the device of all tensors of a GGUF."""
    return sum(tensor_bytes(info.ggml_type, info.shape) for info in header.tensors.values())


def drafter_bytes(config: DFlashConfig, bits: int) -> int:
    """Return the bytes of a drafter's weights that are quantized at load; k and v are held twice."""
    c = config.decoder
    h, q, kv, f = (
        c.hidden_size,
        *(n * c.head_dim for n in (c.num_attention_heads, c.num_key_value_heads)),
        c.intermediate_size,
    )
    kind = INT8 if bits == 8 else INT4
    shapes = [(q + 2 * kv, h), (2 * kv, h), (h, q), (2 * f, h), (h, f)] * c.num_hidden_layers
    shapes += [(h, len(config.taps) * h)]
    shapes += [(c.vocab_size, h)] * config.own_embedding + [(config.proposed, h)] * config.own_head
    shapes += [(config.proposed, config.markov_rank), (config.selector_rank, h)]
    convolutions, sides = 2 * c.num_hidden_layers, 2 * config.conv_kernel
    if sides:
        shapes += [(sides * h // config.conv_group, h)] * convolutions
    ranks = config.markov_rank, config.selector_rank, config.selector_rank
    tables = sum(table_bytes(name, c.vocab_size, rank) for name, rank in zip(GATHERED, ranks, strict=True))
    return sum(matrix_bytes(*kind, n, k) for n, k in shapes) + tables + convolutions * sides * h * 4


def table_bytes(name: str, tokens: int, rank: int) -> int:
    """Bytes of a table whose rows are gathered; DSpark's are as wide as the planes that they are multiplied by."""
    return tokens * (_up(rank, 128) if name.startswith("markov") else rank) * 2


def tensor_bytes(kind: GGMLType, shape: tuple[int, ...]) -> int:
    """Return the bytes on the device of a GGUF tensor; anything but a matrix stays float32."""
    if len(shape) < 2:
        return prod(shape) * 4
    bits, rows = PLANES.get(kind, INT8)
    return prod(shape[:-2]) * matrix_bytes(bits, rows, shape[-2], shape[-1])


def matrix_bytes(bits: float, rows: int, n: int, k: int) -> int:
    """Return the bytes on the device of planes [n, k], of so many bits a weight and padded to blocks of 4 * `rows`."""
    return int(_up(n, COLUMNS) * _up(k, 4 * rows) * bits / 8)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def kv_bytes(config: DecoderConfig, kv: torch.dtype) -> int:
    """Return the bytes of one token's KV cache in all layers."""
    scales = 4 if kv.itemsize == 1 else 0
    return config.num_hidden_layers * 2 * config.num_key_value_heads * (config.head_dim * kv.itemsize + scales)


def _scratch_bytes(config: DecoderConfig) -> int:
    """Return the bytes of attention's scratch per token: a row's sums for every chunk."""
    return ROWS * config.num_attention_heads * (config.head_dim + 2) * 4 // CHUNK


def _slot_bytes(drafter: DFlashConfig) -> int:
    """Bytes of what stands between the drafter's layers and its tokens: logits where slots follow one another."""
    logits = ROWS * drafter.proposed * 4 if drafter.kind != "dflash" else 0
    return logits + (ROWS * drafter.decoder.hidden_size * 6 if drafter.conv_kernel else 0)


def _sampling_bytes(vocab_size: int) -> int:
    """Return the bytes of the logits of all rows, and of what a draw leaves beside every 32 of them."""
    return ROWS * vocab_size * 4 * 35 // 32


def _activation_bytes(config: DecoderConfig) -> int:
    c = config
    widths = c.hidden_size * 3 + c.num_attention_heads * c.head_dim * 2 + c.intermediate_size
    return ROWS * (widths * 2 + (2 * c.num_hidden_layers + 1) * c.hidden_size // 32)


class CudaSizes:
    """See `Sizes`; `bits` is the most a safetensors drafter may have. ModelError if CUDA cannot run the pair."""

    def __init__(self, target: Path, drafter: Path | None, kv: str = "f16", bits: int = 8) -> None:
        self.header = read_header(target)
        check_kinds(self.header)
        self._config = decoder_config(self.header)
        self._kv = KV_TYPES[kv]
        self._target = file_bytes(self.header)
        self._path, self._drafter = drafter, config_of_file(drafter) if drafter else None
        if self._drafter:
            c = self._config
            check_drafter(self._drafter, str(drafter))
            check_fit(self._drafter, c.hidden_size, c.vocab_size, c.num_hidden_layers, str(drafter))
        self.trained = min(self._config.context_length, LONGEST)
        self.drafters = self._drafters(bits)

    def _drafters(self, bits: int) -> tuple[str, ...]:
        if self._path is None:
            return (NO_DRAFTER,)
        if self._path.suffix == ".gguf":
            return AS_IT_IS, NO_DRAFTER
        return *(name for name, size in BITS.items() if size <= bits), NO_DRAFTER

    def parts(self, context: int, drafter: str) -> Parts:
        """See `Sizes`."""
        drafting = self._drafter if drafter != NO_DRAFTER else None
        weights = self._drafter_bytes(drafting, drafter) if drafting else 0
        memory = predict_bytes(self._target, self._config, drafting, weights, self._kv)
        parts = {TARGET: memory.target, TARGET_KV: kv_bytes(self._config, self._kv) * (context + SLACK)}
        if drafting:
            cache = kv_bytes(drafting.decoder, KV_TYPES["f16"]) * (context + SLACK)
            parts |= {DRAFTER: weights, DRAFTER_KV: cache}
        return parts | {SCRATCH: memory.total(context) - sum(parts.values())}

    def _drafter_bytes(self, config: DFlashConfig, drafter: str) -> int:
        assert self._path is not None
        gguf = self._path.suffix == ".gguf"
        size = gguf_drafter_bytes(read_header(self._path)) if gguf else drafter_bytes(config, BITS[drafter])
        if not config.short or config.own_head:
            return size
        rows, tied = len(config.short), self._config.tie_word_embeddings
        head = self.header.tensors["token_embd.weight" if tied else "output.weight"]
        return size + short_head_bytes(tensor_bytes(head.ggml_type, head.shape), self._config.vocab_size, rows)
