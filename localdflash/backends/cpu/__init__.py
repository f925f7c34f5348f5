"""The CPU engine: packed weights, the native library's kernels, and a target and a drafter that use them."""
