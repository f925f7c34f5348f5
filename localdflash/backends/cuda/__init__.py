"""The CUDA engine: target and DFlash drafter on one NVIDIA GPU, a whole step of decoding in one captured graph."""
