from collections.abc import Callable
from typing import Any

from localdflash.lab.bench.editor import Editor, Trace

Answer = Callable[[Any, Any], None]


class Desk:
    """Editor with a server that answers on request."""

    def __init__(self, text: str = "") -> None:
        self.answers: list[Answer] = []
        self.trace = Trace()
        self.editor = Editor(self, "neovim", "utf-16", self.trace)  # type: ignore[arg-type]
        self.editor.open("file:///a.py", "python", text)

    def notify(self, method: str, params: Any) -> None:
        pass

    def request(self, method: str, params: Any, answer: Answer) -> int:
        self.answers.append(answer)
        return len(self.answers)

    def check(self) -> None:
        pass

    def cancel(self, number: int) -> None:
        pass

    def type(self, text: str) -> None:
        for key in text:
            self.editor.type(key)

    def item(self, text: str, end: int, start: int = 0, line: int = 0) -> dict[str, Any]:
        extent = {"start": {"line": line, "character": start}, "end": {"line": line, "character": end}}
        command = {"title": "", "command": "localdflash.accept", "arguments": ["1"]}
        return {"insertText": text, "range": extent, "command": command}

    def answer(self, item: Any) -> None:
        self.answers[-1]({"items": [item]}, None)

    @property
    def ghost(self) -> str:
        return self.editor.shown.ghost if self.editor.shown else ""


def test_stale_suggestions_are_counted_and_not_shown() -> None:
    desk = Desk(text="\nx")
    desk.type("ab")
    for item in (
        desk.item("aX", 2),  # made for another text
        desk.item("abc", 1),  # does not end at the cursor
        desk.item("abc", 2, line=1),
        desk.item("abc", 2, start=3),
    ):
        desk.answer(item)
        assert desk.ghost == ""
    assert (desk.trace.stale, desk.trace.shown) == (4, 0)


def test_a_pushed_item_extends_only_the_current_suggestion() -> None:
    desk = Desk()
    desk.type("a")
    desk.answer(desk.item("ab", 1))

    def push(version: int, column: int) -> None:
        document = {"uri": "file:///a.py", "version": version}
        position = {"line": 0, "character": column}
        desk.editor.on_pushed({"textDocument": document, "position": position, "items": [desk.item("abcd", 1)]})

    push(1, 1)
    push(2, 0)
    assert desk.ghost == "b"
    push(2, 1)
    assert (desk.ghost, desk.trace.grown) == ("bcd", 1)
    assert len(desk.trace.request_to_text) == len(desk.trace.request_to_answer) == 1
