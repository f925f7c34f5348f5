"""What the parts of a target are called in its file, and what shape they have, by architecture; and those of a drafter.

Imports no torch.
"""

from localdflash.backends.cpu.packed_model import CONVOLVED
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig

Shape = tuple[int, ...]

LAYER_FIELDS = {
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
POST_NORMED = ("gpt-oss", "qwen35", "qwen35moe")  # whose file calls the norm before an MLP by what is before that
BIASED = ("query", "key", "value", "output", "router", "gate", "up", "down")
SHARED_FIELDS = {
    "ffn_gate_inp_shexp": "shared_router",
    "ffn_gate_shexp": "shared_gate",
    "ffn_up_shexp": "shared_up",
    "ffn_down_shexp": "shared_down",
}
DELTA_FIELDS = {  # of a delta net, instead of attention
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
OF_ATTENTION = frozenset({"query", "key", "value", "output", "query_norm", "key_norm"})
DRAFTER_FIELDS = {  # of a `dflash` GGUF
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
CONVOLUTION_FIELDS = {
    "attn_conv_proj.weight": "attention_changes",
    "attn_conv_base": "attention_base",
    "ffn_conv_proj.weight": "mlp_changes",
    "ffn_conv_base": "mlp_base",
}
TARGET_FIELDS = {"token_embd": "embedding", "output_norm": "norm", "output": "head"}


def names_of(architecture: str, config: DecoderConfig) -> dict[str, str]:
    """Our name for each tensor that a file of an architecture may have."""
    fields = {
        f"{theirs}.weight": ours for theirs, ours in (MIXTURE_FIELDS if config.num_experts else LAYER_FIELDS).items()
    }
    if architecture == "gpt-oss":
        fields |= {f"{theirs}.bias": f"{ours}_bias" for theirs, ours in MIXTURE_FIELDS.items() if ours in BIASED}
        fields |= {"attn_sinks.weight": "sinks"}
    if config.shared_intermediate_size:
        fields |= {f"{theirs}.weight": ours for theirs, ours in SHARED_FIELDS.items()}
    if architecture in POST_NORMED:
        fields["post_attention_norm.weight"] = fields.pop("ffn_norm.weight")
    recurrent = {theirs: ours for theirs, ours in fields.items() if ours not in OF_ATTENTION} | DELTA_FIELDS
    names = {f"{theirs}.weight": ours for theirs, ours in TARGET_FIELDS.items()}
    for layer in range(config.num_hidden_layers):
        own = recurrent if config.recurrent and config.recurrent[layer] else fields
        names |= {f"blk.{layer}.{theirs}": f"layers.{layer}.{ours}" for theirs, ours in own.items()}
    return names


def drafter_names(config: DFlashConfig) -> dict[str, str]:
    """Our name for each tensor that a `dflash` GGUF may have."""
    names = dict(DRAFTER_FIELDS)
    for layer in range(config.decoder.num_hidden_layers):
        fields = CONVOLUTION_FIELDS | {f"{theirs}.weight": ours for theirs, ours in LAYER_FIELDS.items()}
        fields |= {f"{theirs}.bias": f"{ours}_bias" for theirs, ours in LAYER_FIELDS.items() if ours in BIASED}
        names |= {f"blk.{layer}.{theirs}": f"layers.{layer}.{ours}" for theirs, ours in fields.items()}
    return names


def drafter_shapes(config: DFlashConfig) -> dict[str, Shape]:
    """The shape of every part of a drafter, by our names."""
    c, hidden, vocabulary = config, config.decoder.hidden_size, config.decoder.vocab_size
    shapes: dict[str, Shape] = {"fuse": (hidden, len(c.taps) * hidden), "fuse_norm": (hidden,), "norm": (hidden,)}
    if c.own_embedding:
        shapes["embedding"] = (vocabulary, hidden)
    if c.own_head:
        shapes["head"] = (c.proposed, hidden)
    if c.markov_rank:
        shapes |= {"markov_w1": (vocabulary, c.markov_rank), "markov_w2": (c.proposed, c.markov_rank)}
    if c.judges:
        shapes |= {"confidence": (1, hidden + c.markov_rank), "confidence_bias": (1,)}
    if c.selector_rank:
        shapes |= dict.fromkeys(("predecessor", "successor"), (vocabulary, c.selector_rank))
        shapes["selector"] = (c.selector_rank, hidden)
    for layer in range(c.decoder.num_hidden_layers if c.conv_kernel else 0):
        for name in CONVOLVED:
            shapes[f"layers.{layer}.{name}_changes"] = (2 * c.conv_kernel * hidden // c.conv_group, hidden)
            shapes[f"layers.{layer}.{name}_base"] = (2, c.conv_kernel, hidden)
    return shapes | shapes_of(c.decoder)


def shapes_of(config: DecoderConfig) -> dict[str, Shape]:
    """The shape of every part of the blocks, by our names."""
    recurrent = config.recurrent or (False,) * config.num_hidden_layers
    kinds = {False: _layer(config) | _attention(config), True: _layer(config) | _delta_net(config)}
    return {f"layers.{i}.{name}": shape for i, is_net in enumerate(recurrent) for name, shape in kinds[is_net].items()}


def _delta_net(c: DecoderConfig) -> dict[str, Shape]:
    if (d := c.delta) is None:
        return {}
    hidden, heads = c.hidden_size, (d.v_heads,)
    return {
        "mixed": (d.mixed, hidden),
        "mixed_gate": (d.values, hidden),
        "alpha": (d.v_heads, hidden),
        "beta": (d.v_heads, hidden),
        "conv": (d.mixed, d.kernel),
        "rate": heads,
        "shift": heads,
        "delta_norm": (d.v_dim,),
        "output": (hidden, d.values),
    }


def _attention(c: DecoderConfig) -> dict[str, Shape]:
    hidden, q, kv = c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    shapes: dict[str, Shape] = {
        "query": (2 * q if c.output_gate else q, hidden),
        "key": (kv, hidden),
        "value": (kv, hidden),
        "output": (hidden, q),
    }
    if c.qk_norm:
        shapes |= {"query_norm": (c.head_dim,), "key_norm": (c.head_dim,)}
    if c.attention_bias:
        shapes |= {"query_bias": (q,), "key_bias": (kv,), "value_bias": (kv,), "output_bias": (hidden,)}
    if c.sinks:
        shapes["sinks"] = (c.num_attention_heads,)
    return shapes


def _layer(c: DecoderConfig) -> dict[str, Shape]:
    """What layers of both kinds have."""
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
