"""What the whole app shows in the tests of its looks: messages with a bit of everything, and how each view is made.

No view has a time, a cursor that blinks or anything that moves.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from textual.pilot import Pilot
from textual.widgets import TextArea

from localdflash.chat.acceptance import Acceptance
from localdflash.chat.answerer import AnswerPiece
from localdflash.chat.messages import Attachment, Message, StepRecord
from localdflash.tui import highlight
from localdflash.tui.chat_app import ChatApp
from tests.tui.chat_stage import typed, wait_until

NUMBERS = {
    "tokens": 212,
    "prompt_tokens": 640,
    "tokens_per_second": 58.0,
    "tau": 3.87,
    "drafted": 552,
    "accepted": 344,
    "ttft_ms": 181.0,
    "model": "qwen3-4b",
}
QUESTION = Message(
    "user",
    "Why is `area` of a Box negative?\nAnd how do I test it?",
    (Attachment("file", "src/boxes/box.py", "class Box:\n" * 41),),
    created=0.0,
)
RICH = """\
## A sign is lost

`area` multiplies **two** differences, and *one* of them is reversed. See [the docs](https://docs.python.org/3/) first:

1. `right - left` is positive
2. `top - bottom` is not:
   - screens count rows from the top
   - files count them from the bottom

> Rows grow downwards on every screen, so a height is `bottom - top`.

| where  | rows grow | height         |
|--------|:---------:|---------------:|
| screen | down      | `bottom - top` |
| plot   | up        | `top - bottom` |

```python
class Box:
    \"\"\"A box on the screen.\"\"\"

    def area(self, scale: float = 1.0) -> float:
        return (self.right - self.left) * (self.bottom - self.top) * scale  # cells
```

Then run:

```bash
python -m pytest tests/test_box.py -q | tail -n 3
```
"""
THOUGHTS = (
    "<think>\nThe height is negative.\nSo top and bottom are swapped somewhere.\n</think>\n\nSwap `top` and `bottom`.\n"
)
STREAM = "The height is negative:\n\n```python\ndef height(self):\n    return self.bottom - sel"
SPEED = (
    (StepRecord("dflash", 7, 4, (4, 2, 7, 9, 2), 21.0), "The height is negative: "),
    (StepRecord("lookup", 4, 2, (10, 4, 6), 12.0), "`bottom - top` says "),
    (StepRecord("", 0, 0, (4,), 9.0), "so. "),
    (StepRecord("dflash", 7, 6, (4, 4, 5, 2, 2, 1, 8), 22.0), "Größe über 1: naïvely."),
)


def answer(text: str, **how: Any) -> Message:
    """One that ended."""
    return Message("assistant", text, finish=how.pop("finish", "stop"), numbers=NUMBERS, created=0.0, **how)


def tinted() -> Message:
    """An answer of which it is known how its tokens came."""
    return answer("".join(text for _, text in SPEED), steps=tuple(step for step, _ in SPEED))


_LONG = [
    message
    for turn in range(40)
    for message in (
        Message("user", f"And case {turn}?", created=0.0),
        answer(f"Case {turn} is like the one before:\n\n```python\nassert area({turn}) >= 0\n```\n"),
    )
]
CHATS: dict[str, list[Message]] = {
    "conversation": [QUESTION, answer(RICH)],
    "stopped": [QUESTION, answer("The height is\n", finish="cancelled")],
    "accepted": [QUESTION, tinted()],
    "thoughts-folded": [QUESTION, answer(THOUGHTS)],
    "thoughts-open": [QUESTION, answer(THOUGHTS)],
    "error": [QUESTION, answer("The height", finish="gone")],
    "speed": [QUESTION, tinted()],
    "long": _LONG,
    "picked": _LONG,
}


async def still(pilot: Pilot[Any]) -> None:
    """No cursor blinks, and all work is done, that of threads too."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    for one in app.screen.query(TextArea):
        one.cursor_blink = False
    app.status_bar._moves = False
    await pilot.pause(0.02)
    await wait_until(pilot, lambda: _coloured(app))
    await pilot.pause()


def _coloured(app: ChatApp) -> bool:
    shown = app.transcript
    colouring = shown._colouring
    return (colouring is None or colouring.is_finished) and not highlight.missing and not shown._unsettled()


Prepare = Callable[[Pilot[Any]], Coroutine[Any, Any, None]]


def view(name: str, theme: str) -> Prepare:
    """Bring the app to this view."""

    async def prepare(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, ChatApp)
        app.theme = theme
        await pilot.pause()
        if name in CHATS:
            app.talk.messages[:] = CHATS[name]
            app.show_chat()
        await pilot.pause()
        await _more(name, pilot, app)
        await still(pilot)

    return prepare


async def _more(name: str, pilot: Pilot[Any], app: ChatApp) -> None:
    match name:
        case "streaming":
            app.transcript._pace._whole = True
            await typed(pilot, QUESTION.text)
            await wait_until(pilot, lambda: app.transcript.source_shown() == STREAM)
            app.talk.speed = _speed()
            app.refresh_status()
        case "accepted":
            app.action_accepted()
        case "thoughts-open":
            app.action_thoughts()
        case "error":
            app.complain("the engine ended (killed); /retry asks again")
        case "speed":
            app.talk.speed = _speed()
            app.action_speed()
        case "long":
            app.transcript.focus()
            await pilot.press("pageup", "pageup")
        case "picked":
            app.transcript.focus()
            await pilot.press("k", "k", "k")


def script(name: str) -> tuple[object, ...]:
    """What the engine says in this view."""
    return (AnswerPiece(STREAM, SPEED[0][0]), None) if name == "streaming" else ()


def _speed() -> Acceptance:
    speed = Acceptance(clock=lambda: 1.0)
    for step, _ in SPEED * 12:
        speed.add(step)
    return speed
