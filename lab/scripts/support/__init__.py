"""Engines, terminals and homes that scripts and tests share."""
