"""Names of a `dflash` GGUF's tensors in z-lab's safetensors."""

from localdflash.models.shapes.gguf_config import LAYER_TENSORS

TOP_TENSORS = {"fc": "fc", "enc.output_norm": "hidden_norm", "output_norm": "norm"}
CONVOLUTION_TENSORS = {  # of a layer of DFlash 2
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
}
HEAD_TENSORS = {
    "token_embd.weight": "embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight",
    "conf_proj.weight": "confidence_head.proj.weight",
    "conf_proj.bias": "confidence_head.proj.bias",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
    "selector_successor.weight": "candidate_selector.successor_codebook",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
}


def key_of(name: str) -> str:
    """Return the name of a GGUF's tensor in z-lab's state dict, "" for an unknown tensor."""
    if name in HEAD_TENSORS:
        return HEAD_TENSORS[name]
    parts = name.split(".")
    stem, kind = ".".join(parts[:-1]), parts[-1]
    if stem in TOP_TENSORS:
        return f"{TOP_TENSORS[stem]}.{kind}"
    if len(parts) < 3 or parts[0] != "blk":
        return ""
    layer, inner = f"layers.{parts[1]}.", ".".join(parts[2:])
    if inner in CONVOLUTION_TENSORS:
        return layer + CONVOLUTION_TENSORS[inner]
    return f"{layer}{LAYER_TENSORS[parts[2]]}.{kind}" if len(parts) == 4 and parts[2] in LAYER_TENSORS else ""
