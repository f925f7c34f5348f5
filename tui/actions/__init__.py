"""Implementations of the chat's commands, one mixin per group."""
