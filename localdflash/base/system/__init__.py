"""Everything that differs between Linux, macOS and Windows: locks, processes, limits, sockets, open folders, keys."""
