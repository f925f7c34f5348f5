"""GPU kernels: one file per operation, each a Triton kernel with its torch reference. Installed as localdflash.kernels."""
