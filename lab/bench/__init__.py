"""The benchmarks: speed, acceptance and identity with the baseline, latency, typing, infilling."""
