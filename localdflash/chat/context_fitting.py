"""Fit a conversation into the context: leave out the oldest messages, and summarise them."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from localdflash.base.errors import ContextOverflow, LocaldflashError
from localdflash.chat.answerer import Answerer, AnswerPiece, AnswerRestart
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.text.thoughts import split_thoughts

SUMMARY_SHARE = 8  # a summary may take 1/8 of the context
_SUMMARY_PROMPT = (
    "Summarise our conversation up to here, so that it can go on without these messages: what was asked and decided,"
    " facts, names of files and functions, code that is still needed, and what is open. Write only the summary."
)


@dataclass(frozen=True, slots=True)
class FittedChat:
    """Part of a chat that fits: `dropped` leading messages are left out; the rest has `tokens` (0: unknown)."""

    dropped: int
    tokens: int
    context: int


async def plan_fit(
    answerer: Answerer, messages: Sequence[Message], *, system: str, settings: ChatSettings, reserve: int
) -> FittedChat:
    """Drop as few exchanges as leave `reserve` tokens free, never the last; ContextOverflow if that does not fit."""
    info = await answerer.ready()
    starts = [0, *(i for i, message in enumerate(messages) if i and message.role == "user")]

    async def count_from(exchange: int) -> int | None:
        return await answerer.count(messages[starts[exchange] :], system=system, settings=settings)

    fewest = await count_from(len(starts) - 1)
    if fewest is None or not info.context:
        return FittedChat(0, fewest or 0, info.context)
    if fewest >= info.context:
        raise ContextOverflow(
            f"the last message has {fewest} tokens, {fewest - info.context + 1} too many for the context of"
            f" {info.context}; shorten it"
        )
    # Binary search: the exchanges from `low` on do not fit, those from `high` on do.
    low, high, tokens = -1, len(starts) - 1, fewest
    exchange = 0  # try all exchanges first, because they often fit
    while low + 1 < high:
        count = await count_from(exchange)
        if count is not None and count + reserve <= info.context:
            high, tokens = exchange, count
        else:
            low = exchange
        exchange = (low + high) // 2
    return FittedChat(starts[high], tokens, info.context)


async def summarise(answerer: Answerer, messages: Sequence[Message], *, system: str, settings: ChatSettings) -> str:
    """Return the model's summary of these messages, or of as many of the newest as fit; LocaldflashError if empty."""
    info = await answerer.ready()
    max_tokens = max(info.context // SUMMARY_SHARE, 1)
    request = [*messages, Message("user", _SUMMARY_PROMPT)]
    settings = replace(settings, temperature=0.0, max_tokens=max_tokens, thinking=False)
    fit = await plan_fit(answerer, request, system=system, settings=settings, reserve=max_tokens)
    text = ""
    async with aclosing(answerer.answer(request[fit.dropped :], settings, system=system)) as events:
        async for event in events:
            match event:
                case AnswerPiece(piece):
                    text += piece
                case AnswerRestart():
                    text = ""
    if not (text := split_thoughts(text)[1].strip()):
        raise LocaldflashError("the model returned no summary")
    return text
