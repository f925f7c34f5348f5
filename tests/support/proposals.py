"""Whether a drafter proposes what the specification says, on the same weights: one list of variants for every backend.

    case = Case(variant, target)                     # a variant of `random_drafters.VARIANTS`
    case.check(drafter of case.write(path, "F32"), near=0.05)

A draft is walked along with the oracle in float64, each slot behind what was proposed before it. A token may be another
than the oracle's only in a near tie: where its score is short of the best one by at most `near` standard deviations of
the slot's logits. So drafters that pass propose the same tokens but for near ties, whoever they are.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localdflash.engine.draft import Draft
from localdflash.engine.pair import Drafter
from localdflash.reference.gguf_decoder import load_decoder
from localdflash.weights.gguf import read_header
from tests.support.dflash_oracle import Array, Oracle
from tests.support.random_drafters import config_of, random_weights, write_gguf

BLOCKS = 24  # drafts that are compared


@dataclass(frozen=True)
class Block:
    """One draft: the features of the tokens before it, its anchor, and what the oracle has for its slots."""

    taps: NDArray[np.float32]  # of the tokens since the last draft
    anchor: int
    hidden: Array  # [slots, H]
    logits: Array  # [slots, proposed]


class Case:
    """A drafter of a variant with random weights, and what it is to propose to a target in a GGUF file."""

    def __init__(self, variant: str, target: Path) -> None:
        self.target = target
        vocabulary = len(read_header(target).require("tokenizer.ggml.tokens", list))
        self.config = config_of(variant, vocabulary)
        self.weights = random_weights(self.config)

    def write(self, path: Path, quantization: str = "Q8_0") -> Path:
        """The drafter's GGUF; its matrices are the same numbers in F32 and in Q8_0."""
        return write_gguf(path, self.config, self.weights, self.target, quantization)

    @cached_property
    def oracle(self) -> Oracle:
        """What the specification says."""
        decoder = load_decoder(self.target)
        embedding, head = (table.double().numpy() for table in (decoder.embed_tokens.weight, decoder.lm_head.weight))
        return Oracle(self.config, self.weights, embedding, head)

    @cached_property
    def blocks(self) -> list[Block]:
        """Drafts behind contexts that grow."""
        blocks, context = list[Block](), self.taps(0)[:0]
        for index in range(BLOCKS):
            taps, anchor = self.taps(index), 3 + 11 * index
            context = np.concatenate((context, taps))
            blocks.append(Block(taps, anchor, *self.oracle.slots(context.astype(np.float64), anchor)))
        return blocks

    def taps(self, index: int) -> NDArray[np.float32]:
        """Features of the tokens that come before a draft."""
        shape = (1 + index % 5, len(self.config.taps) * self.config.decoder.hidden_size)
        return np.random.default_rng(index).standard_normal(shape).astype(np.float32)

    def check(self, drafter: Drafter, near: float, same: float = 0.9, sure: float = 0.02) -> None:
        """A fresh drafter proposes what the oracle does, in `same` of the slots without a near tie's help; half of its
        confidences are within `sure` of it, relatively.
        """
        gaps, apart = list[float](), list[float]()
        for block in self.blocks:
            drafter.observe([7] * len(block.taps), block.taps)
            draft = drafter.propose(block.anchor, 99)
            assert len(draft) == self.config.drafts
            assert drafter.propose(block.anchor, 2).tokens == draft.tokens[:2]
            self._walk(block, draft, gaps, apart)
        assert max(gaps) <= near
        assert np.mean(np.array(gaps) == 0) >= same
        assert np.median(apart) <= sure

    def _walk(self, block: Block, draft: Draft, gaps: list[float], apart: list[float]) -> None:
        """Add how far each token's score is from the best in standard deviations, and each confidence from its own."""
        before, tokens = block.anchor, list(self.oracle.tokens)
        for slot, (token, claimed) in enumerate(zip(draft.tokens, draft.confidence, strict=True)):
            state, logits = block.hidden[slot], block.logits[slot]
            best, confidence = self.oracle.slot(before, state, logits)
            scores, row = self.oracle.scores(before, state, logits), tokens.index(token)
            gap = scores[best] - scores[row]
            if top := self.config.selector_top_k:  # it may be a candidate by a near tie, too
                gap = max(gap, np.sort(logits)[-top] - logits[row], 0.0)
            gaps.append(float(gap / logits.std()))
            apart.append(abs(claimed / confidence - 1))
            before = token
