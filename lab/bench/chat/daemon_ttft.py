"""Time to first token through a private daemon: from a cold start, and in a chat whose earlier turns are cached."""

import time
from collections.abc import Callable
from typing import Any

from localdflash.base.files import paths
from localdflash.lab.bench.spread import spread
from localdflash.server import private
from localdflash.server.address import Address
from localdflash.server.client import Client
from localdflash.server.engine_spec import EngineSpec

QUESTION_TOKENS = 100
FIRST_QUESTION = "Give me a word that rhymes with light."
QUESTION = (
    "In our shop every order has a number, a customer and a list of items, and each item has a name, a price and how"
    " many of it were bought. Some orders come in twice because the network repeats them, and a few have a price of"
    " zero that must not count. Every evening we want one line for each customer with the number of orders, the sum"
    " of all items and the day of the last order, sorted by that sum. Which steps would you take, which data would"
    " you keep in memory between two evenings, and what could go wrong when the program stops in the middle of it?"
)


def measure(spec: EngineSpec, cold: int, warm: int, on_progress: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Measure the TTFT of `cold` daemon starts and `warm` questions, in milliseconds; raises if a start fails."""
    path = paths.private_socket()
    client = Client(Address(path))
    cold_ms, of_warm_chat = list[float](), dict[str, Any]()
    for start in range(cold):
        began = time.perf_counter()
        child = private.start(spec, path, lambda stage: None)
        try:
            _wait_for_first_token(client, [_turn("user", FIRST_QUESTION)])
            cold_ms.append((time.perf_counter() - began) * 1e3)
            on_progress()
            if start == cold - 1:
                of_warm_chat = _measure_warm(client, warm, on_progress)
        finally:
            private.end(child, path)
    return {"cold_start_ms": spread(cold_ms), **of_warm_chat}


def _measure_warm(client: Client, questions: int, on_progress: Callable[[], None]) -> dict[str, Any]:
    """Ask pasted and typed questions in turn, in a chat whose earlier turns are cached; return their TTFT.

    While a question is typed, the chat has the daemon read it, here up to the last word.
    """
    earlier_turns = [_turn("user", FIRST_QUESTION), _turn("assistant", "Night.")]
    question, tokens = _question(client)
    pasted_ms, typed_ms = list[float](), list[float]()
    for number in range(-1, questions):  # the first question also reads the earlier turns and is not counted
        text, is_typed = f"{number + 11}. {question}", number % 2 == 1
        if is_typed:
            messages = [*earlier_turns, _turn("user", text.rpartition(" ")[0])]
            client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 0})
        began = time.perf_counter()
        _wait_for_first_token(client, [*earlier_turns, _turn("user", text)])
        if number >= 0:
            (typed_ms if is_typed else pasted_ms).append((time.perf_counter() - began) * 1e3)
            on_progress()
    return {"warm_ms": spread(pasted_ms), "typed_ms": spread(typed_ms), "question_tokens": tokens}


def _question(client: Client) -> tuple[str, int]:
    """Return a start of `QUESTION` that has at most `QUESTION_TOKENS` with its number, and the token count of both."""
    empty, words = _count(client, ""), QUESTION.split(" ")
    while words and _count(client, f"11. {' '.join(words)}") - empty > QUESTION_TOKENS:
        words.pop()
    question = " ".join(words)
    return question, _count(client, f"11. {question}") - empty


def _count(client: Client, text: str) -> int:
    body = {"messages": [_turn("user", text)], "count": True}
    return int(client.post("/apply-template", body)["tokens"])


def _wait_for_first_token(client: Client, messages: list[dict[str, str]]) -> None:
    """Send messages, return at the first token, and cancel the rest."""
    body = {"messages": messages, "temperature": 0, "max_tokens": 8, "stream": True}
    for event in client.stream("/v1/chat/completions", body):
        for choice in event.get("choices") or ():
            if choice["delta"].get("content") or choice["delta"].get("reasoning_content"):
                return


def _turn(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}
