"""What the parts of a target are called in its file, and what shape they have, by architecture. Imports no torch."""

from localdflash.model.decoder_config import DecoderConfig

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
BIASED = ("query", "key", "value", "output", "router", "gate", "up", "down")
TARGET_FIELDS = {"token_embd": "embedding", "output_norm": "norm", "output": "head"}


def names_of(architecture: str, config: DecoderConfig) -> dict[str, str]:
    """Our name for each tensor that a file of an architecture may have."""
    fields = {
        f"{theirs}.weight": ours for theirs, ours in (MIXTURE_FIELDS if config.num_experts else LAYER_FIELDS).items()
    }
    if architecture == "gpt-oss":
        fields |= {f"{theirs}.bias": f"{ours}_bias" for theirs, ours in MIXTURE_FIELDS.items() if ours in BIASED}
        fields |= {"post_attention_norm.weight": "mlp_norm", "attn_sinks.weight": "sinks"}
        del fields["ffn_norm.weight"]
    names = {f"{theirs}.weight": ours for theirs, ours in TARGET_FIELDS.items()}
    for layer in range(config.num_hidden_layers):
        names |= {f"blk.{layer}.{theirs}": f"layers.{layer}.{ours}" for theirs, ours in fields.items()}
    return names


def shapes_of(config: DecoderConfig) -> dict[str, Shape]:
    """The shape of every part of the blocks, by our names."""
    return {
        f"layers.{i}.{name}": shape for i in range(config.num_hidden_layers) for name, shape in _layer(config).items()
    }


def _layer(c: DecoderConfig) -> dict[str, Shape]:
    hidden, q, kv = c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    inner, experts = c.moe_intermediate_size or c.intermediate_size, (c.num_experts,) if c.num_experts else ()
    shapes: dict[str, Shape] = {
        "attention_norm": (hidden,),
        "mlp_norm": (hidden,),
        "query": (q, hidden),
        "key": (kv, hidden),
        "value": (kv, hidden),
        "output": (hidden, q),
        "gate": (*experts, inner, hidden),
        "up": (*experts, inner, hidden),
        "down": (*experts, hidden, inner),
    }
    if c.qk_norm:
        shapes |= {"query_norm": (c.head_dim,), "key_norm": (c.head_dim,)}
    if experts:
        shapes["router"] = (*experts, hidden)
    if c.attention_bias:
        shapes |= {"query_bias": (q,), "key_bias": (kv,), "value_bias": (kv,), "output_bias": (hidden,)}
    if c.expert_bias:
        inners = (*experts, inner)
        shapes |= {"router_bias": experts, "gate_bias": inners, "up_bias": inners, "down_bias": (*experts, hidden)}
    if c.sinks:
        shapes["sinks"] = (c.num_attention_heads,)
    return shapes
