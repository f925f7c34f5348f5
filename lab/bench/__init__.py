"""The benchmarks: speed, acceptance, identity with plain decoding."""
