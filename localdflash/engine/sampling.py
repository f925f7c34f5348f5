"""Samples one token from a row of logits: bias, penalties, temperature, top-k, top-p, min-p, in this order.

One uniform random number is used per committed token, drafted or not. So one seed gives the same text with and without
drafting at any temperature, if the target's logits are the same. Acceptance samples along a draft and commits every
sample, so a constraint (a grammar), which masks the logits, advances with each sample and is never rolled back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localdflash.base.errors import LocaldflashError
from localdflash.engine.sampling_params import SamplingParams

NOT_NUMBERS = "the model's logits are not numbers; its file may be damaged"


class Constraint(Protocol):
    """Restricts the next token. If it `renormalizes`, recorded probabilities sum to 1 over the allowed tokens."""

    renormalizes: bool

    def mask(self) -> NDArray[np.bool_] | None:
        """Return the allowed next tokens [V], at least one; valid until the next call. None allows any."""

    def advance(self, token: int) -> None:
        """Move past `token`, which was sampled and committed."""

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """Return the length of the longest prefix of `tokens` that is allowed next."""

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokens that the grammar forces next, as far as the tokenizer can tell; may be empty."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """Sampled token, the logarithm of its unfiltered probability (see `Constraint`), and the likeliest tokens."""

    token: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...]


class LogitShift:
    """Shift of logits by the request's token biases and by penalties on the answer's tokens, as OpenAI defines them.

        logit + bias(token) - frequency_penalty * count(token) - presence_penalty * [count(token) > 0]

    `count` is how often the answer contains the token, excluding the prompt. Acceptance commits every sample along a
    draft, so each row of a draft is shifted by the counts of the tokens before it.
    """

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


class Sampler:
    """Samples the tokens of one request. `top_logprobs`: likeliest tokens to record per token; None records nothing."""

    def __init__(
        self, params: SamplingParams, constraint: Constraint | None = None, top_logprobs: int | None = None
    ) -> None:
        self.params = params
        self.constraint = constraint
        self.sampled_tokens: list[SampledToken] = []  # if `top_logprobs` is set; the reader empties it
        self._top_logprobs = top_logprobs
        self._is_greedy = params.temperature == 0.0
        self._shift = LogitShift(params)
        self._has_repetition_penalty = params.repetition_penalty != 1.0 and params.penalty_window > 0
        self._random = np.random.default_rng(params.seed)

    @property
    def window(self) -> int:
        """Number of newest ids that `sample` reads."""
        return self.params.penalty_window if self._has_repetition_penalty else 0

    @property
    def needs_logits(self) -> bool:
        """Return whether sampling needs logits on the host: for a constraint, a shift, or recorded probabilities."""
        return self.constraint is not None or self._top_logprobs is not None or self._shift.is_active

    @property
    def needs_only_argmax(self) -> bool:
        """Return whether every sample is the likeliest token, so that no other logit matters."""
        return self._is_greedy and not self._has_repetition_penalty and not self.needs_logits

    def sample(self, logits: NDArray[np.float32], ids: Sequence[int]) -> int:
        """Sample the next token after `ids` from logits [V]; LocaldflashError if the logits are not numbers."""
        best = int(logits.argmax())  # the first NaN, if there is one
        if not math.isfinite(logits[best]):
            raise LocaldflashError(NOT_NUMBERS)
        mask = self.constraint.mask() if self.constraint else None
        if self._is_greedy and not self._has_repetition_penalty and not self._shift.is_active and mask is None:
            token = best
        else:
            token = self._sample(logits.astype(np.float64), ids, mask)
        if self._top_logprobs is not None:
            if mask is not None and self.constraint and self.constraint.renormalizes:
                logits = np.where(mask, logits, -np.inf).astype(np.float32)
            self.sampled_tokens.append(_make_sampled_token(logits, token, self._top_logprobs))
        if self.constraint:
            self.constraint.advance(token)
        self._shift.count(token)
        return token

    def _sample(self, scores: NDArray[np.float64], ids: Sequence[int], mask: NDArray[np.bool_] | None) -> int:
        self._shift.add_bias(scores)
        if self._has_repetition_penalty:
            self._apply_repetition_penalty(scores, ids)
        self._shift.subtract_penalties(scores)
        allowed = None if mask is None else np.flatnonzero(mask)
        if allowed is not None:
            scores = scores[allowed]
        if self._is_greedy:
            best = int(scores.argmax())
            return best if allowed is None else int(allowed[best])
        tokens, probabilities = self.distribution(scores)
        if allowed is not None:
            tokens = allowed[tokens]
        edges = np.cumsum(probabilities)
        index = int(np.searchsorted(edges, self._random.random() * edges[-1], side="right"))
        return int(tokens[min(index, len(tokens) - 1)])

    def _apply_repetition_penalty(self, scores: NDArray[np.float64], ids: Sequence[int]) -> None:
        seen = np.unique(np.asarray(ids[-self.window :], np.int64))
        penalty = self.params.repetition_penalty
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)

    def distribution(self, scores: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the indices of the scores that pass the filters (ties: the lower first) and their probabilities."""
        p = self.params
        tokens = np.arange(len(scores))
        if 0 < p.top_k < len(scores):
            bound = np.partition(scores, -p.top_k)[-p.top_k]
            tokens = np.flatnonzero(scores >= bound)
            tokens = tokens[np.argsort(-scores[tokens], kind="stable")[: p.top_k]]
        with np.errstate(over="ignore"):  # a tiny temperature: the quotient is -inf, its weight 0
            weights = np.exp((scores[tokens] - scores.max()) / p.temperature)
        probabilities = weights / weights.sum()
        if p.top_p < 1.0:
            # Tokens below this bound sum to less than 1 - top_p: the nucleus is complete without them.
            likely = np.flatnonzero(probabilities >= (1.0 - p.top_p) / len(probabilities))
            falling = likely[np.argsort(-probabilities[likely], kind="stable")]
            before = np.cumsum(probabilities[falling]) - probabilities[falling]
            nucleus = falling[before < p.top_p]  # the token that crosses the bound stays
            tokens, probabilities = tokens[nucleus], probabilities[nucleus]
        if p.min_p > 0.0:
            likely = probabilities >= p.min_p * probabilities.max()
            tokens, probabilities = tokens[likely], probabilities[likely]
        return tokens, probabilities / probabilities.sum()


def _make_sampled_token(logits: NDArray[np.float32], token: int, count: int) -> SampledToken:
    if not count:  # in single precision, which is far faster
        best = logits.max()
        return SampledToken(token, float(logits[token] - best) - math.log(np.exp(logits - best).sum()), ())
    scores = logits.astype(np.float64)
    scores -= scores.max() + np.log(np.exp(scores - scores.max()).sum())
    likeliest = np.argsort(-scores, kind="stable")[:count]
    return SampledToken(token, float(scores[token]), tuple((int(other), float(scores[other])) for other in likeliest))
