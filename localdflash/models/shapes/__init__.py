"""What a model's files say of it: the shape of a decoder, and that of a drafter with its vocabulary."""
