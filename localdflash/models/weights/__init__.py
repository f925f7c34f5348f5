"""Model files (GGUF, safetensors): checks headers, loads tensors into torch, dequantizes, merges LoRA adapters."""
