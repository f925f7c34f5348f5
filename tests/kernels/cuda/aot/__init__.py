"""Ahead-of-time compilation of every kernel without a GPU: `gpu_cases` and `whole_pair` print results as JSON.

The launchers run as on a GPU, and Triton is told that the chip is present. So exactly the launchers'
variants are compiled: same tile sizes, constants and alignment. This needs a process that imports Triton without
TRITON_INTERPRET.
"""
