"""What a request adds to the logits: to those of tokens that it names, and to those that the answer has said already.

    logit + bias(token) - frequency_penalty * count(token) - presence_penalty * [count(token) > 0]

`count` is how often the answer has the token so far, the prompt not included: OpenAI's definition. Drafts are walked by
drawing and every draw is committed, so each row of a draft is shifted by the counts of what stands before it.
"""

import numpy as np
from numpy.typing import NDArray

from localdflash.engine.sampling_params import SamplingParams


class LogitShift:
    """The shift of one answer, which `said` tells of every token."""

    def __init__(self, params: SamplingParams) -> None:
        self._presence, self._frequency = params.presence_penalty, params.frequency_penalty
        self._biased = np.array([token for token, _ in params.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in params.logit_bias], np.float64)
        self._counts: dict[int, int] = {}
        self._counting = bool(self._presence or self._frequency)
        self.anything = bool(params.logit_bias) or self._counting  # whether there is anything to add at any time

    def add_bias(self, scores: NDArray[np.float64]) -> None:
        """Add to the tokens that the request names, of scores [V]."""
        scores[self._biased] += self._bias

    def take_penalties(self, scores: NDArray[np.float64]) -> None:
        """Take from the tokens that were said, of scores [V]."""
        if self._counts:
            said = np.fromiter(self._counts, np.int64)
            counts = np.fromiter(self._counts.values(), np.float64)
            scores[said] -= self._presence + self._frequency * counts

    def said(self, token: int) -> None:
        """Count a token that was drawn and committed."""
        if self._counting:
            self._counts[token] = self._counts.get(token, 0) + 1
