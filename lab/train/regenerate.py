"""Generate greedy answers of the quantized target to prompts of the corpus, as training data of its drafter."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from localdflash.backends.reference.decoder import Decoder, causal
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
KEPT_SHARE = 0.8  # finished sequences leave the batch, which copies the cache, when fewer than this share is unfinished


class BatchCache:
    """KV cache of a batch of sequences: first of all prompts, from position 0, then of one token of each sequence."""

    def __init__(self, capacity: int) -> None:
        self._capacity = -(-capacity // 16) * 16  # aligned, as fast attention kernels require of masks
        self._layers: list[tuple[Tensor, Tensor]] = []  # k and v [B, kv_heads, capacity, hd]
        self.positions = torch.empty(0)  # [B, 1] of the new tokens

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write K and V at the tokens' positions; each token attends to the positions up to its own."""
        if layer == len(self._layers):
            pad = (0, 0, 0, self._capacity - k.shape[2])
            self._layers.append((F.pad(k, pad), F.pad(v, pad)))
            return causal(layer, q, k, v)
        index = self.positions[:, None, :, None].expand_as(k)
        keys, values = (old.scatter_(2, index, new) for old, new in zip(self._layers[layer], (k, v), strict=True))
        visible = torch.arange(self._capacity, device=q.device) <= self.positions  # [B, capacity]
        grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1])  # the heads of a KV head as rows
        return F.scaled_dot_product_attention(grouped, keys, values, visible[:, None, None]).view_as(q)

    def select(self, rows: Tensor) -> None:
        """Keep only these sequences."""
        for layer, (keys, values) in enumerate(self._layers):
            self._layers[layer] = keys[rows], values[rows]


@torch.inference_mode()
def answer(
    model: Decoder, prompts: list[NDArray[np.int64]], limits: Sequence[int], ends: frozenset[int]
) -> list[list[int]]:
    """Return greedy continuations of the prompts, each up to its limit of tokens or through its first end token."""
    device = model.embed_tokens.weight.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    width = max(map(len, prompts))
    padded = np.stack([np.pad(p, (0, width - len(p))) for p in prompts])
    cache = BatchCache(width + max(limits))
    hidden, _ = model(torch.from_numpy(padded).to(device), torch.arange(width, device=device), cache.attend)
    newest = model.logits(hidden[torch.arange(len(prompts), device=device), lengths - 1]).argmax(-1)
    del hidden
    answers: list[list[int]] = [[] for _ in prompts]
    active, cache.positions = list(range(len(prompts))), lengths.unsqueeze(1)
    while True:
        unfinished = []
        for row, token in enumerate(newest.tolist()):
            ids, limit = answers[active[row]], limits[active[row]]
            if ids and (ids[-1] in ends or len(ids) == limit):
                continue  # finished before
            ids.append(token)
            if token not in ends and len(ids) < limit:
                unfinished.append(row)
        if not unfinished:
            return answers
        if len(unfinished) < KEPT_SHARE * len(active):
            rows = torch.tensor(unfinished, device=device)
            cache.select(rows)
            newest, cache.positions = newest[rows], cache.positions[rows]
            active = [active[i] for i in unfinished]
        hidden, _ = model(newest.unsqueeze(1), cache.positions, cache.attend)
        newest, cache.positions = model.logits(hidden[:, 0]).argmax(-1), cache.positions + 1


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
            for prompt, ids in zip(prompts, answer(model, prompts, [limit] * len(prompts), ends), strict=True):
                rows.append((total, len(prompt), len(prompt) + len(ids), KINDS.index(kind)))
                np.concatenate((prompt, np.array(ids, np.int64))).astype(np.uint32).tofile(file)
                total += len(prompt) + len(ids)
                answered += len(ids)
            report(f"{answered:,} of {tokens:,} answer tokens")
            if answered >= tokens:
                break
    np.save(folder / "examples.npy", np.array(rows, EXAMPLE_DTYPE))
