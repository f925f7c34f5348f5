"""The shape of a decoder. Imports nothing, so that a backend without torch can read it too."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a Qwen3 decoder; names as in Hugging Face configs."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float = 1e5
    rms_norm_eps: float = 1e-6
    context_length: int = 1024
    tie_word_embeddings: bool = True
    attention_bias: bool = False
