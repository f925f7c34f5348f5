"""Repacks weights of any format into planes, the layout that the CUDA kernels read."""
