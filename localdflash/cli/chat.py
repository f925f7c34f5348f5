"""`localdflash chat`: a conversation in the terminal, or one answer for a script."""

import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from localdflash.cli.interrupt import Interrupt
from localdflash.cli.options import pair_options, sampling, sampling_options
from localdflash.errors import ContextOverflow, UsageError
from localdflash.text.sanitize import sanitize

SMALL_MODEL = "This is the small model that ships with localdflash: it knows some Python and little else."
HOW_TO_LEAVE = "Ctrl-C stops an answer; Ctrl-D, or Ctrl-C at the prompt, leaves. /new starts over."


@click.command()
@click.option("-p", "--prompt", help="Answer this and leave. Without it, text piped to stdin is the prompt.")
@click.option("--system", default="", help="Instructions that stand before the conversation.")
@click.option("--max-tokens", type=click.IntRange(1), default=256, show_default=True, help="Longest answer.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer with its statistics as JSON.")
@click.option("--no-draft", is_flag=True, help="Decode plainly: the same text, to compare.")
@pair_options
@sampling_options
def command(
    prompt: str | None,
    system: str,
    max_tokens: int,
    as_json: bool,
    no_draft: bool,
    pair: str,
    backend: Any,
    threads: int,
    context: int,
    kv: str,
    drafter_bits: int,
    native_fp4: bool,
    **options: Any,
) -> int:
    """Talk to the model. The answer goes to stdout, everything else to stderr."""
    params = sampling(**options)
    if prompt is None and not (sys.stdin and sys.stdin.isatty()):
        prompt = _piped()
    if prompt is not None and not prompt.strip():
        raise UsageError("the prompt is empty: pass text with -p or on stdin")
    if as_json and prompt is None:
        raise UsageError("--json needs a prompt: pass text with -p or on stdin")
    from localdflash.cli.loading import opened
    from localdflash.conversation import Conversation
    from localdflash.loading import Options

    settings = Options(
        pair, backend, threads, context, not no_draft, drafter_bits=drafter_bits, native_fp4=native_fp4, kv=kv
    )
    with opened(settings) as loaded:
        conversation = Conversation(loaded, params, max_tokens, system)
        if prompt is None:
            return _talk(conversation)
        return _answer_once(conversation, prompt, as_json)


def _piped() -> str:
    data = sys.stdin.buffer.read() if sys.stdin else b""  # None: started without one
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 at byte {error.start}") from None


def _answer_once(conversation: Any, prompt: str, as_json: bool) -> int:
    with Interrupt() as interrupt:
        answer = conversation.ask(prompt, interrupt)
        if as_json:
            text = "".join(answer)
            request = answer.request
            print(json.dumps({"answer": text, "finish": request.finish, **request.stats.as_dict()}, indent=2))
        else:
            _print_stream(answer)
            _say_if_cut(answer)
    return 130 if interrupt.set else 0


def _print_stream(answer: Iterator[str]) -> None:
    terminal = sys.stdout.isatty()
    for text in answer:
        sys.stdout.write(sanitize(text) if terminal else text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def _talk(conversation: Any) -> int:
    if conversation.loaded.options.pair == "embedded":
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
            conversation.clear()
            _say("A new conversation.")
        elif re.fullmatch(r"/\w*", line.strip()):
            _say(f"There is no {line.strip()}. {HOW_TO_LEAVE}")
        elif line.strip():
            _exchange(conversation, line)


def _read_line() -> str:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if sys.stdout.isatty():
        return input("> ")
    print("> ", end="", file=sys.stderr, flush=True)
    return input()


def _exchange(conversation: Any, line: str) -> None:
    try:
        with Interrupt() as interrupt:
            answer = conversation.ask(line, interrupt)
            _print_stream(answer)
            _say_if_cut(answer)
    except ContextOverflow as error:
        _say(f"{error}, or start over with /new")
        return
    stats = answer.request.stats
    _say(f"[{stats.tokens} tokens, {stats.tokens_per_second:.0f} a second, {stats.tau:.2f} per verify]")


def _say_if_cut(answer: Any) -> None:
    if answer.request.finish == "length":
        _say(f"[cut after {answer.request.stats.tokens} tokens: --max-tokens sets how many]")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
