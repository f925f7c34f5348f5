"""The GPU day: see run.py."""
