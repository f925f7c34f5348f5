"""What the tensors of a `dflash` GGUF are called in z-lab's safetensors; those of any layer are in `gguf_config`."""

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
