"""Registry of pairs of target and drafter: entries, and download, verification and removal of their files."""
