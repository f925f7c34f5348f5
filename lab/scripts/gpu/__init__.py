"""Measurements on a GPU: see gpu_run.py."""
