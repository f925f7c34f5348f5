"""Planned duration of a benchmark: the pace of each mode on one prompt, and the observer of the run's progress."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from localdflash.engine.generate import Request, generate
from localdflash.engine.pair import Pair

PACE_TOKENS = 16  # tokens of one prompt in each mode, from which the duration of the run is estimated
MIN_LIMIT_FOR_OTHERS = 4  # fewest prompts of each category with which other backends are measured
TOKENS_PER_LIMIT = 16  # maximum tokens of an answer, for each prompt that `--limit` allows
MAX_LIMIT_FOR_TOKENS = 9  # a higher `--limit` does not shorten answers

CountItems = Callable[[int, int, str], None]  # receives the numbers of items done and in all, and the last item's name


class Watcher(Protocol):
    """Observer of a run's progress; times are planned seconds."""

    def plan(self, seconds: float, line: str) -> None:
        """Receive the planned duration and description of the run."""

    def done(self, seconds: float, description: str) -> None:
        """Receive how many more of the planned seconds are done."""


@dataclass(frozen=True)
class Pace:
    """Cost of a decoding mode per token."""

    prompt_token_ms: float
    answer_token_ms: float

    def seconds(self, prompt_tokens: int, answer_tokens: int) -> float:
        """Return the estimated seconds for a prompt and its answer."""
        return (prompt_tokens * self.prompt_token_ms + answer_tokens * self.answer_token_ms) / 1e3


def measure_pace(pair: Pair, ids: Sequence[int], ends: frozenset[int]) -> Pace:
    """Measure the pace of a mode on one prompt, from a cold cache."""
    pair.forget()
    request = Request(ids, PACE_TOKENS, ends=ends)
    for _ in generate(pair, request):
        pass
    answer_token_ms = request.stats.total_ms / max(request.stats.tokens, 1)
    return Pace(max(request.ttft_ms - answer_token_ms, 0.0) / len(ids), answer_token_ms)


def limit_tokens(limit: int | None) -> int:
    """Return the maximum tokens of an answer in a run with `limit` prompts of each category."""
    return TOKENS_PER_LIMIT * limit if limit and limit <= MAX_LIMIT_FOR_TOKENS else 1 << 20


def describe_duration(seconds: float) -> str:
    """Return a duration for the user, in seconds or minutes."""
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"
