"""Checks of this machine and this installation. A check that fails cannot break another."""
