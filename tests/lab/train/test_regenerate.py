from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.lab.train.dataset import EXAMPLE_DTYPE, Dataset
from localdflash.lab.train.examples import KINDS
from localdflash.lab.train.regenerate import MIX, answer, regenerate

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


def corpus(counts: dict[str, int], prompt: int = 6) -> Dataset:
    rows, tokens = [], list[int]()
    rng = np.random.default_rng(0)
    for kind, count in counts.items():
        for _ in range(count):
            rows.append((len(tokens), prompt, prompt + 4, KINDS.index(kind)))
            tokens += rng.integers(0, 300, prompt + 4).tolist()
    return Dataset(np.array(tokens, np.uint16), np.array(rows, EXAMPLE_DTYPE))


def test_the_dataset_holds_prompts_and_the_targets_own_answers(target: Decoder, tmp_path: Path) -> None:
    data = corpus({"fim_line": 5, "explain": 5})
    said: list[str] = []
    regenerate(target, data, tmp_path, 60, frozenset({0}), 3, said.append)
    found = Dataset.load(tmp_path)
    known = {tuple(data.tokens[e["start"] : e["start"] + e["prompt"]].tolist()): int(e["kind"]) for e in data.examples}
    answered = 0
    for number, row in enumerate(found.examples):
        ids = found.tokens[row["start"] : row["start"] + row["length"]].astype(np.int64)
        prompt, given = ids[: row["prompt"]], ids[row["prompt"] :].tolist()
        kind = known[tuple(prompt.tolist())]
        assert row["kind"] == kind
        assert 1 <= len(given) <= MIX[KINDS[kind]][1]
        if number < 3:
            assert given == one_by_one(target, prompt, MIX[KINDS[kind]][1], frozenset({0}))
        answered += len(given)
    assert answered >= 60
    assert len(found.tokens) == found.examples["length"].sum()
    assert said[-1] == f"{answered:,} of 60 answer tokens"
