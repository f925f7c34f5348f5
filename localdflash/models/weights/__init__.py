"""Model files: headers checked before use (GGUF, safetensors), tensors for torch, and the dequantizers."""
