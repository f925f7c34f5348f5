"""First-load checks of the CUDA engine: `stages` over a loaded pair, before the engine is trusted on a machine."""
