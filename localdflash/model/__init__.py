"""What a model's files say of it: the shapes of a decoder, and those of a drafter with its vocabulary."""
