"""Model files and the registry of pairs: what a file contains, where it comes from, how much memory it takes."""
