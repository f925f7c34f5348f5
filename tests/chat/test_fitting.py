"""The messages that fit into the context, compared with a linear search."""

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


class CountingAnswerer:
    """Fake answerer: one token per character and five per message, the system prompt included."""

    def __init__(self, context: int, *, reports_count: bool = True) -> None:
        self.context, self.reports_count, self.counts = context, reports_count, 0

    async def ready(self) -> ServerInfo:
        return ServerInfo("counting", self.context)

    async def count(self, messages: Sequence[Message], *, system: str, settings: ChatSettings) -> int | None:
        self.counts += 1
        return self.tokens(messages, system) if self.reports_count else None

    def tokens(self, messages: Sequence[Message], system: str) -> int:
        return sum(5 + len(text) for text in [message.text for message in messages] + [system] * bool(system))


def fit(answerer: Any, messages: Sequence[Message], reserve: int = 0, system: str = "") -> FittedChat:
    return asyncio.run(plan_fit(answerer, messages, system=system, settings=GREEDY, reserve=reserve))


CONVERSATIONS = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text("x", max_size=40)), max_size=14)


@given(turns=CONVERSATIONS, context=st.integers(1, 400), reserve=st.integers(0, 100), system=st.sampled_from(["", "s"]))
@example(turns=[("user", "xxxxx")], context=29, reserve=10, system="")  # it fits exactly
@settings(max_examples=50)
def test_plan_fit_drops_the_fewest_messages(
    turns: list[tuple[Any, str]], context: int, reserve: int, system: str
) -> None:
    messages = [*(Message(role, text) for role, text in turns), Message("user", "last")]
    answerer = CountingAnswerer(context)
    starts = [0, *(i for i, message in enumerate(messages) if i and message.role == "user")]
    fewest = answerer.tokens(messages[starts[-1] :], system)
    if fewest >= context:
        with pytest.raises(ContextOverflow, match=f"{fewest} tokens, {fewest - context + 1} too many"):
            fit(answerer, messages, reserve, system)
        return
    fitting = [start for start in starts if answerer.tokens(messages[start:], system) + reserve <= context]
    dropped = (fitting or starts[-1:])[0]
    found = fit(answerer, messages, reserve, system)
    assert found == FittedChat(dropped, answerer.tokens(messages[dropped:], system), context)
