"""Training a pair: corpus, target, drafter."""
