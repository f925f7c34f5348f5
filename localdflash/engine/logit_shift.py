"""Shifts logits by the request's token biases and by penalties on tokens of the answer.

    logit + bias(token) - frequency_penalty * count(token) - presence_penalty * [count(token) > 0]

`count` is how often the answer contains the token, excluding the prompt: OpenAI's definition. Acceptance samples along
a draft and commits every sample, so each row of a draft is shifted by the counts of the tokens before it.
"""

import numpy as np
from numpy.typing import NDArray

from localdflash.engine.sampling_params import SamplingParams


class LogitShift:
    """The shift of one answer; `count` every token of the answer."""

    def __init__(self, params: SamplingParams) -> None:
        self._presence, self._frequency = params.presence_penalty, params.frequency_penalty
        self._biased = np.array([token for token, _ in params.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in params.logit_bias], np.float64)
        self._counts: dict[int, int] = {}
        self._has_penalty = bool(self._presence or self._frequency)
        self.is_active = bool(params.logit_bias) or self._has_penalty

    def add_bias(self, scores: NDArray[np.float64]) -> None:
        """Add the token biases to scores [V]."""
        scores[self._biased] += self._bias

    def subtract_penalties(self, scores: NDArray[np.float64]) -> None:
        """Subtract the penalties from scores [V]."""
        if self._counts:
            tokens = np.fromiter(self._counts, np.int64)
            counts = np.fromiter(self._counts.values(), np.float64)
            scores[tokens] -= self._presence + self._frequency * counts

    def count(self, token: int) -> None:
        """Count a committed token."""
        if self._has_penalty:
            self._counts[token] = self._counts.get(token, 0) + 1
