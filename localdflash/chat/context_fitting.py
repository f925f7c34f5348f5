"""How many of its oldest messages a conversation must leave out to fit into the context."""

from collections.abc import Sequence
from dataclasses import dataclass

from localdflash.base.errors import ContextOverflow
from localdflash.chat.answerer import Answerer
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings


@dataclass(frozen=True, slots=True)
class FittedChat:
    """The first `dropped` messages are left out; the rest takes `tokens` of a `context` (0: unknown)."""

    dropped: int
    tokens: int
    context: int


async def plan_fit(
    answerer: Answerer, messages: Sequence[Message], *, system: str, settings: ChatSettings, reserve: int
) -> FittedChat:
    """The fewest messages to leave out so that `reserve` tokens stay free for the answer.

    Whole exchanges are left out: the rest begins with a message of the user's. The last one always stays, and so do the
    instructions. If they alone leave less than the reserve, that is accepted; ContextOverflow if they leave nothing.
    """
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
