"""Terminal injection: untrusted text causes no control sequences beyond those of Textual itself.

Chats run on a real pseudo-terminal, with every payload in every place. The oracle is the set of sequences that harmless
text causes. The marks around a payload must be on the screen, so that no test passes because a payload was not shown.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from localdflash.chat.messages import Message
from localdflash.chat.store import ChatStore
from localdflash.cli.chat_command import chats_file
from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.terminal import Terminal
from tests.security.terminal_payloads import ALL, MARKUP, UNSAFE
from tests.support.chats import Scene, ask, scene
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
    """Return a function that writes one line for each payload, marked by b and e with its number."""
    return lambda payloads: head + between.join(line.format(n=f"{n:03}", p=p) for n, p in payloads) + end


PLACES: dict[str, Callable[[Numbered], str]] = {
    "text": _lines("b{n}{p}e{n}", between="\n\n"),
    "quote": _lines("> b{n}{p}e{n}", between="\n\n"),
    "code": _lines("b{n}{p}e{n}", "```python\n", "\n```\n"),
    "language": _lines("```{p}\nb{n} e{n}\n```\n"),
    "table": _lines("| b{n}{p}e{n} | cell |", "| head | head |\n|------|------|\n", "\n"),
    "link text": _lines("[b{n}{p}e{n}](https://example.org)", between="\n\n"),
    "link address": _lines("[b{n}](https://example.org/{p}) e{n}", between="\n\n"),
    "HTML": _lines("<b title='{p}'>b{n}{p}e{n}</b>", between="\n\n"),
    "thought": _lines("b{n}{p}e{n}", "<think>\n", "\n</think>\nDone.", between="\n\n"),
}
NUMBERED = list(enumerate(UNSAFE))


@dataclass
class Session:
    """Chat on a terminal, and the kinds of sequences that it wrote for harmless answers."""

    scene: Scene
    terminal: Terminal
    harmless: set[str] = field(default_factory=set)
    turns: int = 0

    def answered(self, answer: Answer, keys: tuple[str, ...] = ()) -> tuple[bytes, str]:
        """Answer a question; return the written bytes and their text."""
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
        """Return the sequences that harmless answers did not cause."""
        return [one for one in sequences(raw) if one.kind not in self.harmless]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Yield a chat that has shown a harmless answer, with its thoughts folded and unfolded."""
    with pytest.MonkeyPatch.context() as patch, scene(patch) as made:
        begun = Session(made, made.start(rows=ROWS, cols=COLUMNS))
        begun.answered(Answer.of(HARMLESS))
        begun.answered(Answer.of(HARMLESS), ("ctrl+t",))
        begun.harmless = {one.kind for one in sequences(bytes(begun.terminal.raw))}
        yield begun


def test_the_oracle_sees_every_payload() -> None:
    for payload in UNSAFE:
        assert sequences(payload.encode()) or invisible(payload) or "\r" in payload, ascii(payload)


def test_textual_writes_few_kinds_of_sequences(session: Session) -> None:
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


def test_markup_in_answers_is_shown_as_text(session: Session) -> None:
    raw, screen = session.answered(Answer.of("```\n" + "\n".join(f"b{text}e" for text in MARKUP) + "\n```\n"))
    assert [text for text in MARKUP if f"b{text}e" not in screen] == []
    assert session.foreign(raw) == []


def test_a_payload_split_at_every_position_is_harmless(session: Session) -> None:
    """Eight payloads in an answer."""
    payloads = list(UNSAFE)
    for first in range(0, len(payloads), 8):
        some = payloads[first : first + 8]
        splits = [(payload, at) for payload in some for at in range(1, len(payload))]
        halves = [half for payload, at in splits for half in (f"x{payload[:at]}", f"{payload[at:]}y\n\n")]
        raw, _ = session.answered(Answer.pieces(*halves, wait=0.0))
        assert session.foreign(raw) == []
        assert [payload for payload in some if f"x{payload}y".encode() in raw] == []
        assert invisible(raw.decode()) == set()


# Every other source of text: models, servers, errors, files, the clipboard, earlier chats

HIGH, FEW, WIDE = 120, 40, 140
OWN_BELL = re.compile(rb"(?<=\x1b\[\?2026l)\x07+")  # Textual rings between two frames, never in one
MARKED = [f"b{number:02}{payload}e{number:02}" for number, payload in enumerate(ALL)]


def grouped(size: int) -> list[str]:
    """Return all marked payloads, joined in groups of this size."""
    return [" ".join(MARKED[at : at + size]) for at in range(0, len(MARKED), size)]


def command(terminal: Terminal, line: str, until: str) -> None:
    """Send a command and wait for what it shows."""
    terminal.type(line)
    terminal.wait_for(line)
    terminal.press("enter")
    terminal.wait_for(until)


@pytest.fixture(scope="module")
def harmless() -> Iterator[set[str]]:
    """Return the kinds of sequences that a harmless walk through all screens writes."""
    with pytest.MonkeyPatch.context() as patch, scene(patch) as chats:
        chats.answers(Answer.of("# Harmless\n\n```python\nx = 1\n```\n"))
        (chats.folder / "file.py").write_text("x = 1\n")
        terminal = chats.start(rows=FEW, cols=WIDE)
        ask(terminal, "a question", "x = 1")
        for key in ("f1", "ctrl+o", "ctrl+l", "ctrl+p", "f2", "f3", "f6"):
            terminal.press(key)
            terminal.settle(0.3)
            terminal.press("escape")
            terminal.settle(0.3)
        terminal.type("@file")
        terminal.wait_for("file.py")
        yield {one.kind for one in sequences(bytes(terminal.raw))}


