"""Load a pair by its name: choose the backend, by measurement where there is a choice, and load the files on it."""
