"""The plan of a pair before it is loaded: how much memory it takes on this machine, and how fast it can be."""
