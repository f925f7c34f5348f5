"""Facts about this machine: processor, cores, GPU crashes, measurements."""
