"""Generate greedy answers of the quantized target to prompts of the corpus, as training data of its drafter."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from localdflash.backends.reference.decoder import Decoder
from localdflash.base.errors import TrainingError
from localdflash.lab.train.dataset import EXAMPLE_DTYPE, Dataset
from localdflash.lab.train.examples import KINDS

# Share of each kind of prompt, and the maximum tokens of its answers.
MIX = {
    "fim_block": (0.42, 96),
    "function": (0.22, 128),
    "edit": (0.18, 224),
    "explain": (0.08, 64),
    "fim_line": (0.10, 32),
}
BATCH = 96  # number of prompts that are answered at the same time
PROMPT_LIMIT = 640  # maximum token ids of a prompt; longer prompts are left out


class BatchCache:
    """KV cache of a batch of sequences, each at its own length."""

    def __init__(self, model: Decoder, batch: int, capacity: int) -> None:
        c = model.config
        shape = (c.num_hidden_layers, batch, c.num_key_value_heads, capacity, c.head_dim)
        device = model.embed_tokens.weight.device
        self.keys, self.values = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        self.positions = torch.zeros(batch, 1, dtype=torch.long, device=device)  # of the rows being computed, [B, T]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write K and V at the rows' positions; each row attends to the positions up to its own."""
        index = self.positions[:, None, :, None].expand_as(k)
        self.keys[layer].scatter_(2, index, k)
        self.values[layer].scatter_(2, index, v)
        visible = torch.arange(self.keys.shape[3], device=q.device) <= self.positions.unsqueeze(-1)  # [B, T, capacity]
        return F.scaled_dot_product_attention(
            q, self.keys[layer], self.values[layer], attn_mask=visible.unsqueeze(1), enable_gqa=True
        )

    def select(self, rows: Tensor) -> None:
        """Keep only these sequences."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.positions = self.positions[rows]


@torch.inference_mode()
def answer(model: Decoder, prompts: list[NDArray[np.int64]], limit: int, ends: frozenset[int]) -> list[list[int]]:
    """Return greedy continuations of the prompts, each up to `limit` tokens or through its first end token."""
    device = model.embed_tokens.weight.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    width = int(lengths.max())
    padded = np.stack([np.pad(p, (0, width - len(p))) for p in prompts])
    cache = BatchCache(model, len(prompts), width + limit)
    cache.positions = torch.arange(width, device=device).expand(len(prompts), -1)
    hidden, _ = model(torch.from_numpy(padded).to(device), cache.positions, cache.attend)
    newest = model.logits(hidden[torch.arange(len(prompts), device=device), lengths - 1]).argmax(-1)
    answers: list[list[int]] = [[] for _ in prompts]
    active, positions = list(range(len(prompts))), lengths.unsqueeze(1)
    while True:
        unfinished = []
        for row, token in enumerate(newest.tolist()):
            answers[active[row]].append(token)
            if token not in ends and len(answers[active[row]]) < limit:
                unfinished.append(row)
        if not unfinished:
            return answers
        if len(unfinished) < len(active):
            rows = torch.tensor(unfinished, device=device)
            cache.select(rows)
            newest, positions, active = newest[rows], positions[rows], [active[i] for i in unfinished]
        cache.positions = positions
        hidden, _ = model(newest.unsqueeze(1), positions, cache.attend)
        newest, positions = model.logits(hidden[:, 0]).argmax(-1), positions + 1


def prompts_of(data: Dataset, rng: np.random.Generator) -> Iterator[tuple[str, NDArray[np.void], int]]:
    """Yield (kind, examples, answer limit) endlessly: batches of one kind and similar length, kinds by `MIX`."""
    pools = {}
    for kind in MIX:
        found = data.examples[(data.examples["kind"] == KINDS.index(kind)) & (data.examples["prompt"] <= PROMPT_LIMIT)]
        if len(found):
            pools[kind] = np.sort(found[rng.permutation(len(found))[:200_000]], order="prompt")
    if not pools:
        raise TrainingError("token files: no prompts to answer; use a larger corpus")
    kinds, shares = list(pools), np.array([MIX[kind][0] for kind in pools])
    while True:
        kind = kinds[rng.choice(len(kinds), p=shares / shares.sum())]
        pool = pools[kind]
        start = int(rng.integers(max(1, len(pool) - BATCH)))
        yield kind, pool[start : start + BATCH], MIX[kind][1]


def regenerate(
    model: Decoder,
    data: Dataset,
    folder: Path,
    tokens: int,
    ends: frozenset[int],
    seed: int,
    report: Callable[[str], None],
) -> None:
    """Write a dataset of about `tokens` answer tokens in the format of `Dataset`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[int, int, int, int]] = []
    total = answered = 0
    with (folder / "tokens.bin").open("wb") as file:
        for kind, batch, limit in prompts_of(data, np.random.default_rng(seed)):
            prompts = [data.tokens[e["start"] : e["start"] + e["prompt"]].astype(np.int64) for e in batch]
            for prompt, ids in zip(prompts, answer(model, prompts, limit, ends), strict=True):
                rows.append((total, len(prompt), len(prompt) + len(ids), KINDS.index(kind)))
                np.concatenate((prompt, np.array(ids, np.int64))).astype(np.uint32).tofile(file)
                total += len(prompt) + len(ids)
                answered += len(ids)
            report(f"{answered:,} of {tokens:,} answer tokens")
            if answered >= tokens:
                break
    np.save(folder / "examples.npy", np.array(rows, EXAMPLE_DTYPE))
