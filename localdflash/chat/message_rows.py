"""A message as a row of the database, and back: attachments, numbers and steps are JSON."""

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from localdflash.base.errors import StoreFailed
from localdflash.chat.messages import Attachment, Message, StepRecord
from localdflash.chat.schema import encode_text

if TYPE_CHECKING:
    from msgspec.json import Decoder

COLUMNS = ("created", "role", "finish", "text", "attachments", "numbers", "steps")
PLACES = "?, ?, ?, " + ", ".join(["CAST(? AS TEXT)"] * 4)


def to_row(message: Message) -> tuple[Any, ...]:
    """Return the values of COLUMNS, for PLACES."""
    return (
        *(message.created, message.role, message.finish, encode_text(message.text)),
        _json([(one.kind, one.name, one.text) for one in message.attachments]),
        _json(dict(message.numbers)),
        _steps_json(message.steps),
    )


def from_row(row: tuple[Any, ...]) -> Message:
    """Return the message of a row `id, *COLUMNS`; StoreFailed if the row is damaged."""
    number, created, role, finish, text, attachments, numbers, steps = row
    try:
        return Message(
            role=role,
            text=text,
            attachments=tuple(Attachment(*one) for one in json.loads(attachments)) if attachments != "[]" else (),
            finish=finish,
            numbers=json.loads(numbers) if numbers != "{}" else {},
            steps=_step_decoder().decode(steps) if steps != "[]" else (),
            id=number,
            created=created,
        )
    except (ValueError, TypeError) as error:
        raise StoreFailed(f"message {number} is damaged and cannot be read") from error


def _json(value: object) -> bytes:
    # Not as ASCII: two lone surrogates side by side would come back as one character.
    return encode_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


# Steps are many: 40 000 in a chat of 1 000 messages, which msgspec reads in a third of the time that json needs.


def _steps_json(steps: tuple[StepRecord, ...]) -> bytes:
    if not steps:
        return b"[]"
    from msgspec.json import encode

    return encode(steps)


@cache
def _step_decoder() -> "Decoder[tuple[StepRecord, ...]]":
    from msgspec.json import Decoder

    return Decoder(tuple[StepRecord, ...])
