"""Shape of a decoder. Imports nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DeltaShape:
    """Shape of a gated delta net."""

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    kernel: int  # inputs of the convolution

    @property
    def values(self) -> int:
        """Return the width of the values of all heads."""
        return self.v_heads * self.v_dim

    @property
    def mixed(self) -> int:
        """Return the width of the convolution: all queries, keys, values."""
        return 2 * self.k_heads * self.k_dim + self.values


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder; names as in Hugging Face configs."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int  # width of a dense MLP; 0 for a mixture of experts
    rope_theta: float = 1e5
    rms_norm_eps: float = 1e-6
    context_length: int = 1024
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    qkv_bias: bool = False  # whether q, k and v have biases, and the output has none (Qwen2)
    qk_norm: bool = True  # whether q and k have a norm per head (Qwen3, not Llama)
    rope_factors: tuple[float, ...] = ()  # head_dim / 2 divisors of the RoPE frequencies (Llama 3.1); empty: none
    num_experts: int = 0  # 0: all MLPs are dense; else all are mixtures
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0  # width of one expert
    norm_topk_prob: bool = False  # whether the chosen experts' weights are normalised to sum to one
    # Fields of architectures that only the CPU engine runs (see `target_config`).
    rope_magnitude: float = 1.0  # factor of rotated queries and keys (YaRN)
    windows: tuple[int, ...] = ()  # sliding window of each layer in tokens, 0: none; empty: all 0
    sinks: bool = False  # whether each head has an attention sink
    expert_bias: bool = False  # whether router and experts have biases
    swiglu_limit: float = 0.0  # limit of gpt-oss's clamped SwiGLU; 0: ordinary SwiGLU
    rotary_dim: int = 0  # leading channels of a head that RoPE rotates; 0: all
    output_gate: bool = False  # whether each head's output has a gate
    shared_intermediate_size: int = 0  # width of the shared expert; 0: none
    delta: DeltaShape | None = None  # shape of the recurrent layers
    recurrent: tuple[bool, ...] = ()  # for each layer, whether it is a delta net; empty: no delta nets

    @property
    def recurrent_layers(self) -> int:
        """Return the number of delta nets."""
        return sum(self.recurrent)
