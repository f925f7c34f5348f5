"""Triton kernels, each next to its launcher and its torch reference."""
