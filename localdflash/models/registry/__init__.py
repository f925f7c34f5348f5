"""Pairs of target and drafter: which ones there are, their files, how these are downloaded, checked and removed."""
