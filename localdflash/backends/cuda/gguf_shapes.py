"""The tensors of a target's GGUF in the shapes that its configuration gives them: kernels believe the configuration."""

from collections.abc import Mapping

from localdflash.base.errors import ModelError
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.weights.gguf import GGUFHeader

Shape = tuple[int, ...]


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
    """A block's tensors; biases may be left out."""
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
