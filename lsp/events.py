"""The events of a completion, as the daemon tells them."""

from typing import Annotated, NotRequired, TypedDict

import msgspec

from localdflash.server.refusals import refusal


class Timings(TypedDict):
    """How an answer was made; of its times only what is shown."""

    predicted_per_second: NotRequired[float]


class Event(TypedDict):
    """A part of an answer; with `finish` the last one of its index."""

    index: Annotated[int, msgspec.Meta(ge=0)]
    text: str
    confidence: NotRequired[float | None]
    finish: NotRequired[str]
    tokens: NotRequired[int]
    tau: NotRequired[float]
    timings: NotRequired[Timings]


def decode(data: bytes) -> Event:
    """An event; LocaldflashError where it tells of an error, or is no event."""
    try:
        return msgspec.json.decode(data, type=Event)
    except (msgspec.DecodeError, RecursionError):  # which bad UTF-8 is, too
        raise refusal(data, 200) from None
