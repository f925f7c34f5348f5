"""What every backend answers: how a pair is to run, what that takes, what fits, and the pair that came of it."""
