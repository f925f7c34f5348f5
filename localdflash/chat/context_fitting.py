"""Fit a conversation into the context: leave out the oldest messages, and summarise them."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from localdflash.base.errors import ContextOverflow, LocaldflashError
from localdflash.chat.answerer import Answerer, AnswerPiece, AnswerRestart
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.text.thoughts import split

SUMMARY_SHARE = 8  # a summary may take 1/8 of the context
_SUMMARY_PROMPT = (
    "Summarise our conversation up to here, so that it can go on without these messages: what was asked and decided,"
    " facts, names of files and functions, code that is still needed, and what is open. Write only the summary."
)


@dataclass(frozen=True, slots=True)
class FittedChat:
    """Result of `plan_fit`: `dropped` leading messages are left out. A `context` of 0 is unknown."""

    dropped: int
    tokens: int
    context: int


async def plan_fit(
    answerer: Answerer, messages: Sequence[Message], *, system: str, settings: ChatSettings, reserve: int
) -> FittedChat:
    """Return the fewest exchanges to leave out for `reserve` free tokens; ContextOverflow if the last does not fit."""
    about = await answerer.ready()
    starts = [0, *(i for i, message in enumerate(messages) if i and message.role == "user")]

    async def tokens(number: int) -> int | None:
        return await answerer.count(messages[starts[number] :], system=system, settings=settings)

    least = await tokens(len(starts) - 1)
    if least is None or not about.context:
        return FittedChat(0, least or 0, about.context)
    if least >= about.context:
        raise ContextOverflow(
            f"the last message alone makes {least} tokens, {least - about.context + 1} more than a context of"
            f" {about.context} has room for: shorten it"
        )
    # The answer is in (low, high]: all before low is too long, what starts at high fits.
    low, high, found = -1, len(starts) - 1, least
    number = 0  # the whole of it first: it may fit
    while low + 1 < high:
        count = await tokens(number)
        if count is not None and count + reserve <= about.context:
            high, found = number, count
        else:
            low = number
        number = (low + high) // 2
    return FittedChat(starts[high], found, about.context)


async def summarise(answerer: Answerer, messages: Sequence[Message], *, system: str, settings: ChatSettings) -> str:
    """Return the model's summary of these messages; if they do not all fit, of the newest."""
    about = await answerer.ready()
    most = max(about.context // SUMMARY_SHARE, 1)
    asked = [*messages, Message("user", _SUMMARY_PROMPT)]
    settings = replace(settings, temperature=0.0, max_tokens=most, thinking=False)
    fit = await plan_fit(answerer, asked, system=system, settings=settings, reserve=most)
    text = ""
    async with aclosing(answerer.answer(asked[fit.dropped :], settings, system=system)) as events:
        async for event in events:
            match event:
                case AnswerPiece(piece):
                    text += piece
                case AnswerRestart():
                    text = ""
    if not (text := split(text)[1].strip()):
        raise LocaldflashError("the model has written no summary")
    return text
