"""The first minute with localdflash, timed: a fresh environment, the install and its size, a chat, a completion.

`PYTHONPATH=. python -P lab/scripts/first_minute.py --json FILE [--torch torch==2.13.0+cpu]`. The committed sources are
cloned and installed by pip, with only pip's own cache warm. The chat runs on a pseudo-terminal, fetches its model and
is asked three questions; then a few words are typed into Neovim. `--torch` is installed first.
"""

import argparse
import os
import re
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
PATIENCE = 300.0  # seconds
GROWING = 2.0  # seconds in which a suggestion that is shown may grow
MB = 1_000_000
Facts = dict[str, Any]


def install(folder: Path, torch: str) -> Facts:
    """Clone, make the environment, install into it."""
    python, sources = folder / "env" / "bin" / "python", folder / "localdflash"
    cloned = _timed("git", "clone", "--quiet", str(ROOT), str(sources))
    made = _timed(sys.executable, "-m", "venv", str(folder / "env"))
    pip = [str(python), "-m", "pip", "install"]
    first = _timed(*pip, torch) if torch else None
    log = folder / "pip.log"
    installed = _timed(*pip, "--log", str(log), str(sources))
    told = log.read_text("utf-8", "replace")
    sizes = _sizes(folder / "env")
    return {
        "clone": cloned,
        "environment": made,
        "torch": {"version": _version(python, "torch"), **(first or {})},
        "localdflash": installed | {"llama_cpp_python": _origin(told)},
        "megabytes": round(sum(sizes.values()) / MB),
        "largest_megabytes": {name: round(sizes[name] / MB) for name in sorted(sizes, key=lambda one: -sizes[one])[:8]},
    }


def _timed(*command: str) -> Facts:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return {"seconds": round(time.perf_counter() - began, 1)}


def _version(python: Path, package: str) -> str:
    """The version of a package that is installed there."""
    command = [str(python), "-c", f"from importlib.metadata import version; print(version({package!r}))"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _origin(log: str) -> str:
    """Return whether pip compiled llama.cpp."""
    compiled = re.search(r"Building wheel for llama[-_]cpp[-_]python", log)
    return "compiled" if compiled else "out of pip's cache, compiled earlier"


def _sizes(environment: Path) -> dict[str, int]:
    """Bytes on disk by package: by folder of site-packages; libraries go to the package whose they are."""
    sizes: dict[str, int] = {}
    for path in environment.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        _, _, below = path.as_posix().partition("site-packages/")
        name = below.partition("/")[0].removesuffix(".libs") if below else "python"
        sizes[name] = sizes.get(name, 0) + path.stat().st_size
    return sizes


def chat(program: Path, folder: Path, home: Path) -> Facts:
    """Start the chat, agree to its offer, ask."""
    began = time.perf_counter()
    told: Facts = {}
    environment = {"HF_HUB_OFFLINE": "", "LOCALDFLASH_HOME": str(home)}
    with Terminal.start([str(program), "chat"], cwd=str(folder), env=environment) as terminal:
        terminal.wait_for("Fetch it?", PATIENCE)
        told["offer"] = _since(began)
        asked = time.perf_counter()
        terminal.type("y\r")
        terminal.wait_for(READY, PATIENCE)
        told["fetched"] = _since(asked)
        told["questions"] = [_ask(terminal, home, number, text) for number, text in enumerate(QUESTIONS)]
        terminal.press("ctrl+q")
        terminal.wait()
    return told


def _ask(terminal: Terminal, home: Path, number: int, question: str) -> Facts:
    began = time.perf_counter()
    terminal.type(question)
    terminal.press("enter")

    def answered() -> list[Message]:
        terminal.watch(0.05)
        return [one for one in _messages(home) if one.role == "assistant" and one.finish]

    _until(lambda: len(answered()) > number)
    seconds, answer = _since(began), answered()[number]
    told = {name: answer.numbers[name] for name in ("tokens", "ttft_ms", "tokens_per_second", "tau", "model")}
    return {"question": question, "answer": answer.text, "finish": answer.finish, **seconds, **told}


def _messages(home: Path) -> list[Message]:
    store = ChatStore.open(home / "data" / "chats.db", print)
    latest = store.latest()
    messages = store.path(latest.id) if latest else []
    store.close()
    return messages


def completion(program: Path, folder: Path) -> Facts:
    """Open a file in Neovim, begin a line."""
    began = time.perf_counter()
    with nvim_scene.scene(fetch.fetched("neovim"), folder, cmd=[str(program), "lsp"]) as scene:
        scene.open("prices.py", f"{nvim_scene.PRICES}{BODY}\n\n")
        editor = scene.editor
        opened = _since(began)
        editor.keys("Go")
        editor.type(TYPED)
        typed = time.perf_counter()
        editor.until(editor.ghost, "a suggestion", PATIENCE)
        shown = _since(typed)
        time.sleep(GROWING)
        ghost = editor.ghost()
        editor.keys("<Tab>")
        editor.until(lambda: editor.text().endswith(TYPED + ghost), "the text that was accepted")
        return {"opened": opened, "typed": TYPED, "shown": shown, "accepted": ghost}


def _since(began: float) -> Facts:
    return {"seconds": round(time.perf_counter() - began, 1)}


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"


@contextmanager
def _home(folder: Path) -> Iterator[Path]:
    """A LOCALDFLASH_HOME; the engine that was started for it ends with it."""
    home = folder / "h"
    os.environ["LOCALDFLASH_HOME"] = str(home)
    try:
        yield home
    finally:
        subprocess.run([folder / "env" / "bin" / "localdflash", "serve", "--stop"], capture_output=True, check=False)


def main() -> None:
    """Go through it and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="", help="what pip installs first")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # it would show pip these sources as an installed package
    busy = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as top, _home(Path(top)) as home:
        folder, program = Path(top), Path(top) / "env" / "bin" / "localdflash"
        result: Facts = {
            "load_before": round(busy, 1),  # processes that wanted a processor
            "python": sys.version.split()[0],
            "install": install(folder, given.torch),
            "chat": chat(program, folder, home),
            "completion": completion(program, folder),
        }
    result_file.write(given.json, result)


if __name__ == "__main__":
    main()
