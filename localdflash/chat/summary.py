"""The oldest part of a conversation in a few words of the model's own, to be sent instead of it."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from localdflash.base.errors import LocaldflashError
from localdflash.chat.answerer import Answerer, AnswerPiece, Restarted
from localdflash.chat.context_fitting import plan_fit
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.text.thoughts import split

SHARE = 8  # of the context, one part in so many, is what a summary may take
_REQUEST = (
    "Summarise our conversation up to here, so that it can go on without these messages: what was asked and decided,"
    " facts, names of files and functions, code that is still needed, and what is open. Write only the summary."
)


async def summarise(answerer: Answerer, messages: Sequence[Message], *, system: str, settings: ChatSettings) -> str:
    """The model's summary of these messages; if they do not all fit, of the newest of them.

    LocaldflashError if there is none. Cancelling this stops the engine.
    """
    about = await answerer.ready()
    most = max(about.context // SHARE, 1)
    asked = [*messages, Message("user", _REQUEST)]
    settings = replace(settings, temperature=0.0, max_tokens=most, thinking=False)
    fit = await plan_fit(answerer, asked, system=system, settings=settings, reserve=most)
    text = ""
    async with aclosing(answerer.answer(asked[fit.dropped :], settings, system=system)) as events:
        async for event in events:
            match event:
                case AnswerPiece(piece):
                    text += piece
                case Restarted():
                    text = ""
    if not (text := split(text)[1].strip()):
        raise LocaldflashError("the model has written no summary")
    return text
