"""Memory of a pair: its parts, what is free, and what fits."""
