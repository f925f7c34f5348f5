from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.lab.train.regenerate import answer

NO_ENDS: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def target(tiny_pair: Path) -> Decoder:
    return load_decoder(tiny_pair / "target.gguf")


@torch.inference_mode()
def one_by_one(model: Decoder, prompt: NDArray[np.int64], limit: int, ends: frozenset[int]) -> list[int]:
    """Greedy decoding with nothing cached: the whole sequence again for every token."""
    ids: list[int] = prompt.tolist()
    while True:
        hidden, _ = model(torch.tensor([ids]), torch.arange(len(ids)), causal)
        ids.append(int(model.logits(hidden[0, -1]).argmax()))
        if ids[-1] in ends or len(ids) == len(prompt) + limit:
            return ids[len(prompt) :]


def prompts(*lengths: int) -> list[NDArray[np.int64]]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, 300, length) for length in lengths]


def test_answers_stop_at_their_own_ends(target: Decoder) -> None:
    given = prompts(3, 9, 9, 14, 25)
    free = answer(target, given, 16, NO_ENDS)
    ends = frozenset({free[0][2], free[1][0], free[4][7]})
    found = answer(target, given, 16, ends)
    assert found == [one_by_one(target, prompt, 16, ends) for prompt in given]
    assert len({len(ids) for ids in found}) > 1
    assert len(found[1]) == 1
