"""What each command does, one file for each group of commands."""
