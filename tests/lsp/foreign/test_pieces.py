"""From a server's text to events: the text ends where our engine would end it, and the server is stopped there."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from localdflash.lsp.engine_completer import Event
from localdflash.lsp.foreign.pieces import InfillServer, InfillTask, Piece, Sampling
from tests.lsp.foreign.made_up import BODY

TEXT = "rn first + second\n\n\ndef other(third):\n    return third\n"


class Scripted(InfillServer):
    model = "scripted"

    def __init__(self, pieces: Sequence[Piece], word: str = "") -> None:
        self.pieces, self.again = pieces, word
        self.said = 0
        self.draws: list[Sampling] = []

    def word(self, task: InfillTask) -> str:
        return self.again

    async def stream(self, task: InfillTask, sampling: Sampling, word: str) -> AsyncGenerator[Piece]:
        self.draws.append(sampling)
        for piece in self.pieces:
            self.said += 1
            yield piece

    def close(self) -> None:
        return


def events(server: Scripted, **changes: Any) -> list[Event]:
    async def collect() -> list[Event]:
        return [event async for event in server.complete({**BODY, **changes})]

    return asyncio.run(collect())


def text_of(found: list[Event], index: int = 0) -> str:
    return "".join(event["text"] for event in found if event["index"] == index)


def cut(text: str, places: Sequence[int]) -> list[Piece]:
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [Piece(text[start:end]) for start, end in pairwise(ends)]


def test_a_text_ends_with_its_statement_and_the_server_is_stopped() -> None:
    server = Scripted([Piece(one) for one in TEXT])
    found = events(server)
    assert text_of(found) == "rn first + second"
    assert found[-1]["finish"] == "statement"
    assert server.said < len(TEXT) / 2


@given(st.lists(st.integers(0, 100), max_size=8), st.sampled_from(["", "retu"]))
def test_the_text_does_not_depend_on_its_pieces_or_on_a_repeated_word(places: list[int], word: str) -> None:
    assert text_of(events(Scripted(cut(word + TEXT, places), word))) == "rn first + second"


def test_where_it_is_unsure_a_text_ends() -> None:
    unsure = [Piece("rn first", (-0.1,)), Piece(" -", (-2.5,)), Piece(" third", (-4.0,)), Piece("\n", (-0.1,))]
    found = events(Scripted(unsure), least_sure=0.25)
    assert text_of(found).startswith("rn first")
    assert "third" not in text_of(found)
    assert found[-1]["finish"] == "unsure"
    assert text_of(events(Scripted(unsure), least_sure=0.0)) == "rn first - third"
