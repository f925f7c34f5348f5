"""Pairs of target and drafter: which there are, where their files lie, how they are fetched, checked, removed."""
