"""Comparison of a drafter's proposals with the specification's, on the same weights, for every backend.

    case = Case(variant, target)                     # a variant of `random_drafters.VARIANTS`
    case.check(drafter of case.write(path, "F32"), near=0.05)

The float64 oracle computes a draft slot by slot, each after the tokens proposed so far. A token may differ from the
oracle's only in a near tie, that is, if changing scores and logits by at most `near` standard deviations of the slot's
logits would make it the best. So all drafters that pass propose the same tokens, except for near ties.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.engine.draft import Draft
from localdflash.engine.pair import Drafter
from tests.support.dflash_oracle import Array, Oracle
from tests.support.random_drafters import config_of, random_weights, vocabulary_of, write_gguf

BLOCKS = 24  # number of compared drafts


@dataclass(frozen=True)
class Block:
    """One draft: features of the preceding tokens, anchor, and the oracle's states and logits of the slots."""

    taps: NDArray[np.float32]  # of the tokens since the last draft
    anchor: int
    hidden: Array  # [slots, H]
    logits: Array  # [slots, proposed]


@dataclass(frozen=True)
class Slot:
    """Distance of a proposal from the oracle's."""

    same: bool
    gap: float  # score gap, in standard deviations of the logits
    apart: float  # relative difference of the confidences


class Case:
    """Drafter of a variant with random weights, and its expected proposals for a target in a GGUF file."""

    def __init__(self, variant: str, target: Path) -> None:
        self.target = target
        self.config = config_of(variant, vocabulary_of(target))
        self.weights = random_weights(self.config)

    def write(self, path: Path, quantization: str = "Q8_0") -> Path:
        """Write the drafter's GGUF; its matrices are the same numbers in F32 and in Q8_0."""
        return write_gguf(path, self.config, self.weights, self.target, quantization)

    @cached_property
    def oracle(self) -> Oracle:
        """Return the specification's drafter."""
        decoder = load_decoder(self.target)
        embedding, head = (table.double().numpy() for table in (decoder.embed_tokens.weight, decoder.lm_head.weight))
        return Oracle(self.config, self.weights, embedding, head)

    @cached_property
    def blocks(self) -> list[Block]:
        """Return drafts after growing contexts."""
        blocks, context = list[Block](), self.taps(0)[:0]
        for index in range(BLOCKS):
            taps, anchor = self.taps(index), 3 + 11 * index
            context = np.concatenate((context, taps))
            blocks.append(Block(taps, anchor, *self.oracle.slots(context.astype(np.float64), anchor)))
        return blocks

    def taps(self, index: int) -> NDArray[np.float32]:
        """Return features of the tokens before a draft."""
        shape = (1 + index % 5, len(self.config.taps) * self.config.decoder.hidden_size)
        return np.random.default_rng(index).standard_normal(shape).astype(np.float32)

    def check(self, drafter: Drafter, near: float, same: float = 0.85, sure: float = 0.03) -> None:
        """Assert that a fresh drafter proposes the oracle's tokens, with a share of at most 1 - `same` near ties.

        Half of its confidences are within `sure` of the oracle's, relatively.
        """
        found = self.compare(drafter)
        assert max(slot.gap for slot in found) <= near
        assert np.mean([slot.same for slot in found]) >= same
        assert np.median([slot.apart for slot in found]) <= sure

    def compare(self, drafter: Drafter) -> list[Slot]:
        """Return every slot of the drafts of a fresh drafter."""
        found = list[Slot]()
        for block in self.blocks:
            drafter.observe([7] * len(block.taps), block.taps)
            draft = drafter.propose(block.anchor, 99)
            assert len(draft) == self.config.drafts
            assert drafter.propose(block.anchor, 2).tokens == draft.tokens[:2]
            found += self._walk(block, draft)
        return found

    def _walk(self, block: Block, draft: Draft) -> Iterator[Slot]:
        before, rows = block.anchor, {int(token): row for row, token in enumerate(self.oracle.tokens)}
        for slot, (token, claimed) in enumerate(zip(draft.tokens, draft.confidence, strict=True)):
            state, logits = block.hidden[slot], block.logits[slot]
            best, confidence = self.oracle.slot(before, state, logits)
            gap = self._gap(self.oracle.scores(before, state, logits), logits, rows[token])
            yield Slot(rows[token] == best, float(gap / logits.std()), abs(claimed / confidence - 1))
            before = token

    def _gap(self, scores: Array, logits: Array, row: int) -> float:
        """Return the smallest change of scores and logits that makes a row the proposed one."""
        top = self.config.selector_top_k or len(logits)
        last = np.sort(logits)[-top]
        candidates = logits >= last
        better = np.minimum(scores - scores[row], logits - last if top < len(logits) else np.inf)[candidates]
        return max(float(better.max()), float(last - logits[row]), 0.0)  # a better token may also not be a candidate
