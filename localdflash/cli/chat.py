"""`localdflash chat`: a conversation in the terminal, or one answer for a script."""

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Protocol

import click

from localdflash.cli.interrupt import Interrupt
from localdflash.cli.options import daemon_option, pair_options, sampling_options, take_sampling
from localdflash.cli.output import printable
from localdflash.engine.sampling_params import SamplingParams
from localdflash.errors import ContextOverflow, DeviceFailed, LocaldflashError, UsageError
from localdflash.text.sanitize import sanitize

SMALL_MODEL = "This is the small model that ships with localdflash: it knows some Python and little else."
HOW_TO_LEAVE = "Ctrl-C stops an answer; Ctrl-D, or Ctrl-C at the prompt, leaves. /new starts over."


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

    def ask(self, text: str, interrupt: Interrupt) -> Reply:
        """The answer to one more message."""


@click.command()
@click.option("-p", "--prompt", help="Answer this and leave. Without it, text piped to stdin is the prompt.")
@click.option("--system", default="", help="Instructions that stand before the conversation.")
@click.option("--max-tokens", type=click.IntRange(1), default=256, show_default=True, help="Longest answer.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer with its statistics as JSON.")
@click.option("--no-draft", is_flag=True, help="Decode plainly, without the shared engine: the same text, to compare.")
@daemon_option
@pair_options
@sampling_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    prompt: str | None,
    system: str,
    max_tokens: int,
    as_json: bool,
    no_draft: bool,
    no_daemon: bool,
    **options: Any,
) -> int:
    """Talk to the model. The answer goes to stdout, everything else to stderr."""
    params = take_sampling(options)
    if prompt is None and not (sys.stdin and sys.stdin.isatty()):
        prompt = _piped()
    if prompt is not None and not prompt.strip():
        raise UsageError("the prompt is empty: pass text with -p or on stdin")
    if as_json and prompt is None:
        raise UsageError("--json needs a prompt: pass text with -p or on stdin")
    talking = (
        _here(options, no_draft, params, max_tokens, system)
        if no_daemon or no_draft
        else _by_server(ctx, options, params, max_tokens, system)
    )
    with talking as talk:
        if prompt is None:
            return _talk(talk)
        return _answer_once(talk, prompt, as_json)


@contextmanager
def _here(
    options: dict[str, Any], no_draft: bool, params: SamplingParams, max_tokens: int, system: str
) -> Iterator[Talk]:
    """With a pair that this process loads."""
    from localdflash.cli.loading import opened
    from localdflash.conversation import Conversation
    from localdflash.loading import Options

    with opened(Options(**options, draft=not no_draft)) as loaded:
        yield Conversation(loaded, params, max_tokens, system)


@contextmanager
def _by_server(
    ctx: click.Context, options: dict[str, Any], params: SamplingParams, max_tokens: int, system: str
) -> Iterator[Talk]:
    """With the shared engine, or the server that the settings name."""
    from localdflash.cli.remote import RemoteConversation, sampling_fields, server

    with server(ctx, options) as found:
        yield RemoteConversation(found, sampling_fields(params, max_tokens), system)


def _piped() -> str:
    data = sys.stdin.buffer.read() if sys.stdin else b""  # None: started without one
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 at byte {error.start}") from None


def _answer_once(talk: Talk, prompt: str, as_json: bool) -> int:
    with Interrupt() as interrupt:
        reply = talk.ask(prompt, interrupt)
        if as_json:
            text = "".join(reply)
            print(json.dumps({"answer": text, "finish": reply.finish, **reply.numbers}, indent=2))
        else:
            _print_stream(reply)
            _say_if_cut(reply)
    return 130 if interrupt.set else 0


def _print_stream(answer: Iterable[str]) -> None:
    terminal = sys.stdout.isatty()
    for text in answer:
        sys.stdout.write(sanitize(text) if terminal else text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def _talk(talk: Talk) -> int:
    if talk.pair == "embedded":
        _say(f"{SMALL_MODEL} `localdflash models list` names larger pairs.")
    _say(HOW_TO_LEAVE)
    with suppress(ImportError):
        import_module("readline")  # gives `input` arrow keys and a history
    while True:
        try:
            line = _read_line()
        except (EOFError, KeyboardInterrupt):
            _say("")
            return 0
        if line.strip() == "/new":
            talk.clear()
            _say("A new conversation.")
        elif re.fullmatch(r"/\w*", line.strip()):
            _say(f"There is no {line.strip()}. {HOW_TO_LEAVE}")
        elif line.strip():
            _exchange(talk, line)


def _read_line() -> str:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if sys.stdout.isatty():
        return input("> ")
    print("> ", end="", file=sys.stderr, flush=True)
    return input()


def _exchange(talk: Talk, line: str) -> None:
    try:
        with Interrupt() as interrupt:
            reply = talk.ask(line, interrupt)
            _print_stream(reply)
            _say_if_cut(reply)
    except ContextOverflow as error:
        _say(f"{error}, or start over with /new")
    except DeviceFailed:  # that of this process: no question can be answered any more
        raise
    except LocaldflashError as error:  # the conversation is still here: the question can be asked again
        _say(str(error))
    else:
        _say(_summary(reply))


def _summary(reply: Reply) -> str:
    match reply.numbers:
        case {"tokens": tokens, "tokens_per_second": speed, "tau": tau}:
            return f"[{tokens} tokens, {speed:.0f} a second, {tau:.2f} per verify]"
        case {"tokens": tokens}:  # another server says no more
            return f"[{tokens} tokens]"
    return "[stopped]"


def _say_if_cut(reply: Reply) -> None:
    if reply.finish == "length":
        _say(f"[cut after {reply.numbers['tokens']} tokens: --max-tokens sets how many]")


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
