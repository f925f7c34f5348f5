"""Dialogs and full-screen views. Each gets its data as arguments and returns the user's choice."""
