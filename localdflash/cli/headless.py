"""One answer for a script: the text on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Iterable
from typing import Literal

from localdflash.cli.interrupt import Interrupt
from localdflash.cli.talking import Reply, Talk
from localdflash.errors import UsageError
from localdflash.text.sanitize import printable, sanitize

Form = Literal["text", "json", "jsonl"]


def piped() -> str:
    """What stdin holds; UsageError where that is no UTF-8."""
    data = sys.stdin.buffer.read() if sys.stdin else b""  # None: started without one
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 at byte {error.start}") from None


def answer_once(talk: Talk, prompt: str, form: Form) -> tuple[int, Reply, str]:
    """Print an answer; the exit code, the reply and its text."""
    parts: list[str] = []
    with Interrupt() as interrupt:
        reply = talk.ask(prompt, interrupt)
        _PRINT[form](collected(reply, parts), reply)
    return (130 if interrupt.set else 0), reply, "".join(parts)


def collected(reply: Reply, parts: list[str]) -> Iterable[str]:
    """The pieces of an answer, each of which joins `parts`."""
    for text in reply:
        parts.append(text)
        yield text


def _print_text(answer: Iterable[str], reply: Reply) -> None:
    print_stream(answer)
    say_if_cut(reply)


def _print_json(answer: Iterable[str], reply: Reply) -> None:
    text = "".join(answer)
    print(json.dumps({"answer": text, "finish": reply.finish, **reply.numbers}, indent=2))


def _print_jsonl(answer: Iterable[str], reply: Reply) -> None:
    for text in answer:
        print(json.dumps({"text": text}), flush=True)
    print(json.dumps({"finish": reply.finish, **reply.numbers}), flush=True)


_PRINT = {"text": _print_text, "json": _print_json, "jsonl": _print_jsonl}


def print_stream(answer: Iterable[str]) -> None:
    """Text as it comes: raw where another program reads it, harmless on a terminal."""
    terminal = sys.stdout.isatty()
    for text in answer:
        sys.stdout.write(sanitize(text) if terminal else text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def say_if_cut(reply: Reply) -> None:
    """Whether an answer is shorter than the model would have made it."""
    if reply.finish == "length":
        say(f"[cut after {reply.numbers['tokens']} tokens: --max-tokens sets how many]")


def say(line: str) -> None:
    """A line for the user, on stderr."""
    print(printable(line), file=sys.stderr, flush=True)
