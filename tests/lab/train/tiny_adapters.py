"""A decoder so small that it is trained in no time, and examples for it."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from localdflash.backends.reference.decoder import Decoder
from localdflash.lab.train import adapter_data
from localdflash.lab.train.adapter import Adapter
from localdflash.lab.train.adapter_data import FillData
from localdflash.lab.train.adapter_examples import FillExample
from localdflash.lab.train.loop import initialise
from localdflash.models.shapes.decoder_config import DecoderConfig

# 64 ids, of which 14, 15 and 16 are markers.
TINY = DecoderConfig(64, 32, 2, 2, 1, 16, 48, context_length=256, tie_word_embeddings=True, qk_norm=False)


def noisy(parameters: Iterable[torch.Tensor]) -> None:
    """Add noise, as if something had been learned."""
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn(parameter.shape) * 0.1)


def tiny_adapter(rank: int = 4) -> Adapter:
    """An adapter on a random decoder, the same each time."""
    torch.manual_seed(0)
    model = Decoder(TINY)
    initialise(model)
    with torch.no_grad():
        model.embed_tokens.weight.mul_(20)  # it is the head, which stays as it is
    return Adapter(model, rank, (3, 5, 14, 15, 16), torch.float32)


def tiny_examples(folder: Path, count: int) -> FillData:
    """Examples of code whose middles are all alike, and of chats."""
    rng = np.random.default_rng(count)
    found = []
    for number in range(count):
        first = int(rng.integers(20, 40))
        before, after = list(range(first, first + 4)), [int(rng.integers(20, 60))]
        prompt = [15, *after, 14, *before, 16]
        middle = [50, 51, 52, 53][: int(rng.integers(2, 5))]
        kind = ("python", "rest") if number % 3 else ("chat", "chat")
        found.append(FillExample([*prompt, *middle, 0], len(prompt), *kind))
    adapter_data.write(folder, found)
    return FillData.load(folder)
