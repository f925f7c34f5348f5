"""The decode loop: token ids in, token ids out. Drafting, verification, acceptance, caches. Knows nothing of text."""
