"""Compare drafting with the baseline on the same turn: speed, and whether the text is identical."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from localdflash.base.errors import EngineDisconnect, UsageError
from localdflash.chat.answerer import Answerer, AnswerPiece, AnswerRestart, Done
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings

_Answer = tuple[str, Mapping[str, Any]]  # text, statistics as in `Message.numbers`
DRAFT_ORDER = (False, True, True, False) * 2  # whether each answer drafts; favours neither mode
MAX_TOKENS = 128  # limit of each answer if the settings have none


@dataclass(frozen=True, slots=True)
class ModeResult:
    """Results of one mode so far: tokens/s of each answer, number of tokens, τ of the last answer, median TTFT."""

    rates: Sequence[float] = ()
    tokens: int = 0
    tau: float | None = None
    ttft_ms: float | None = None

    @property
    def rate(self) -> float:
        """Return the median tokens per second; 0 before the first answer."""
        return median(self.rates or [0.0])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results of both modes. `activity`: progress, "" at the end. `problem`: error that ended the comparison, or ""."""

    baseline: ModeResult = ModeResult()
    drafting: ModeResult = ModeResult()
    rounds: int = len(DRAFT_ORDER) // 2  # answers of each mode
    identical: bool | None = None  # whether all texts are; None until both modes have answered
    activity: str = ""
    problem: str = ""

    @property
    def ratio(self) -> float | None:
        """Return the speedup of drafting; None before the end.

        1 unless every answer of one mode is faster than every answer of the other (3 % chance with equal speeds).
        """
        baseline, drafting = self.baseline, self.drafting
        if self.activity or not (baseline.rate and drafting.rate):
            return None
        slower, faster = sorted((baseline.rates, drafting.rates), key=median)
        return drafting.rate / baseline.rate if max(slower) < min(faster) else 1.0


async def compare_drafting(
    answerer: Answerer,
    messages: Sequence[Message],
    *,
    system: str,
    settings: ChatSettings,
    say: Callable[[Comparison], None],
) -> Comparison:
    """Answer `messages` with and without drafting in turn, with the same seed; `say` receives the progress."""
    await answerer.ready()
    if not answerer.is_localdflash:
        raise UsageError("a comparison needs localdflash's daemon, and this chat uses another server")
    seed = secrets.randbits(31) if settings.seed is None else settings.seed
    settings = replace(settings, max_tokens=settings.max_tokens or MAX_TOKENS, seed=seed)
    say(Comparison(activity="reading the conversation"))
    first = replace(settings, max_tokens=1, draft=False)
    await _request_answer(answerer, messages, system, first)  # warm-up: fills the prefix cache
    by_mode: dict[bool, list[_Answer]] = {False: [], True: []}
    for number, draft in enumerate(DRAFT_ORDER, 1):
        mode = "drafting" if draft else "baseline"
        say(_compare_answers(by_mode, f"answer {number} of {len(DRAFT_ORDER)}, {mode}"))
        by_mode[draft].append(await _request_answer(answerer, messages, system, replace(settings, draft=draft)))
    result = _compare_answers(by_mode, "")
    say(result)
    return result


async def _request_answer(
    answerer: Answerer, messages: Sequence[Message], system: str, settings: ChatSettings
) -> _Answer:
    """Return one whole answer. EngineDisconnect if it was interrupted, because its timing would be wrong."""
    parts: list[str] = []
    async with aclosing(answerer.answer(messages, settings, system=system)) as events:
        async for event in events:
            match event:
                case AnswerPiece(text):
                    parts.append(text)
                case Done("gone" | "cancelled", _, error):
                    raise error or EngineDisconnect("an answer of the comparison was cancelled: try again")
                case Done(_, numbers):
                    return "".join(parts), numbers
                case AnswerRestart():
                    raise EngineDisconnect("the daemon restarted during the comparison: try again")
    raise EngineDisconnect("the daemon went away during the comparison; try again")


def _compare_answers(by_mode: dict[bool, list[_Answer]], activity: str) -> Comparison:
    texts = {text for answers in by_mode.values() for text, _ in answers}
    identical = len(texts) == 1 if all(by_mode.values()) else None
    return Comparison(_summarise(by_mode[False]), _summarise(by_mode[True]), identical=identical, activity=activity)


def _summarise(answers: Sequence[_Answer]) -> ModeResult:
    if not answers:
        return ModeResult()
    numbers = [statistics for _, statistics in answers]
    ttfts = [one["ttft_ms"] for one in numbers if "ttft_ms" in one]
    return ModeResult(
        [one["tokens_per_second"] for one in numbers],
        sum(one["tokens"] for one in numbers),
        numbers[-1]["tau"],
        median(ttfts) if ttfts else None,
    )
