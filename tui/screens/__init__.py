"""Dialogs and full-screen views of the chat. Each is given what it needs and says what was chosen."""
