"""Shapes of decoders and drafters, as their files describe them."""
