"""How commands ask a server for completions, even if the engine goes away meanwhile.

A request holds everything that decides the text, so that it can be repeated: the answer is the same one.
"""

import asyncio
import secrets
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from localdflash.base.errors import DeviceFailed, EngineGone, UsageError
from localdflash.cli.interrupt import Interrupt
from localdflash.cli.options import wanted
from localdflash.cli.output import say
from localdflash.engine.sampling_params import SamplingParams
from localdflash.models.config import load_config
from localdflash.server.client import Client
from localdflash.server.refusals import Json
from localdflash.server.spawn import connect
from localdflash.server.wanted import PairRole

if TYPE_CHECKING:
    from localdflash.lsp.engine_completer import Event
    from localdflash.lsp.foreign.named import NamedEngine

RESTARTS = 2  # that one answer may need
GONE = "The engine went away: started again."


class Filled(NamedTuple):
    """The inserted text, why it ended, its statistics, and the prompt if that is known."""

    text: str
    finish: str
    numbers: dict[str, Any]
    explained: dict[str, Any]


def own_engine(ctx: click.Context, options: dict[str, Any], option: str, role: PairRole | None = None) -> Client:
    """A client of our engine, for an option of `bench` that measures the pair of a role."""
    if load_config().server.url:
        raise UsageError(f"bench {option} measures localdflash's own engine: take [server] url out of the settings")
    return connect(wanted(ctx, options, role), say)


def fill(ctx: click.Context, options: dict[str, Any], body: Mapping[str, object], interrupt: Interrupt) -> Filled:
    """A completion by our engine (see /complete); if interrupted, the part of it that came."""
    engine = wanted(ctx, options, "completion")
    client = connect(engine, say)
    for left in reversed(range(RESTARTS + 1)):
        try:
            return _asked(client, "/complete", body, interrupt)
        except (EngineGone, DeviceFailed) as error:
            if not left:
                raise _again(error) from None
        client = connect(engine, say)
        say(GONE)
    raise AssertionError


def fill_by_another(engine: "NamedEngine", body: Mapping[str, object], interrupt: Interrupt) -> Filled:
    """A completion by the server that the settings name, ended as by our engine; if interrupted, what came of it."""
    text, finish = "", "cancelled"
    numbers: dict[str, Any] = {}
    try:
        with interrupt:
            for event in interrupt.each(_events_of(engine, body)):
                text += event["text"]
                finish = event.get("finish", finish)
                if "finish" in event:
                    numbers = {"tokens": event.get("tokens", 0)}
    except EngineGone as error:
        raise _again(error) from None
    return Filled(text, finish, numbers, {})


def _events_of(engine: "NamedEngine", body: Mapping[str, object]) -> "Generator[Event, None, None]":
    from localdflash.lsp.foreign.finding import find

    with asyncio.Runner() as runner:
        source = runner.run(find(engine.address(), engine.model))
        events = source.complete(body)

        async def following() -> "Event | None":
            return await anext(events, None)

        try:
            while event := runner.run(following()):
                yield event
        finally:
            source.close()


def _again(error: Exception) -> EngineGone:
    return EngineGone(f"{error}: try again")


def _asked(client: Client, target: str, body: Mapping[str, object], interrupt: Interrupt) -> Filled:
    text, finish = "", "cancelled"
    numbers: dict[str, Any] = {}
    explained: dict[str, Any] = {}
    with interrupt:
        for event in interrupt.each(client.stream(target, {**body, "stream": True})):
            explained = {name: event[name] for name in ("prompt", "budget") if name in event} or explained
            if timings := event.get("timings"):
                numbers = _numbers(timings)
            elif (usage := event.get("usage")) and not numbers:
                numbers = {"tokens": usage.get("completion_tokens", 0)}
            choice = next(iter(event.get("choices") or ()), event)
            finish = choice.get("finish_reason") or choice.get("finish") or finish
            text += choice.get("text") or ""
    return Filled(text, finish, numbers, explained)


def sampling_fields(params: SamplingParams, max_tokens: int) -> dict[str, object]:
    """A request's fields for these parameters; those that ask for nothing are left out.

    Sampling without a seed gets one, so that a repeated request gives the same answer.
    """
    fields: dict[str, object] = {"temperature": params.temperature, "max_tokens": max_tokens}
    nothing = SamplingParams()
    for name in ("top_k", "top_p", "min_p", "repetition_penalty"):
        if (value := getattr(params, name)) != getattr(nothing, name):
            fields[name] = value
    if params.temperature:
        fields["seed"] = secrets.randbits(31) if params.seed is None else params.seed
    return fields


def _numbers(timings: Json) -> dict[str, Any]:
    """The statistics that the commands print."""
    return {
        "tokens": timings.get("predicted_n", 0),
        "steps": timings.get("steps", 0),
        "tau": timings.get("tau", 0.0),
        "drafted": timings.get("draft_n", 0),
        "accepted": timings.get("draft_n_accepted", 0),
        "accept_by_slot": timings.get("accept_by_slot", []),
        "steps_by_drafter": timings.get("steps_by_drafter", {}),
        "ms": {"prompt": timings.get("prompt_ms", 0.0), "answer": timings.get("predicted_ms", 0.0)},
        "tokens_per_second": round(timings.get("predicted_per_second", 0.0), 1),
    }
