"""Refusals of models that the kernels cannot run, by the headers of their files.

Kernels believe the configuration: a tensor of a target has the shape that its configuration gives it, or is refused.
"""

from collections.abc import Mapping

from localdflash.backends.cuda.stack import ROWS
from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.qkv import HEAD_DIMS
from localdflash.kernels.cuda.selector import LARGEST_K
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import GGUFHeader

Shape = tuple[int, ...]
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


def check_drafter(config: DFlashConfig, where: str) -> None:
    """ModelError for a drafter that the kernels do not run."""
    cases = (
        (config.block_size > ROWS, f"blocks of {config.block_size} rows, more than {ROWS}"),
        (config.selector_top_k > LARGEST_K, f"{config.selector_top_k} candidates for a slot, more than {LARGEST_K}"),
        (len(set(config.taps)) < len(config.taps), "a tap that is told twice"),
    )
    for is_so, what in cases:
        if is_so:
            raise ModelError(f"{where}: the CUDA engine runs no drafters with {what}: use `--backend llama.cpp`")


def check_target(header: GGUFHeader, config: DecoderConfig) -> None:
    """ModelError for a tensor of a target that is missing or has another shape."""
    table = (config.vocab_size, config.hidden_size)
    top = {"token_embd.weight": table, "output_norm.weight": (config.hidden_size,)}
    _check(header, config, top if config.tie_word_embeddings else top | {"output.weight": table})


def _check(header: GGUFHeader, config: DecoderConfig, top: Mapping[str, Shape]) -> None:
    blocks = range(config.num_hidden_layers)
    inner = {f"blk.{i}.{name}": shape for i in blocks for name, shape in _block(config).items()}
    for name, shape in {**top, **inner}.items():
        info = header.tensors.get(name)
        if info is None and not name.endswith(".bias"):
            raise ModelError(f"{header.path}: tensor {name} is missing; download or convert the model again")
        if info and info.shape != shape:
            found, wanted = list(info.shape), list(shape)
            raise ModelError(f"{header.path}: tensor {name} has shape {found}, not {wanted}; convert the model again")


def _block(c: DecoderConfig) -> Mapping[str, Shape]:
    """Return a block's tensors; biases may be left out."""
    h, d, i = c.hidden_size, c.head_dim, c.intermediate_size
    q, kv = c.num_attention_heads * d, c.num_key_value_heads * d
    shapes: dict[str, Shape] = {
        "attn_norm.weight": (h,),
        "attn_q.weight": (q, h),
        "attn_k.weight": (kv, h),
        "attn_v.weight": (kv, h),
        "attn_q.bias": (q,),
        "attn_k.bias": (kv,),
        "attn_v.bias": (kv,),
        "attn_output.weight": (h, q),
        "ffn_norm.weight": (h,),
    }
    if c.qk_norm:
        shapes |= {"attn_q_norm.weight": (d,), "attn_k_norm.weight": (d,)}
    if not c.num_experts:
        return shapes | {"ffn_gate.weight": (i, h), "ffn_up.weight": (i, h), "ffn_down.weight": (h, i)}
    e, i = c.num_experts, c.moe_intermediate_size
    return shapes | {
        "ffn_gate_inp.weight": (e, h),
        "ffn_gate_exps.weight": (e, i, h),
        "ffn_up_exps.weight": (e, i, h),
        "ffn_down_exps.weight": (e, h, i),
    }
