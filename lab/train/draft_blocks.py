"""Training blocks for a drafter from stored answers.

A block is one draft: its anchor, the position of the last known token, and the `drafts` tokens that follow. "Taps" are
the target's hidden-state features, which a drafter reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from localdflash.base.errors import TrainingError
from localdflash.lab.train.stored_answers import StoredAnswers

NO_TOKEN, NOT_IN_SHORT = -1, -2  # labels after the end of the answer, and of tokens outside the short vocabulary
MIN_PROMPT_CONTEXT = 12  # ids before the first anchor in a prompt


@dataclass(frozen=True)
class Blocks:
    """Blocks of one sequence (prompt and answer) of T tokens."""

    taps: Tensor  # features [T, width] float32, of the tokens before the last anchor
    anchors: Tensor  # [N] ascending positions, none above T
    first: Tensor  # [N] token ids at the anchors
    labels: Tensor  # [N, drafts] positions in the short vocabulary, or NO_TOKEN, or NOT_IN_SHORT
    likely: Tensor  # [N, drafts, LIKELY_COUNT] short-vocabulary positions of the target's likeliest ids; 0 if outside
    shares: Tensor  # [N, drafts, LIKELY_COUNT] their probabilities among these; 0 if outside


class BlockSource:
    """Source of blocks from stored answers. `ids` is the short vocabulary that the drafter proposes from, ascending."""

    def __init__(self, stored: StoredAnswers, drafts: int, ids: NDArray[np.int64], vocab_size: int) -> None:
        self.stored, self.drafts = stored, drafts
        self._short = np.full(vocab_size, NOT_IN_SHORT, np.int64)
        self._short[ids] = np.arange(len(ids))
        answer_lengths = stored.index["length"].astype(np.int64) - stored.index["prompt"]
        self.training = np.flatnonzero((answer_lengths >= 2) & (stored.index["held_out"] == 0))
        self.held_out = np.flatnonzero((answer_lengths >= 2) & (stored.index["held_out"] == 1))
        if not len(self.training):
            raise TrainingError("answers: none of two tokens or more for training; let the target answer more prompts")

    def answer_anchors(self, number: int) -> NDArray[np.int64]:
        """Return every position of an answer that a draft can start from, beginning with the prompt's last token."""
        row = self.stored.index[number]
        return np.arange(int(row["prompt"]) - 1, int(row["length"]) - 1)

    def blocks(self, number: int, anchors: NDArray[np.int64]) -> Blocks:
        """Return the blocks of answer `number` at these positions."""
        row = self.stored.index[number]
        start, length = int(row["start"]), int(row["length"])
        ids = self.stored.tokens[start : start + length].astype(np.int64)
        positions = anchors[:, None] + np.arange(1, self.drafts + 1)
        clipped = np.minimum(positions, length - 1)
        labels = np.where(positions < length, self._short[ids[clipped]], NO_TOKEN)
        likely_ids = self.stored.likely[start : start + length][clipped]
        likely = self._short[likely_ids["id"]]
        shares = np.where(likely >= 0, likely_ids["share"], 0).astype(np.float32)
        shares /= shares.sum(-1, keepdims=True).clip(1e-6)
        taps = self.stored.taps[start : start + int(anchors[-1])].astype(np.float32)
        tensors = (torch.from_numpy(x) for x in (taps, anchors, ids[anchors], labels, likely.clip(0), shares))
        return Blocks(*tensors)

    def endless(self, anchors: int, rng: np.random.Generator, in_prompt: int = 0) -> Iterator[Blocks]:
        """Yield random sequences endlessly, each with `anchors` random anchors and `in_prompt` more in its prompt."""
        while True:
            for number in rng.permutation(self.training):
                choice = self.answer_anchors(int(number))
                chosen = rng.permutation(choice)[:anchors]
                if in_prompt:
                    more = rng.permutation(np.arange(MIN_PROMPT_CONTEXT, choice[0]))[:in_prompt]
                    chosen = np.concatenate((more, chosen))
                yield self.blocks(int(number), np.sort(chosen))

    def channel_sizes(self, count: int, rng: np.random.Generator) -> Tensor:
        """Return the RMS of each feature channel [width] over `count` answers, without the first token, an outlier."""
        squares, rows = torch.zeros(self.stored.taps.shape[1], dtype=torch.float64), 0
        for number in rng.permutation(self.training)[:count]:
            taps = self.blocks(int(number), self.answer_anchors(int(number))[-1:]).taps[1:]
            squares += taps.double().square().sum(0)
            rows += len(taps)
        return (squares / rows).sqrt().clamp_min(1e-3).float()
