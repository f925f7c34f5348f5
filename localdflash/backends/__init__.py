"""The four backends that run a pair: cpu, llamacpp, cuda and reference (torch). Each provides one `load`."""
