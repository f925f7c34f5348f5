"""Data classes of a conversation: messages, attachments, verify steps. They are immutable."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant"]
AttachmentKind = Literal["file", "symbol", "paste", "output"]
# Why an answer ended, "" while it grows. length: max_tokens reached; context: full; repeat: loop; gone: daemon lost.
Finish = Literal["", "stop", "length", "context", "repeat", "cancelled", "gone"]
FINISH_NOTES: Mapping[str, str] = {
    "length": "cut: max_tokens was reached",
    "context": "cut: the context was full",
    "repeat": "cut: the text repeated itself",
    "cancelled": "stopped",
    "gone": "cut: the daemon stopped",
}


@dataclass(frozen=True, slots=True)
class Attachment:
    """Text sent with a message: a file, a definition (`name` is `path:symbol`), a paste, or a command's output."""

    kind: AttachmentKind
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Verify step of an answer. `sizes`: number of UTF-8 bytes that each committed token adds to the text."""

    drafter: str  # "" for a step without a draft
    drafted: int  # number of draft tokens
    accepted: int  # number of draft tokens that the target accepted
    sizes: tuple[int, ...]
    ms: float


@dataclass(frozen=True, slots=True)
class Message:
    """Message of a conversation. `text` is the typed or received text, unmodified and without the attachments."""

    role: Role
    text: str
    attachments: tuple[Attachment, ...] = ()
    finish: Finish = ""  # only answers have `finish`, `numbers` and `steps`
    numbers: Mapping[str, Any] = field(default_factory=dict)  # statistics of the answer, made by `AnswerReader.numbers`
    steps: tuple[StepRecord, ...] = ()
    id: int = 0  # id in the store; 0: not stored yet
    created: float = field(default_factory=time.time)  # seconds since 1970


def prompt_text(message: Message) -> str:
    """Return the text sent to the model: each attachment in a code fence under its name, then the message."""
    return "\n\n".join([*(f"{file.name}:\n{fence(file.text)}" for file in message.attachments), message.text])


def fence(text: str, language: str = "") -> str:
    """Return the text in a code fence that is longer than any fence in the text."""
    ticks = 3
    while "`" * ticks in text:
        ticks += 1
    end = "" if text.endswith("\n") else "\n"
    return f"{'`' * ticks}{language}\n{text}{end}{'`' * ticks}"
