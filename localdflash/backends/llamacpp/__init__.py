"""llama.cpp as a backend: its C functions, targets and drafters for any GGUF file, memory planning and loading."""
