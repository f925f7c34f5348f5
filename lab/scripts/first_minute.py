"""Measure a new user's first minute: clone, `make setup`, sizes on disk, a chat, a completion.

`PYTHONPATH=. python -P lab/scripts/first_minute.py --json FILE`. The script clones the committed sources, sets them up
as the README says, asks the chat three questions in a pseudo-terminal, and types a line in Neovim. Only
pip's cache is warm. All files are in a temporary folder.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localdflash.chat.messages import Message
from localdflash.chat.store import ChatStore
from localdflash.lab import result_file
from localdflash.lab.scripts.editors import fetch, nvim_scene
from localdflash.lab.scripts.nvim_picture import BODY, TYPED
from localdflash.lab.scripts.support.bench_daemon import ROOT
from localdflash.lab.scripts.support.terminal import READY, Terminal

QUESTIONS = (
    "What is the difference between a list and a tuple in Python?",
    "Write a Python function that returns the factorial of a number.",
    "How do I read a file line by line in Python?",
)
TIMEOUT_SECONDS = 300.0
GROWTH_SECONDS = 2.0  # time for a visible suggestion to become longer
Facts = dict[str, Any]


def install(sources: Path, home: Path) -> Facts:
    """Clone and set up; return seconds and megabytes on disk."""
    began = time.perf_counter()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(sources)], check=True)
    subprocess.run(["make", "setup"], cwd=sources, check=True, capture_output=True)
    took = _since(began)
    return took | {"environment_mb": _megabytes(sources / ".venv"), "models_mb": _megabytes(home)}


def _megabytes(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return round(sum(path.stat().st_size for path in files) / 1_000_000)


def chat(program: Path, folder: Path, home: Path) -> Facts:
    """Start the chat and ask `QUESTIONS`; return the seconds until the prompt appeared, and each answer's facts."""
    began = time.perf_counter()
    with Terminal.start([str(program), "chat"], cwd=str(folder), env={"LOCALDFLASH_HOME": str(home)}) as terminal:
        terminal.wait_for(READY, TIMEOUT_SECONDS)
        found: Facts = {"prompt": _since(began)}
        found["questions"] = [_ask(terminal, home, number, text) for number, text in enumerate(QUESTIONS)]
        terminal.press("ctrl+q")
        terminal.wait()
    return found


def _ask(terminal: Terminal, home: Path, number: int, question: str) -> Facts:
    began = time.perf_counter()
    terminal.type(question)
    terminal.press("enter")

    def finished_answers() -> list[Message]:
        terminal.watch(0.05)
        return [message for message in _messages(home) if message.role == "assistant" and message.finish]

    _wait_until(lambda: len(finished_answers()) > number)
    seconds, answer = _since(began), finished_answers()[number]
    numbers = {name: answer.numbers[name] for name in ("tokens", "ttft_ms", "tokens_per_second", "tau", "model")}
    return {"question": question, "answer": answer.text, "finish": answer.finish, **seconds, **numbers}


def _messages(home: Path) -> list[Message]:
    store = ChatStore(home / "data" / "chats.db", print)
    latest = store.latest()
    messages = store.branch(latest.id) if latest else []
    store.close()
    return messages


def completion(program: Path, folder: Path) -> Facts:
    """Open a file in Neovim, type the start of a line and accept the suggestion; return the times and the text."""
    began = time.perf_counter()
    with nvim_scene.scene(fetch.fetch_program("neovim"), folder, cmd=[str(program), "lsp"]) as scene:
        scene.open("prices.py", f"{nvim_scene.PRICES}{BODY}\n\n")
        editor = scene.editor
        opened = _since(began)
        editor.keys("Go")
        editor.type(TYPED)
        typed = time.perf_counter()
        editor.until(editor.ghost, "a suggestion", TIMEOUT_SECONDS)
        shown = _since(typed)
        time.sleep(GROWTH_SECONDS)
        ghost = editor.ghost()
        editor.keys("<Tab>")
        editor.until(lambda: editor.text().endswith(TYPED + ghost), "the text that was accepted")
        return {"opened": opened, "typed": TYPED, "shown": shown, "accepted": ghost}


def _since(began: float) -> Facts:
    return {"seconds": round(time.perf_counter() - began, 1)}


def _wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"


@contextmanager
def _home(folder: Path) -> Iterator[Path]:
    """Set LOCALDFLASH_HOME; stop its daemon at the end."""
    home = folder / "h"
    os.environ["LOCALDFLASH_HOME"] = str(home)
    try:
        yield home
    finally:
        subprocess.run([program_in(folder), "serve", "--stop"], capture_output=True, check=False)


def program_in(folder: Path) -> Path:
    """Return the installed program."""
    return folder / "localdflash" / ".venv" / "bin" / "localdflash"


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # it would show pip these sources as an installed package
    busy = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as top, _home(Path(top)) as home:
        folder = Path(top)
        result: Facts = {
            "load_before": round(busy, 1),  # load average of the last minute
            "python": sys.version.split()[0],
            "install": install(folder / "localdflash", home),
            "chat": chat(program_in(folder), folder, home),
            "completion": completion(program_in(folder), folder),
        }
        result["models_mb_in_use"] = _megabytes(home)
    result_file.write(given.json, result)


if __name__ == "__main__":
    main()
