"""GPU kernels: one file per operation, a Triton kernel with its torch reference; localdflash.kernels."""
