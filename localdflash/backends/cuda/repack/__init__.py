"""Weights of any format as planes, the layout that the CUDA kernels read."""
