"""Training, benchmarks and scripts. Only their own commands import this package, when they run."""
