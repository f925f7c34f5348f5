"""Header, attachment, footer and note rows around a message."""

from collections.abc import Mapping
from typing import Any

from localdflash.chat.messages import FINISH_NOTES, Attachment, Message
from localdflash.text.sanitize import sanitize
from localdflash.tui.styled_lines import Line, StyledRun


def header(message: Message, number: int, model: str) -> Line:
    """Return the header row: the author and the number of a message. `model` is the default model name."""
    author: str = "you" if message.role == "user" else message.role
    if message.role == "assistant":
        reported = message.numbers.get("model")
        author = one_line(model_name(reported if isinstance(reported, str) and reported else model) or "answer")
    runs = (StyledRun(author, message.role), StyledRun(f" #{number}", "muted"))
    return Line(runs, decoration=len(runs), ending="")


def model_name(pair: str) -> str:
    """Return the display name of a model: the last part of its path or hub name, without `.gguf`."""
    return pair.rstrip("/").rpartition("/")[2].removesuffix(".gguf")


def attachment_line(attachment: Attachment) -> StyledRun:
    """Return the row that names an attachment and its number of lines."""
    lines = attachment.text.count("\n") + (not attachment.text.endswith("\n") and bool(attachment.text))
    return StyledRun(f"▸ {one_line(attachment.name)}, {lines} line{'' if lines == 1 else 's'}", "muted")


def footer(message: Message) -> StyledRun | None:
    """Return the row below an answer: why it ended early, and its statistics; None if empty, or for other messages."""
    if message.role != "assistant":
        return None
    parts = [*filter(None, [FINISH_NOTES.get(message.finish, "")]), *_format_numbers(message.numbers)]
    return StyledRun(" · ".join(parts), "muted") if parts else None


def _format_numbers(numbers: Mapping[str, Any]) -> list[str]:
    """Format the statistics of an answer; missing or invalid numbers are left out."""
    tokens, rate = read_number(numbers, "tokens"), read_number(numbers, "tokens_per_second")
    tau, ttft = read_number(numbers, "tau"), read_number(numbers, "ttft_ms")
    return [
        *([f"{tokens:.0f} token{'' if tokens == 1 else 's'}"] if tokens is not None else []),
        *([f"{rate:.0f} tok/s"] if rate else []),
        *([f"τ {tau:.1f}"] if tau and numbers.get("draft", True) else []),
        *([f"first token {ttft / 1000:.2f} s"] if ttft is not None else []),
    ]


def read_number(numbers: Mapping[str, Any], name: str) -> float | None:
    """Return a statistic of an answer; None if it is missing or invalid."""
    value = numbers.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 1e12 else None


def note_run(text: str, kind: str) -> StyledRun:
    """Return a note by the program, marked as an error if `kind` is "error"."""
    mark = "✗" if kind == "error" else "·"
    return StyledRun(f"{mark} {one_line(text)}", "error" if kind == "error" else "note")


def one_line(text: str) -> str:
    """Make text safe to show on one line."""
    return " ".join(sanitize(text).split())
