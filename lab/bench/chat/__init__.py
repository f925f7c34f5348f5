"""Chat benchmark: all decoding modes interleaved on prompts in the model's chat template, and waiting times."""
