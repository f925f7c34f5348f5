"""Plan of a pair before it is loaded: its memory on this machine, and the upper bound of its speed."""
