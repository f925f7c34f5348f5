"""Token ids in, token ids out: drafting, verification, acceptance, caches. Knows nothing of text."""
