"""First-load checks of the CUDA engine: `stages` of a loaded pair, before the engine is trusted on a machine."""
