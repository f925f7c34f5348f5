"""Measuring: speed, acceptance, identity with plain decoding."""
