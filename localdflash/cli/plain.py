"""The chat line by line: for screen readers, for simple terminals, and for pipes."""

import io
import re
import sys
from contextlib import suppress
from importlib import import_module

from localdflash.chat.messages import Message
from localdflash.cli.headless import print_answer
from localdflash.cli.output import say
from localdflash.cli.talking import Talking
from localdflash.errors import ContextOverflow, DeviceFailed, LocaldflashError

SMALL_MODEL = "This is the small model that ships with localdflash: it knows some Python and little else."
HOW_TO_LEAVE = "Ctrl-C stops an answer; Ctrl-D, or Ctrl-C at the prompt, leaves. /new starts over."


def converse(talking: Talking) -> int:
    """Ask for lines and answer them until the input ends; return the exit code."""
    if talking.pair == "embedded":
        say(f"{SMALL_MODEL} `localdflash models list` names larger pairs.")
    say(HOW_TO_LEAVE)
    with suppress(ImportError):
        import_module("readline")  # gives `input` arrow keys and a history
    while True:
        try:
            line = _read_line()
        except (EOFError, KeyboardInterrupt):
            say("")
            return 0
        if line.strip() == "/new":
            talking.new()
            say("A new conversation.")
        elif re.fullmatch(r"/\w*", line.strip()):
            say(f"There is no {line.strip()}. {HOW_TO_LEAVE}")
        elif line.strip():
            exchange(talking, line)


def _read_line() -> str:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if sys.stdout.isatty():
        return input("> ")
    print("> ", end="", file=sys.stderr, flush=True)
    return input()


def exchange(talking: Talking, line: str) -> None:
    """Send one message and print its answer; errors are printed, and the conversation goes on."""
    try:
        answer = print_answer(talking, line)
    except ContextOverflow as error:
        say(f"{error}, or start over with /new")
    except DeviceFailed:  # that of this process: no question can be answered any more
        raise
    except LocaldflashError as error:  # the conversation is still here: the question can be asked again
        say(str(error))
    else:
        say(_summary(answer))


def _summary(answer: Message) -> str:
    match answer.numbers:
        case {"tokens": tokens, "tokens_per_second": speed, "tau": tau}:
            return f"[{tokens} tokens, {speed:.0f} a second, {tau:.2f} per verify]"
        case {"tokens": tokens}:  # another server says no more
            return f"[{tokens} tokens]"
    return "[stopped]"
