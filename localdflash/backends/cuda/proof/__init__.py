"""What the CUDA engine must show on a machine before it is trusted there: `stages` of checks over a loaded pair."""
