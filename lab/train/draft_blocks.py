"""Training blocks for a drafter from stored answers.

A block is one draft: its anchor, the position of the last known token, and the `drafts` tokens that follow. "Taps" are
the target's hidden-state features, which a drafter reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from localdflash.base.errors import TrainingError
from localdflash.lab.train.stored_answers import StoredAnswers

NO_TOKEN, NOT_IN_SHORT = -1, -2  # labels after the end of the answer, and of tokens outside the short vocabulary
MIN_PROMPT_CONTEXT = 12  # ids before the first anchor in a prompt


@dataclass(frozen=True)
class Blocks:
    """N blocks in each of B sequences (prompt and answer). If a sequence has fewer, its last ones have no labels."""

    taps: Tensor  # features [T, width] float16: of all sequences, the tokens before a sequence's last anchor
    positions: Tensor  # [T] of these tokens in their sequences
    rows: Tensor  # [B, longest] rows of `taps`; after the end of a sequence any row, which no block sees
    anchors: Tensor  # [B, N] ascending positions
    first: Tensor  # [B, N] token ids at the anchors
    labels: Tensor  # [B, N, drafts] positions in the short vocabulary, or NO_TOKEN, or NOT_IN_SHORT
    likely: (
        Tensor  # [B, N, drafts, LIKELY_COUNT] short-vocabulary positions of the target's likeliest ids; 0 if outside
    )
    shares: Tensor  # [B, N, drafts, LIKELY_COUNT] their probabilities among these; 0 if outside


Choice = tuple[int, NDArray[np.int64]]  # number of an answer, and anchors in it


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

    def batch(self, choices: Sequence[Choice], device: str = "cpu") -> Blocks:
        """Return the blocks of several answers on a device."""
        taps = [self._taps(number, int(anchors[-1])) for number, anchors in choices]
        lengths = [len(each) for each in taps]
        rows = pad_sequence(torch.arange(sum(lengths)).split(lengths), batch_first=True)
        positions = torch.cat([torch.arange(length) for length in lengths])
        columns = zip(*(self._columns(number, anchors) for number, anchors in choices), strict=True)
        padded = [
            pad_sequence(list(each), True, fill) for each, fill in zip(columns, (0, 0, NO_TOKEN, 0, 0), strict=True)
        ]
        tensors = (torch.from_numpy(np.concatenate(taps)), positions, rows, *padded)
        return Blocks(*(each.to(device) for each in tensors))

    def _taps(self, number: int, end: int) -> NDArray[np.float16]:
        start = int(self.stored.index[number]["start"])
        return self.stored.taps[start : start + end]

    def _columns(self, number: int, anchors: NDArray[np.int64]) -> tuple[Tensor, ...]:
        """Return anchors, first, labels, likely and shares of the blocks of one answer."""
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
        return tuple(torch.from_numpy(x) for x in (anchors, ids[anchors], labels, likely.clip(0), shares))

    def endless(
        self, sequences: int, anchors: int, rng: np.random.Generator, in_prompt: int = 0, device: str = "cpu"
    ) -> Iterator[Blocks]:
        """Yield batches of random sequences endlessly, each with `anchors` random anchors and `in_prompt` more."""
        choices = self._choices(anchors, rng, in_prompt)
        while True:
            yield self.batch(list(islice(choices, sequences)), device)

    def _choices(self, anchors: int, rng: np.random.Generator, in_prompt: int) -> Iterator[Choice]:
        while True:
            for number in rng.permutation(self.training):
                choice = self.answer_anchors(int(number))
                chosen = rng.permutation(choice)[:anchors]
                if in_prompt:
                    more = rng.permutation(np.arange(MIN_PROMPT_CONTEXT, choice[0]))[:in_prompt]
                    chosen = np.concatenate((more, chosen))
                yield int(number), np.sort(chosen)

    def channel_sizes(self, count: int, rng: np.random.Generator) -> Tensor:
        """Return the RMS of each feature channel [width] over `count` answers, without the first token, an outlier."""
        squares, rows = torch.zeros(self.stored.taps.shape[1], dtype=torch.float64), 0
        for number in rng.permutation(self.training)[:count]:
            taps = self._taps(int(number), int(self.answer_anchors(int(number))[-1]))[1:]
            squares += torch.from_numpy(taps.astype(np.float64)).square().sum(0)
            rows += len(taps)
        return (squares / rows).sqrt().clamp_min(1e-3).float()
