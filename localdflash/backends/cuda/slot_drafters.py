"""How drafters of DSpark and DFlash 2 choose the tokens of a block: slot by slot, each behind the token before it.

Everything stays on the device: DSpark takes a launch for each slot, DFlash 2 one for all of them.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from localdflash.backends.cuda.stack import ROWS, Stack
from localdflash.backends.cuda.weights import DrafterWeights, Markov, Selector
from localdflash.kernels.cuda.selector import TopKScratch


@dataclass(frozen=True)
class Slots:
    """What the drafter's head left of a block, and where its tokens go."""

    logits: Tensor | None  # float32 [16, rows of the head]; None: its choice is final
    ids: Tensor | None  # int32 [rows of a short head]
    draft: Tensor  # int32 [16], the anchor first
    choice: Tensor  # int32 [16], by slot
    first: int  # slot that proposes
    count: int


class Chooser(Protocol):
    """Chooses again what the head chose for each slot by itself."""

    @property
    def counters(self) -> Tensor | None:
        """Those of its own launches, zero between them; None if it has none."""

    def choose(self, slots: Slots) -> None:
        """Write the tokens of the slots into their `choice`."""


def chooser_of(weights: DrafterWeights, stack: Stack, dtype: torch.dtype) -> Chooser | None:
    """Return what a drafter needs; None for plain DFlash."""
    if isinstance(weights.chooser, Markov):
        return MarkovChain(weights.chooser, stack, dtype)
    if isinstance(weights.chooser, Selector):
        return Selection(weights.chooser, stack, weights.config.proposed, weights.config.selector_top_k)
    return None


class MarkovChain:
    """DSpark: see localdflash.kernels.cuda.markov."""

    counters: Tensor | None = None  # its launches share the head's

    def __init__(self, weights: Markov, stack: Stack, dtype: torch.dtype) -> None:
        self._weights, self._stack = weights, stack
        width, device = weights.table.shape[1], weights.table.device
        self._a = torch.zeros(ROWS, width, device=device, dtype=dtype)
        self._sums = torch.zeros(width // 32, ROWS, device=device)

    def choose(self, slots: Slots) -> None:
        """See `Chooser`."""
        ops, weights, row = self._stack.ops, self._weights, (self._a, self._sums)
        ops.markov_anchor(weights.table, slots.draft, *row)
        for slot in range(slots.first, slots.first + slots.count):
            end = (slots.choice, self._stack.shared.head_scratch, slots.ids)
            ops.markov_slot(*row, weights.bias, weights.table, slots.logits, slot, *end)


class Selection:
    """DFlash 2: see localdflash.kernels.cuda.selector."""

    def __init__(self, weights: Selector, stack: Stack, rows: int, candidates: int) -> None:
        device = weights.predecessors.device
        self._weights, self._stack = weights, stack
        self._wanted = torch.zeros(ROWS, weights.projection.n, device=device)
        self._values = torch.zeros(ROWS, candidates, device=device)
        self._tokens = torch.zeros(ROWS, candidates, dtype=torch.int32, device=device)
        self._scratch = TopKScratch(device, rows)
        self.counters = self._scratch.counters

    def choose(self, slots: Slots) -> None:
        """See `Chooser`."""
        ops, b, weights, norm = self._stack.ops, self._stack.buffers, self._weights, self._stack.final_norm
        ops.top_k(slots.logits, self._values, self._tokens, self._scratch, slots.ids)
        ops.matmul(b.hidden, b.hidden_sums, weights.projection, self._wanted, self._stack.shared.workspace, norm)
        found = (self._values, self._tokens, self._wanted, weights.predecessors, weights.successors)
        ops.select(*found, slots.draft, slots.choice, slots.first, slots.count)
