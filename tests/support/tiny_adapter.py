"""A tiny adapter with examples, for tests of training."""

from pathlib import Path

import numpy as np
import torch

from localdflash.backends.reference.decoder import Decoder
from localdflash.lab.train import adapter_data
from localdflash.lab.train.adapter import Adapter
from localdflash.lab.train.adapter_data import FimDataset, FimExample
from localdflash.lab.train.adapter_training import AdapterRun, AdapterSchedule
from localdflash.lab.train.loop import initialise
from localdflash.models.shapes.decoder_config import DecoderConfig

# 64 ids, of which 14, 15 and 16 are markers.
TINY = DecoderConfig(64, 32, 2, 2, 1, 16, 48, context_length=256, tie_word_embeddings=True, qk_norm=False)
SCHEDULE = AdapterSchedule(2000, 1e-2, step_tokens=100, save_seconds=1e9, measure_seconds=1e9, measured=4)


def tiny_adapter(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Adapter:
    """Return an adapter on a random decoder with a fixed seed."""
    torch.manual_seed(0)
    model = Decoder(TINY)
    initialise(model)
    with torch.no_grad():
        model.embed_tokens.weight.mul_(20)  # it is the head, which stays as it is
    return Adapter(model.to(device), 4, (3, 5, 14, 15, 16), dtype)


def tiny_examples(folder: Path, count: int) -> FimDataset:
    """Write code examples with equal middles, and chat examples."""
    rng = np.random.default_rng(count)
    found = []
    for number in range(count):
        first = int(rng.integers(20, 40))
        before, after = list(range(first, first + 4)), [int(rng.integers(20, 60))]
        prompt = [15, *after, 14, *before, 16]
        middle = [50, 51, 52, 53][: int(rng.integers(2, 5))]
        kind = ("python", "rest") if number % 3 else ("chat", "chat")
        found.append(FimExample(np.array([*prompt, *middle, 0]), len(prompt), *kind))
    adapter_data.write(folder, found)
    return FimDataset.load(folder)


def numbers(run: AdapterRun) -> list[torch.Tensor]:
    """Return copies of the trained parameters."""
    return [parameter.detach().clone() for _, parameter in run.adapter.parameters()]
