"""Train a DFlash drafter on its target's own answers (arXiv 2602.06036, section 4.2).

An anchor is a position from which a block of tokens is drafted. All blocks of a sequence are computed in one pass. A
block attends to the context strictly before its anchor, since while decoding the anchor has no hidden state yet.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.base.errors import TrainingError
from localdflash.lab.train.dataset import Dataset
from localdflash.lab.train.loop import TrainingBudget, TrainingRun, initialise
from localdflash.models.shapes.dflash_config import DFlashConfig


@dataclass(frozen=True)
class DrafterRun:
    """Parameters of a training run."""

    model: DFlashConfig
    budget: TrainingBudget
    anchors: int = 40  # per sequence and step
    batch_tokens: int = 4096
    gamma: float = 4.0  # a slot's loss weight falls by e every `gamma` slots


@dataclass(frozen=True)
class Batch:
    """Batch of padded sequences, and the blocks (drafts) at random anchors in them."""

    ids: Tensor  # [B, S]
    anchors: Tensor  # [B, N], positions
    labels: Tensor  # [B, N, block], -100 for slots without a label


def batches(data: Dataset, run: DrafterRun, rng: np.random.Generator) -> Iterator[Batch]:
    """Yield batches of sequences of similar length with random anchors among the answer's tokens."""
    rows = data.examples[data.examples["length"] - data.examples["prompt"] >= 2]
    if not len(rows):
        raise TrainingError("token files: no answer of two tokens or more; let the target answer more prompts")
    rows = np.sort(rows, order="length")
    while True:
        last = int(rng.integers(len(rows)))
        count = max(1, run.batch_tokens // int(rows[last]["length"]))
        yield _batch(data, rows[max(0, last - count + 1) : last + 1], run, rng)


def _batch(data: Dataset, rows: np.ndarray, run: DrafterRun, rng: np.random.Generator) -> Batch:
    block, width = run.model.block_size, int(rows["length"].max())
    ids = np.zeros((len(rows), width), np.int64)
    anchors = np.zeros((len(rows), run.anchors), np.int64)
    labels = np.full((len(rows), run.anchors, block), -100, np.int64)
    for i, row in enumerate(rows):
        length = int(row["length"])
        ids[i, :length] = data.tokens[row["start"] : row["start"] + length]
        choice = np.arange(int(row["prompt"]) - 1, length - 1)  # the prompt's last token is the first anchor
        chosen = np.sort(rng.permutation(choice)[: run.anchors])
        anchors[i, : len(chosen)] = chosen
        for n, anchor in enumerate(chosen):
            following = ids[i, anchor + 1 : min(anchor + block, length)]
            labels[i, n, 1 : 1 + len(following)] = following
    return Batch(torch.from_numpy(ids), torch.from_numpy(anchors), torch.from_numpy(labels))


def training_mask(config: DFlashConfig, layer: int, anchors: Tensor, context: int) -> Tensor:
    """Return the mask [B, 1, N * block, context + N * block]: a slot sees its block and the context before it."""
    batch, blocks = anchors.shape
    slot = torch.arange(config.block_size, device=anchors.device)
    query = (anchors.unsqueeze(-1) + slot).flatten(1).unsqueeze(-1)  # [B, N * block, 1], positions
    start = anchors.repeat_interleave(config.block_size, 1).unsqueeze(-1)
    key = torch.arange(context, device=anchors.device)
    before = key < start  # [B, N * block, context]
    owner = torch.arange(blocks, device=anchors.device).repeat_interleave(config.block_size)
    same_block = (owner.unsqueeze(1) == owner).expand(batch, -1, -1)
    order = slot.repeat(blocks)
    distance = order.unsqueeze(1) - order  # [N * block, N * block], negative where the key comes later
    if config.is_sliding(layer):
        assert config.window is not None
        before = before & (key > query - config.window)
        same_block = same_block & (distance.abs() < config.window)
    if config.is_causal(layer):
        same_block = same_block & (distance >= 0)
    return torch.cat((before, same_block), -1).unsqueeze(1)


def block_logits(drafter: DFlash, target: Decoder, batch: Batch) -> Tensor:
    """Return the logits [B, N, block, V] of every block of a batch."""
    config, width = drafter.config, batch.ids.shape[1]
    positions = torch.arange(width, device=batch.ids.device)
    with torch.no_grad():
        _, taps = target(batch.ids, positions, causal, config.taps)
    context = drafter.context(torch.cat(taps, -1), positions)
    slots = torch.full_like(batch.labels, config.mask_token_id)
    slots[:, :, 0] = batch.ids.gather(1, batch.anchors)
    offsets = torch.arange(config.block_size, device=batch.ids.device)
    slot_positions = (batch.anchors.unsqueeze(-1) + offsets).flatten(1)  # [B, N * block]
    masks = [training_mask(config, i, batch.anchors, width) for i in range(config.decoder.num_hidden_layers)]
    hidden = drafter(target.embed_tokens(slots.flatten(1)), slot_positions, context, masks)
    return drafter.logits(hidden, target.lm_head.weight).unflatten(1, slots.shape[1:])


def loss_of(logits: Tensor, labels: Tensor, gamma: float) -> tuple[Tensor, float]:
    """Return the weighted cross-entropy, and the mean accepted length of greedy drafts with the target's own token."""
    each = F.cross_entropy(logits.flatten(0, 2).float(), labels.flatten(), reduction="none", ignore_index=-100)
    weights = torch.exp(-(torch.arange(labels.shape[-1], device=labels.device) - 1.0) / gamma)
    weights = torch.where(labels == -100, 0.0, weights)
    right = (logits.argmax(-1) == labels)[:, :, 1:].long().cumprod(-1).sum(-1)
    has_label = labels[:, :, 1] != -100
    return (each * weights.flatten()).sum() / weights.sum(), 1.0 + right[has_label].float().mean().item()


def train(run: DrafterRun, target: Decoder, data: Dataset, folder: Path, device: str) -> DFlash:
    """Train or resume in `folder`; return the trained drafter."""
    torch.manual_seed(run.budget.seed)
    target = target.to(device).eval().requires_grad_(False)
    drafter = DFlash(run.model).to(device)
    initialise(drafter)
    training = TrainingRun(drafter, run.budget, folder)
    stream = batches(data, run, np.random.default_rng([run.budget.seed, training.step]))

    def accumulate(_progress: float) -> Mapping[str, float]:
        batch = next(stream)
        batch = Batch(batch.ids.to(device), batch.anchors.to(device), batch.labels.to(device))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = block_logits(drafter, target, batch)
        loss, accepted = loss_of(logits, batch.labels, run.gamma)
        loss.backward()
        return {"loss": loss.item(), "tau": accepted}

    training.train(accumulate)
    return drafter