def model_and_notice(chats: Scene) -> Terminal:
    terminal = start(chats, FEW)
    for group in grouped(12):
        chats.engine.about = {"pair": group, "notice": f"notice {group}"}
        command(terminal, "/model embedded", group[:3])
        terminal.settle(0.05)
        command(terminal, "/new", "Ask something")
    return terminal


def errors(chats: Scene) -> Terminal:
    terminal = start(chats, FEW)
    for number, group in enumerate(grouped(12)):
        refused = Answer(status=503, message=group, code="queue_full")
        chats.answers(refused if number % 2 else Answer.pieces("words ", end="error", message=group))
        ask(terminal, "go", group[:3])
        command(terminal, "/new", "Ask something")
    return terminal


def pasted(chats: Scene) -> Terminal:
    terminal = start(chats, FEW)
    for group in grouped(9):
        terminal.paste(group.replace("\x1b[201~", ""))  # a terminal does not let it through
        terminal.wait_for(group[-3:])
        terminal.press("enter")
        terminal.wait_for("Ask something")
    terminal.press("up")
    return terminal


def file_names(chats: Scene) -> Terminal:
    """Type file names: names with markup are suggested unchanged, names with invisible characters are not."""
    for marked in MARKED:
        (chats.folder / marked.replace("/", "_").replace("\0", "_")).write_text("x = 1\n")
    for number, raw in enumerate((b"\x9b2J", b"\x9d0;pwned\x9c", b"\xff\xfe")):
        with open(os.path.join(os.fsencode(chats.folder), b"raw%d" % number + raw), "wb") as file:
            file.write(b"x = 1\n")
    terminal = start(chats, FEW)
    terminal.type("@b")
    terminal.wait_for("b92[_x]e92")
    for number in range(0, len(MARKED), 5):
        terminal.type(f"{number:02}")
        terminal.settle(0.3)
        terminal.press("backspace", "backspace")
    for wanted in ("@raw", "@b95"):
        terminal.press("escape", "ctrl+u")
        terminal.wait_for("Ask something")
        terminal.type(wanted)
        terminal.settle(0.2)
    assert "b95[@click=app.quit]quit[_]e95" in terminal.text
    terminal.press("tab")
    ask(terminal, "look", "Nothing.")
    return terminal


def earlier_chats(chats: Scene) -> Terminal:
    store = ChatStore(chats_file(), print)
    for marked in MARKED:
        number = store.create(folder=marked, model=marked)
        question = store.add(number, None, Message("user", marked))
        store.add(number, question.id, Message("assistant", marked, finish="stop", numbers={"model": marked}))
    store.close()
    terminal = start(chats)
    terminal.press("ctrl+o")
    terminal.wait_for("e100")
    terminal.press("enter")
    terminal.settle()
    return terminal


def proposed_changes(chats: Scene) -> Terminal:
    (chats.folder / "a.py").write_text("x = 1\n")
    body = "\n".join(MARKED)
    chats.answers(
        Answer.of(f"`{MARKED[0]}.py`\n\n```python\n{body}\n```\n\n`a.py`\n\n```python\n{body}\n```\n\nEnd.\n")
    )
    terminal = start(chats)
    ask(terminal, "change it", "End.")
    terminal.press("f6")
    terminal.settle()
    return terminal


def start(chats: Scene, rows: int = HIGH) -> Terminal:
    return chats.start(rows=rows, cols=WIDE)


SCREENS: list[Callable[[Scene], Terminal]] = [
    model_and_notice,
    errors,
    pasted,
    file_names,
    earlier_chats,
    proposed_changes,
]


@pytest.mark.parametrize("place", SCREENS, ids=lambda place: place.__name__)
def test_payloads_from_every_source_are_harmless(
    place: Callable[[Scene], Terminal], harmless: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with scene(monkeypatch) as chats:
        terminal = place(chats)
        terminal.settle(0.2)
        raw = OWN_BELL.sub(b"", bytes(terminal.raw))
        assert terminal.child.isalive(), terminal.failure("the chat has ended")
        assert [one for one in sequences(raw) if one.kind not in harmless] == []
        assert invisible(raw.decode()) == set()
        assert "MarkupError" not in terminal.text


def test_an_answer_for_a_script_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """`chat -p` prints every payload, split at every position."""
    splits = [(payload[:at], payload[at:]) for payload in UNSAFE for at in range(len(payload) + 1)]
    halves = [half for before, after in splits for half in (f"x{before}", f"{after}y\n")]
    with scene(monkeypatch, Answer.pieces(*halves)) as chats:
        terminal = chats.start("-p", "go", ready=False)
        assert terminal.wait() == 0
        printed = bytes(terminal.raw)
    assert printed.count(b"\r\n") >= len(splits)
    assert sequences(printed) == []
    assert invisible(printed.decode()) == set()
    assert [payload for payload in UNSAFE if f"x{payload}y".encode() in printed] == []
