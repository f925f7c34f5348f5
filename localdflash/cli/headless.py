"""One answer for a script: the text on stdout, everything else on stderr."""

import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from localdflash.base.errors import UsageError
from localdflash.chat.messages import Attachment, Message
from localdflash.cli.output import print_json, print_json_line, say
from localdflash.cli.talking import Show, Talking
from localdflash.text.sanitize import sanitize
from localdflash.text.thoughts import split
from localdflash.tui.captions import model_name

Form = Literal["text", "json", "jsonl"]
LARGEST = 16 * 2**20  # bytes of stdin, as many as the engine takes in a request
_COUNTED = ("tokens", "steps", "tau", "drafted", "accepted", "accept_by_slot", "steps_by_drafter")


def piped() -> str:
    """The text on stdin; UsageError if it is not UTF-8, or more than any context holds."""
    data = sys.stdin.buffer.read(LARGEST + 1) if sys.stdin else b""  # None: started without one
    if len(data) > LARGEST:
        raise UsageError(f"stdin has more than {LARGEST // 2**20} MiB, which no context holds: pipe a part of it")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 at byte {error.start}") from None


def piped_beside() -> tuple[Attachment, ...]:
    """What is piped, or read from a file, beside a prompt of its own; nothing where stdin is neither, or empty."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is none, or it is no file
        return ()
    if not (stat.S_ISFIFO(kind) or stat.S_ISREG(kind) or stat.S_ISSOCK(kind)):  # a terminal, /dev/null
        return ()
    text = piped()
    return (Attachment("output", "stdin", text),) if text.strip() else ()


def answer_once(talking: Talking, prompt: str, form: Form, attachments: Sequence[Attachment] = ()) -> int:
    """Print an answer; return the exit code."""
    match form:
        case "text":
            answer = print_answer(lambda show, think: talking.ask(prompt, show, think, attachments))
            if sys.stderr.isatty() and "model" in answer.numbers:
                say(f"[{model_name(str(answer.numbers['model']))}]")
        case "json":
            answer = talking.ask(prompt, lambda _: None, attachments=attachments)
            thoughts, said, _ = split(answer.text)
            print_json({**({"thoughts": thoughts} if thoughts else {}), "answer": said, **_told(answer)})
        case "jsonl":
            answer = talking.ask(prompt, _line("text"), _line("thoughts"), attachments)
            print_json_line(_told(answer))
    return 130 if talking.interrupt.set else 0


def _line(name: str) -> Show:
    """A function that prints text as a JSON line under this name."""
    return lambda text: print_json_line({name: text})


def print_answer(ask: Callable[[Show, Show], Message]) -> Message:
    """Print an answer as it comes, without what was thought before it; say so if it is shorter than the model would
    have made it. `ask` gets what shows text, and what is told of thoughts.
    """
    show = _printing()
    answer = ask(show, _Thinking().tell)
    show("\n")
    if answer.finish == "repeat":
        say("[cut: it said the same again and again]")
    if answer.finish == "length" and "tokens" in answer.numbers:
        say(f"[cut after {answer.numbers['tokens']} tokens: --max-tokens sets how many]")
    return answer


class _Thinking:
    """Says on a terminal, once, why nothing comes yet."""

    def __init__(self) -> None:
        self._told = not sys.stderr.isatty()

    def tell(self, _thoughts: str) -> None:
        if not self._told:
            self._told = True
            say("[thinking]")


def _printing() -> Show:
    """A function that prints text: as it is for another program, made harmless on a terminal."""
    terminal = sys.stdout.isatty()

    def show(text: str) -> None:
        sys.stdout.write(sanitize(text) if terminal else text)
        sys.stdout.flush()

    return show


def _told(answer: Message) -> dict[str, Any]:
    model = {"model": answer.numbers["model"]} if "model" in answer.numbers else {}
    return {"finish": answer.finish, **model, **statistics(answer.numbers)}


def statistics(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of an answer that a command prints; of another server tokens and their speed at most."""
    if "steps" not in numbers:
        return {name: numbers[name] for name in ("tokens", "tokens_per_second") if name in numbers}
    by_drafter = {name or "none": steps for name, steps in numbers["steps_by_drafter"].items()}
    told = {name: numbers[name] for name in _COUNTED} | {"steps_by_drafter": by_drafter}
    told["ms"] = numbers.get("ms") or {"prompt": numbers.get("prompt_ms", 0.0), "answer": numbers.get("answer_ms", 0.0)}
    return {**told, "tokens_per_second": round(numbers["tokens_per_second"], 1)}
