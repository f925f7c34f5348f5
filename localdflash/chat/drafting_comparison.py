"""Compare drafting with the baseline on the same turn: speed, and whether the text is identical."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from localdflash.base.errors import EngineDisconnect, UsageError
from localdflash.chat.answerer import Answerer, AnswerPiece, Done
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings

_WholeAnswer = tuple[str, Mapping[str, Any]]  # text, statistics
DRAFT_ORDER = (False, True, True, False)  # drafting or not: neither gains by being first or last
MAX_TOKENS = 256  # of each answer, where the settings do not bound it


@dataclass(frozen=True, slots=True)
class ModeResult:
    """Answers of one mode so far: median tokens per second (0: none yet) and median TTFT."""

    rate: float = 0.0
    tokens: int = 0
    tau: float | None = None
    rounds: int = 0
    ttft_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results of both modes. `identical` is None until both have answered; `running`: activity, "" at the end."""

    plain: ModeResult = ModeResult()
    drafting: ModeResult = ModeResult()
    rounds: int = len(DRAFT_ORDER) // 2
    identical: bool | None = None
    running: str = ""
    problem: str = ""

    @property
    def ratio(self) -> float | None:
        """Return the speedup of drafting; None until both modes have answered."""
        return self.drafting.rate / self.plain.rate if self.plain.rate and self.drafting.rate else None


async def compare_drafting(
    answerer: Answerer,
    messages: Sequence[Message],
    *,
    system: str,
    settings: ChatSettings,
    say: Callable[[Comparison], None],
) -> Comparison:
    """Answer the last question with and without drafting, interleaved, with one seed; `say` receives the progress."""
    await answerer.ready()
    if not answerer.is_localdflash:
        raise UsageError("another server answers here, which does not tell how: only the engine of localdflash does")
    last = max((i for i, message in enumerate(messages) if message.role == "user"), default=None)
    if last is None:
        raise UsageError("nothing was asked yet: ask something, then compare")
    asked = messages[: last + 1]
    seed = secrets.randbits(31) if settings.seed is None else settings.seed
    settings = replace(settings, max_tokens=settings.max_tokens or MAX_TOKENS, seed=seed)
    say(Comparison(running="reading the conversation"))
    first = replace(settings, max_tokens=1, draft=False)
    await _request_answer(answerer, asked, system, first)  # so that no measured answer reads the whole prompt
    heard: dict[bool, list[_WholeAnswer]] = {False: [], True: []}
    for number, draft in enumerate(DRAFT_ORDER, 1):
        say(_compare_answers(heard, f"answer {number} of {len(DRAFT_ORDER)}, {'drafting' if draft else 'plain'}"))
        heard[draft].append(await _request_answer(answerer, asked, system, replace(settings, draft=draft)))
    found = _compare_answers(heard, "")
    say(found)
    return found


async def _request_answer(
    answerer: Answerer, messages: Sequence[Message], system: str, settings: ChatSettings
) -> _WholeAnswer:
    """Return one whole answer. EngineDisconnect if it was interrupted, because its timing would be wrong."""
    parts: list[str] = []
    async with aclosing(answerer.answer(messages, settings, system=system)) as events:
        async for event in events:
            match event:
                case AnswerPiece(text):
                    parts.append(text)
                case Done("gone" | "cancelled", _, error):
                    raise error or EngineDisconnect("the engine gave up an answer of the comparison: try again")
                case Done(_, numbers):
                    return "".join(parts), numbers
                case _:
                    raise EngineDisconnect("the engine was started again while it was measured: try again")
    raise EngineDisconnect("the engine went away while it was measured: try again")


def _compare_answers(heard: dict[bool, list[_WholeAnswer]], running: str) -> Comparison:
    texts = {text for answers in heard.values() for text, _ in answers}
    both = all(heard.values())
    return Comparison(
        _summarise(heard[False]), _summarise(heard[True]), identical=len(texts) == 1 if both else None, running=running
    )


def _summarise(answers: Sequence[_WholeAnswer]) -> ModeResult:
    if not answers:
        return ModeResult()
    numbers = [one for _, one in answers]
    first = [one["ttft_ms"] for one in numbers if "ttft_ms" in one]
    return ModeResult(
        median(one["tokens_per_second"] for one in numbers),
        sum(one["tokens"] for one in numbers),
        numbers[-1]["tau"],
        len(answers),
        median(first) if first else None,
    )
