"""What Linux, macOS and Windows do each in a way of its own: locks, processes, limits, sockets, open folders, keys.

No other room asks which system it runs on for these, and none imports a module that only one of them has.
"""
