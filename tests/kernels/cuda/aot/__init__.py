"""Ahead-of-time compilation of every kernel without a GPU: `gpu_cases` and `whole_pair` print results as JSON.

The launchers run as on a GPU, and Triton believes that the chip in question is there. So what is compiled is exactly
what a launcher launches: same tile sizes, switches and alignment. This needs a process in which TRITON_INTERPRET is not
set when Triton is imported.
"""
