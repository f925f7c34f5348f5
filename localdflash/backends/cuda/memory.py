"""How much device memory a pair takes, before it is loaded; and the largest context that fits.

Weights by the planes' own sizes, keys and values by token, and what is the same for every context. What rounds tensors
up, the kernels themselves and their graphs are not in it: `RESERVE` is kept free for them.
"""

from dataclasses import dataclass
from math import prod

import torch

from localdflash.backends.cuda.stack import ROWS
from localdflash.backends.cuda.stepper import DOCUMENTS, SLACK, TAP_SLOTS
from localdflash.base.errors import ModelError, OutOfMemory
from localdflash.kernels.cuda.attention import BUCKETS, CHUNK
from localdflash.kernels.cuda.planes import COLUMNS
from localdflash.kernels.cuda.qkv import HEAD_DIMS
from localdflash.kernels.cuda.split_k import MOST_TILES
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.shapes.dflash_gguf import own_tensors
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import GGUFHeader

RESERVE = 700 << 20  # bytes of a GPU for what torch rounds up (by 1 MB a tensor), compiled kernels and graphs
LONGEST = BUCKETS[-1] * CHUNK - SLACK
# Bits of a weight in planes, scales and minimums included, and R, a quarter of the block that k is padded to.
PLANES = {
    GGMLType.Q4_0: (4.5, 32),
    GGMLType.Q4_1: (5.0, 32),
    GGMLType.Q8_0: (8.5, 32),
    GGMLType.Q4_K: (4.625, 32),
    GGMLType.Q5_K: (6.625, 32),
    GGMLType.Q6_K: (6.625, 16),
    GGMLType.MXFP4: (4.5, 32),
    GGMLType.NVFP4: (5.0, 16),
}
INT8, INT4 = (8.25, 32), (4.25, 32)
GATHERED = ("markov_w1.weight", "selector_predecessor.weight", "selector_successor.weight")  # float16, row by row


@dataclass(frozen=True)
class Memory:
    """Bytes of each part of a pair."""

    target: int
    drafter: int
    fixed: int
    per_token: int

    def total(self, context: int) -> int:
        """The sum for a context of so many tokens."""
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
    """What a target, whose weights take `target_bytes`, and its drafter will need."""
    per_token = kv_bytes(config, kv) + config.head_dim * 4 + 4 + _scratch_bytes(config)
    fixed = MOST_TILES * _activation_bytes(config) + _sampling_bytes(config.vocab_size) + DOCUMENTS * 4
    if drafter:
        per_token += kv_bytes(drafter.decoder, torch.float16) + drafter.decoder.head_dim * 4
        width = len(drafter.taps) * config.hidden_size
        fixed += _activation_bytes(drafter.decoder) + (TAP_SLOTS + ROWS) * width * 2
        fixed += ROWS * config.hidden_size * 6 + _slot_bytes(drafter)
    return Memory(target_bytes, drafter_bytes, fixed, per_token)


def gguf_drafter_bytes(header: GGUFHeader) -> int:
    """Bytes on the device of a GGUF drafter; k and v are held twice: with q, and stacked for the context."""
    once = {name: info for name, info in own_tensors(header).items() if not name.startswith("conf_proj")}
    tables = sum(table_bytes(name, *once.pop(name).shape) for name in GATHERED if name in once)
    bases = [once.pop(name) for name in list(once) if name.endswith("_conv_base")]
    twice = [info for name, info in once.items() if name.endswith(("attn_k.weight", "attn_v.weight"))]
    matrices = sum(tensor_bytes(info.ggml_type, info.shape) for info in [*once.values(), *twice])
    return matrices + tables + sum(prod(info.shape) * 4 for info in bases)


def short_head_bytes(head_nbytes: int, vocab_size: int, rows: int) -> int:
    """Bytes of so many rows of the target's head, a short draft vocabulary, and of their ids."""
    return head_nbytes * _up(rows, COLUMNS) // _up(vocab_size, COLUMNS) + rows * 4


def file_bytes(header: GGUFHeader) -> int:
    """Bytes on the device of all tensors of a GGUF."""
    return sum(tensor_bytes(info.ggml_type, info.shape) for info in header.tensors.values())


def drafter_bytes(config: DFlashConfig, bits: int) -> int:
    """Bytes of a drafter's weights that are quantized at load; k and v are held twice."""
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
    """Bytes on the device of a GGUF tensor; anything but a matrix stays float32."""
    if len(shape) < 2:
        return prod(shape) * 4
    bits, rows = PLANES.get(kind, INT8)
    return prod(shape[:-2]) * matrix_bytes(bits, rows, shape[-2], shape[-1])


def matrix_bytes(bits: float, rows: int, n: int, k: int) -> int:
    """Bytes on the device of planes [n, k], of so many bits a weight and padded to blocks of 4 * `rows`."""
    return int(_up(n, COLUMNS) * _up(k, 4 * rows) * bits / 8)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def kv_bytes(config: DecoderConfig, kv: torch.dtype) -> int:
    """Bytes of one token's keys and values in all layers."""
    scales = 4 if kv.itemsize == 1 else 0
    return config.num_hidden_layers * 2 * config.num_key_value_heads * (config.head_dim * kv.itemsize + scales)


def _scratch_bytes(config: DecoderConfig) -> int:
    """Bytes of attention's scratch per token: a row's sums for every chunk."""
    return ROWS * config.num_attention_heads * (config.head_dim + 2) * 4 // CHUNK


def _slot_bytes(drafter: DFlashConfig) -> int:
    """Bytes of what stands between the drafter's layers and its tokens: logits where slots follow one another."""
    logits = ROWS * drafter.proposed * 4 if drafter.kind != "dflash" else 0
    return logits + (ROWS * drafter.decoder.hidden_size * 6 if drafter.conv_kernel else 0)


def _sampling_bytes(vocab_size: int) -> int:
    """Bytes of the logits of all rows, and of what a draw leaves beside every 32 of them."""
    return ROWS * vocab_size * 4 * 35 // 32


def _activation_bytes(config: DecoderConfig) -> int:
    c = config
    widths = c.hidden_size * 3 + c.num_attention_heads * c.head_dim * 2 + c.intermediate_size
    return ROWS * (widths * 2 + (2 * c.num_hidden_layers + 1) * c.hidden_size // 32)


def check_heads(config: DecoderConfig, where: str) -> None:
    """ModelError for heads of a size that the kernels do not have."""
    if config.head_dim not in HEAD_DIMS:
        sizes = " and ".join(map(str, HEAD_DIMS))
        raise ModelError(f"{where}: heads of {config.head_dim}: the CUDA engine has {sizes}: use --backend llama.cpp")


def check_kinds(header: GGUFHeader) -> None:
    """ModelError naming a matrix whose type planes do not hold exactly."""
    for info in header.tensors.values():
        if len(info.shape) > 1 and info.ggml_type not in PLANES and "_inp" not in info.name:
            raise ModelError(
                f"{header.path}: tensor {info.name} is {info.ggml_type.name}, which the CUDA engine does not run:"
                " use --backend llama.cpp"
            )
