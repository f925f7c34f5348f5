"""Whatever a model answers, the terminal gets no more than what Textual itself writes.

One chat on a real pseudo-terminal is answered with every payload in every place. The oracle is that chat itself: the
kinds of sequences that it wrote while the answers were harmless. Its screen has room for all of an answer, and what
stands around a payload has to be on it, so that nothing passes because it was not shown.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.terminal import Terminal
from tests.security.terminal_payloads import MARKUP, UNSAFE
from tests.support.chats import Scene, scene
from tests.support.escape_sequences import Sequence, invisible, sequences

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")]
HARMLESS = """# A heading

Some *text* with `code`, a [link](https://example.org) and é 錯誤 😋.

- a list
> a quote

| a | table |
|---|-------|
| b | cell  |

<think>
a thought
</think>

```python
def add(a, b):  # a comment
    return a + b
```
"""
ROWS, COLUMNS = 240, 90  # room for half of the payloads in any place
Numbered = list[tuple[int, str]]


def _lines(line: str, head: str = "", end: str = "", between: str = "\n") -> Callable[[Numbered], str]:
    """An answer of one line for each payload, marked by b and e with its number."""
    return lambda payloads: head + between.join(line.format(n=f"{n:03}", p=p) for n, p in payloads) + end


PLACES: dict[str, Callable[[Numbered], str]] = {
    "text": _lines("b{n}{p}e{n}", between="\n\n"),
    "heading": _lines("## b{n}{p}e{n}"),
    "list": _lines("- b{n}{p}e{n}"),
    "quote": _lines("> b{n}{p}e{n}", between="\n\n"),
    "inline code": _lines("`b{n}{p}e{n}`", between="\n\n"),
    "code": _lines("b{n}{p}e{n}", "```python\n", "\n```\n"),
    "unclosed code": _lines("b{n}{p}e{n}", "```\n"),
    "language": _lines("```{p}\nb{n} e{n}\n```\n"),
    "table": _lines("| b{n}{p}e{n} | cell |", "| head | head |\n|------|------|\n", "\n"),
    "table head": _lines("| b{n}{p}e{n} | cell |\n|----|----|\n| a | b |\n", between="\n"),
    "link text": _lines("[b{n}{p}e{n}](https://example.org)", between="\n\n"),
    "link address": _lines("[b{n}](https://example.org/{p}) e{n}", between="\n\n"),
    "autolink": _lines("b{n} <https://example.org/{p}> e{n}", between="\n\n"),
    "HTML": _lines("<b title='{p}'>b{n}{p}e{n}</b>", between="\n\n"),
    "thought": _lines("b{n}{p}e{n}", "<think>\n", "\n</think>\nDone.", between="\n\n"),
}
NUMBERED = list(enumerate(UNSAFE))


@dataclass
class Session:
    """A chat, the kinds of sequences that it wrote for harmless answers, and what it wrote and showed since."""

    scene: Scene
    terminal: Terminal
    harmless: set[str] = field(default_factory=set)
    turns: int = 0

    def answered(self, answer: Answer, keys: tuple[str, ...] = ()) -> tuple[bytes, str]:
        """The bytes written for an answer, and their text."""
        self.turns += 1
        begun, end = len(self.terminal.raw), f"the end of {self.turns}."
        self.scene.answers(Answer.pieces(*(step.text for step in answer.steps), f"\n\n{end}\n"))
        self.terminal.press("ctrl+n", *keys)
        self.terminal.type("go")
        self.terminal.wait_written("go", begun)
        self.terminal.press("enter")
        self.terminal.wait_written(end, begun)
        self.terminal.settle(0.05)
        self.terminal.press(*keys)
        return bytes(self.terminal.raw[begun:]), self.terminal.written(begun)

    def foreign(self, raw: bytes) -> list[Sequence]:
        """What Textual did not write by itself."""
        return [one for one in sequences(raw) if one.kind not in self.harmless]


@contextmanager
def session_of(rows: int) -> Iterator[Session]:
    """A chat that has shown a harmless answer, its thoughts folded and unfolded."""
    with pytest.MonkeyPatch.context() as patch, scene(patch) as made:
        begun = Session(made, made.start(rows=rows, cols=COLUMNS))
        begun.answered(Answer.of(HARMLESS))
        begun.answered(Answer.of(HARMLESS), ("ctrl+t",))
        begun.harmless = {one.kind for one in sequences(bytes(begun.terminal.raw))}
        yield begun


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """On a screen that has room for many payloads."""
    with session_of(ROWS) as begun:
        yield begun


@pytest.fixture(scope="module")
def small() -> Iterator[Session]:
    """On a screen of the usual size, which is written faster."""
    with session_of(30) as begun:
        yield begun


def test_the_oracle_sees_every_payload() -> None:
    for payload in UNSAFE:
        assert sequences(payload.encode()) or invisible(payload) or "\r" in payload, ascii(payload)


def test_textual_alone_writes_few_kinds(session: Session) -> None:
    assert {kind.split()[0] for kind in session.harmless} <= {"CSI", "OSC"}
    assert {kind for kind in session.harmless if kind.startswith("OSC")} <= {"OSC 22"}  # the pointer's shape
    assert {kind[-1] for kind in session.harmless if kind.startswith("CSI")} <= set("mHhlpu")


@pytest.mark.parametrize("place", PLACES)
def test_an_answer_with_all_payloads_in_one_place(place: str, session: Session) -> None:
    keys = ("ctrl+t",) if place == "thought" else ()
    half = len(NUMBERED) // 2
    for payloads in (NUMBERED[:half], NUMBERED[half:]):
        raw, text = session.answered(Answer.of(PLACES[place](payloads), size=200), keys)
        assert session.foreign(raw) == []
        assert invisible(raw.decode()) == set()
        assert [payload for n, payload in payloads if f"b{n:03}" not in text] == []
        assert [payload for n, payload in payloads if f"{payload}e{n:03}".encode() in raw] == []


def test_markup_is_text(small: Session) -> None:
    raw, screen = small.answered(Answer.of("```\n" + "\n".join(f"b{text}e" for text in MARKUP) + "\n```\n"))
    assert [text for text in MARKUP if f"b{text}e" not in screen] == []
    assert small.foreign(raw) == []


def test_a_payload_split_at_every_place(small: Session) -> None:
    """Eight payloads in an answer."""
    payloads = list(UNSAFE)
    for first in range(0, len(payloads), 8):
        some = payloads[first : first + 8]
        splits = [(payload, at) for payload in some for at in range(1, len(payload))]
        halves = [half for payload, at in splits for half in (f"x{payload[:at]}", f"{payload[at:]}y\n\n")]
        raw, _ = small.answered(Answer.pieces(*halves, wait=0.0))
        assert small.foreign(raw) == []
        assert [payload for payload in some if f"x{payload}y".encode() in raw] == []
        assert invisible(raw.decode()) == set()
