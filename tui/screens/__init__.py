"""Dialogs and full-screen views. Each is given what it needs and returns what was chosen."""
