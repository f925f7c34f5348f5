"""The part of a conversation that fits: against trying every way, with an engine that only counts."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localdflash.base.errors import ContextOverflow
from localdflash.chat.answerer import ServerInfo
from localdflash.chat.context_fitting import FittedChat, plan_fit
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from tests.chat.asking import GREEDY


class Counting:
    """A token a character, and five for each message; the instructions count as one."""

    def __init__(self, context: int, *, tells: bool = True) -> None:
        self.context, self.tells, self.counts = context, tells, 0

    async def ready(self) -> ServerInfo:
        return ServerInfo("counting", self.context)

    async def count(self, messages: Sequence[Message], *, system: str, settings: ChatSettings) -> int | None:
        self.counts += 1
        return self.tokens(messages, system) if self.tells else None

    def tokens(self, messages: Sequence[Message], system: str) -> int:
        return sum(5 + len(text) for text in [message.text for message in messages] + [system] * bool(system))


def fit(answerer: Any, messages: Sequence[Message], reserve: int = 0, system: str = "") -> FittedChat:
    return asyncio.run(plan_fit(answerer, messages, system=system, settings=GREEDY, reserve=reserve))


CONVERSATIONS = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text("x", max_size=40)), max_size=14)


@given(turns=CONVERSATIONS, context=st.integers(1, 400), reserve=st.integers(0, 100), system=st.sampled_from(["", "s"]))
@example(turns=[("user", "xxxxx")], context=29, reserve=10, system="")  # it fits exactly
@settings(max_examples=50)
def test_the_fewest_messages_go(turns: list[tuple[Any, str]], context: int, reserve: int, system: str) -> None:
    messages = [*(Message(role, text) for role, text in turns), Message("user", "last")]
    answerer = Counting(context)
    starts = [0, *(i for i, message in enumerate(messages) if i and message.role == "user")]
    least = answerer.tokens(messages[starts[-1] :], system)
    if least >= context:
        with pytest.raises(ContextOverflow, match=f"{least} tokens, {least - context + 1} more"):
            fit(answerer, messages, reserve, system)
        return
    fitting = [start for start in starts if answerer.tokens(messages[start:], system) + reserve <= context]
    dropped = (fitting or starts[-1:])[0]
    found = fit(answerer, messages, reserve, system)
    assert found == FittedChat(dropped, answerer.tokens(messages[dropped:], system), context)
