"""The CPU engine: packed weights, the native library's kernels, a target and a drafter that run on them."""
