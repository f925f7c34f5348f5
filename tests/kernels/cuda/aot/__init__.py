"""What the compiler makes of every kernel, without a GPU: `python -m tests.kernels.cuda.aot` prints it as JSON.

The launchers run on tensors without memory (device "meta"), and Triton believes that the chip in question is there. So
what is compiled is exactly what a launcher launches: same tile sizes, switches and alignment. This needs a process in
which TRITON_INTERPRET is not set when Triton is imported; test_aot.py starts it and holds the expectations.
"""
