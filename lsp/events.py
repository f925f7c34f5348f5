"""The events of a completion, as the daemon sends them."""

from typing import Annotated, NotRequired, TypedDict

import msgspec

from localdflash.server.refusals import refusal


class Timings(TypedDict):
    """How an answer was made; only the times that are shown."""

    predicted_per_second: NotRequired[float]


class Event(TypedDict):
    """A part of an answer; the last one of its index has a `finish`."""

    index: Annotated[int, msgspec.Meta(ge=0)]
    text: str
    confidence: NotRequired[float | None]
    finish: NotRequired[str]
    tokens: NotRequired[int]
    tau: NotRequired[float]
    timings: NotRequired[Timings]


def decode(data: bytes) -> Event:
    """Decode an event; LocaldflashError if it reports an error or is not an event."""
    try:
        return msgspec.json.decode(data, type=Event)
    except (msgspec.DecodeError, RecursionError):  # which bad UTF-8 is, too
        raise refusal(data, 200) from None
