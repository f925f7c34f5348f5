"""The shape of a decoder. Imports nothing, so that a backend without torch can read it too."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder; names as in Hugging Face configs."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int  # of a dense MLP; a mixture of experts has none
    rope_theta: float = 1e5
    rms_norm_eps: float = 1e-6
    context_length: int = 1024
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    qk_norm: bool = True  # a norm per head on q and k: Qwen3 has it, Llama has not
    rope_factors: tuple[float, ...] = ()  # head_dim / 2 divisors of the RoPE frequencies (Llama 3.1); empty: none
    num_experts: int = 0  # 0: every MLP is dense; else every one is a mixture
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0  # of one expert
    norm_topk_prob: bool = False  # whether the chosen experts' weights are made to sum to one
    # From here on what the CPU engine alone runs (see `target_config`).
    rope_magnitude: float = 1.0  # of the turned queries and keys (YaRN)
    windows: tuple[int, ...] = ()  # how many keys the rows of each layer see, their own included, 0: all; empty: all 0
    sinks: bool = False  # whether each head has a score that no value belongs to
    expert_bias: bool = False  # whether router and experts have biases
    swiglu_limit: float = 0.0  # of the clamped SwiGLU of gpt-oss; 0: the ordinary one
