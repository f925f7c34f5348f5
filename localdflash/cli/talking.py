"""A conversation for commands that print: with the shared engine, another server, or a pair that this process loads."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import click

from localdflash.cli.interrupt import Interrupt
from localdflash.engine.sampling_params import SamplingParams


class Reply(Protocol):
    """Iterate for an answer's text; `finish` and `numbers` tell afterwards how it went."""

    def __iter__(self) -> Iterator[str]: ...

    @property
    def finish(self) -> str:
        """Why it ended: "stop", "length", "context" or "cancelled"."""

    @property
    def numbers(self) -> dict[str, Any]:
        """Its statistics, at least `tokens`."""


class Talk(Protocol):
    """A conversation with a pair, wherever that runs."""

    @property
    def pair(self) -> str:
        """The name of the pair."""

    def clear(self) -> None:
        """Start over."""

    def recall(self, system: str, messages: Sequence[tuple[str, str]]) -> None:
        """Go on from these instructions and messages: (role, text), "user" or "assistant"."""

    def ask(self, text: str, interrupt: Interrupt) -> Reply:
        """The answer to one more message."""


@contextmanager
def here(
    options: dict[str, Any], no_draft: bool, params: SamplingParams, max_tokens: int, system: str
) -> Iterator[Talk]:
    """With a pair that this process loads."""
    from localdflash.answers.conversation import Conversation
    from localdflash.backend.options import Options
    from localdflash.cli.loading import opened

    with opened(Options(**options, draft=not no_draft)) as loaded:
        yield Conversation(loaded, params, max_tokens, system)


@contextmanager
def by_server(
    ctx: click.Context, options: dict[str, Any], params: SamplingParams, max_tokens: int, system: str
) -> Iterator[Talk]:
    """With the shared engine, or the server that the settings name."""
    from localdflash.cli.remote import RemoteConversation, sampling_fields, server

    with server(ctx, options) as found:
        yield RemoteConversation(found, sampling_fields(params, max_tokens), system)
