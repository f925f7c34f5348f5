"""How much memory a pair takes on this machine, what fits, how fast it can be, and what it took in the end."""
