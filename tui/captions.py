"""The rows around a message: who wrote it, what is attached, how an answer ended, notes of the program."""

from collections.abc import Mapping
from typing import Any

from localdflash.chat.messages import Attachment, Message
from localdflash.text.sanitize import sanitize
from localdflash.tui.styled_lines import Line, StyledRun

_ENDS = {
    "length": "cut: max_tokens is reached",
    "context": "cut: the context is full",
    "repeat": "cut: it said the same again and again",
    "cancelled": "stopped",
    "gone": "the engine went away",
}


def header(message: Message, number: int, model: str) -> Line:
    """The author of a message and its number, as commands take it. `model` names answers that do not name theirs."""
    who: str = "you" if message.role == "user" else message.role
    if message.role == "assistant":
        named = message.numbers.get("model")
        who = one_line(model_name(named if isinstance(named, str) and named else model) or "answer")
    runs = (StyledRun(who, message.role), StyledRun(f" #{number}", "muted"))
    return Line(runs, decoration=len(runs), joined="")


def model_name(pair: str) -> str:
    """Return what a model is called: of a path, or of a name on the hub, the file without its type."""
    return pair.rstrip("/").rpartition("/")[2].removesuffix(".gguf")


def attachment_line(attachment: Attachment) -> StyledRun:
    """Return what was attached, and its size."""
    lines = attachment.text.count("\n") + (not attachment.text.endswith("\n") and bool(attachment.text))
    return StyledRun(f"▸ {one_line(attachment.name)}, {lines} line{'' if lines == 1 else 's'}", "muted")


def footer(message: Message) -> StyledRun | None:
    """Why a finished answer ended, unless it ended by itself, and its numbers; None if nothing is known."""
    if message.role != "assistant":
        return None
    parts = [*filter(None, [_ENDS.get(message.finish, "")]), *_told(message.numbers)]
    return StyledRun(" · ".join(parts), "muted") if parts else None


def _told(numbers: Mapping[str, Any]) -> list[str]:
    """Return the numbers as words; those that are missing or make no sense, as from another server, are left out."""
    tokens, rate = _number(numbers, "tokens"), _number(numbers, "tokens_per_second")
    tau, ttft = _number(numbers, "tau"), _number(numbers, "ttft_ms")
    return [
        *([f"{tokens:.0f} token{'' if tokens == 1 else 's'}"] if tokens is not None else []),
        *([f"{rate:.0f} tok/s"] if rate else []),
        *([f"{tau:.1f} per verify"] if tau and numbers.get("draft", True) else []),
        *([f"first token {ttft / 1000:.2f} s"] if ttft is not None else []),
    ]


def _number(numbers: Mapping[str, Any], name: str) -> float | None:
    value = numbers.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 1e12 else None


def note_run(text: str, kind: str) -> StyledRun:
    """Return a line of the program's own; a sign marks an error, so that it shows without colours too."""
    mark = "✗" if kind == "error" else "·"
    return StyledRun(f"{mark} {one_line(text)}", "error" if kind == "error" else "note")


def one_line(text: str) -> str:
    """Make text safe to show on one line."""
    return " ".join(sanitize(text).split())
