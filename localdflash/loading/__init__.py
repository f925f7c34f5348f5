"""From a pair's name to a pair that runs: the backend chosen, by measurement where there is a choice, and loaded."""
