"""llama.cpp as a backend: its C functions, a target and a DFlash drafter for any GGUF, their memory, their load."""
