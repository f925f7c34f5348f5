"""Checks of this machine and this installation; no check can break another."""
