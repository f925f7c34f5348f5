"""Facts about this machine: its processor, its cores, and what was measured on it."""
