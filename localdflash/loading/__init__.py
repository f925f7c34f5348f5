"""Load a pair by its name: choose a backend, by measurement if several can run the pair, and load the files."""
