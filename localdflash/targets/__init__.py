"""What verifies: any GGUF through llama.cpp, and Qwen3 in torch as the readable reference."""
