"""Training prompts from a user's file, repository or chats; all data stay on this machine."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from localdflash.base.errors import TrainingError
from localdflash.chat.messages import Message, prompt_text
from localdflash.chat.store import ChatStore
from localdflash.lab.train import corpus, training_prompts
from localdflash.lab.train.questions import Question

HELD_OUT_EVERY = 8  # one file, line or chat in 8 is held out
MAX_FILE_BYTES = 64 << 20
MAX_SOURCES = 20_000  # files of a repository
MAX_CHATS = 5_000
SKIPPED = frozenset({"node_modules", "site-packages", "build", "dist", "__pycache__", "venv", "env"})


def of_file(path: Path) -> Iterator[Question]:
    """Yield the questions of a JSON Lines file of strings or objects with a `text`; TrainingError for a bad line."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise TrainingError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; split it")
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # `splitlines` would split at U+2028 in a text
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            text = _text_of(line)
            if text is None:
                raise TrainingError(f'{path}: line {number}: not a prompt (expected {{"text": "What is ...?"}})')
            yield Question("own", text, _held_out(text))


def _text_of(line: str) -> str | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    text = value.get("text") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text.strip() else None


def of_repository(folder: Path, seed: int) -> Iterator[Question]:
    """Yield questions about the Python files below a folder, mixed with general questions; whole files are held out."""
    sources: dict[bool, list[str]] = {False: [], True: []}
    for path in _python_files(folder):
        text = corpus.source_text(path.read_bytes())
        if text is not None:
            sources[held_out_file(path, folder)].append(text)
    if not sources[False]:
        raise TrainingError(f"{folder}: no Python file of 200 to 80 000 bytes; choose another folder")
    return training_prompts.of_sources(sources, seed)


def held_out_file(path: Path, folder: Path) -> bool:
    """Return whether a file of a repository is held out: not trained on, only measured."""
    return _held_out(path.relative_to(folder).as_posix())


def _python_files(folder: Path) -> Iterator[Path]:
    """Yield source files outside hidden folders, environments and builds; links are not followed."""
    count = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        for name in sorted(names):
            path = Path(parent, name)
            if not name.endswith(".py") or path.is_symlink() or not path.is_file():
                continue
            if count == MAX_SOURCES:
                return
            count += 1
            yield path


def of_chats(path: Path) -> Iterator[Question]:
    """Yield the questions of stored chats with their earlier turns, newest chats first."""
    if not path.is_file():
        raise TrainingError(f"{path}: no chats on this machine")
    store = ChatStore(path, lambda _line: None)
    try:
        for chat in store.sessions(limit=MAX_CHATS):
            yield from _of_chat(store.branch(chat.id), _held_out(str(chat.id)))
    finally:
        store.close()


def _of_chat(messages: list[Message], held_out: bool) -> Iterator[Question]:
    earlier_turns: list[str] = []
    for message in messages:
        text = prompt_text(message) if message.role == "user" else message.text
        if message.role == "system" or not text.strip():
            continue
        is_question = message.role == "user"
        if is_question != (len(earlier_turns) % 2 == 0):
            return  # a question that was never answered, or an answer to nothing
        if is_question:
            yield Question("chat", text, held_out, tuple(earlier_turns))
        earlier_turns.append(text)


def _held_out(name: str) -> bool:
    return crc32(name.encode("utf-8", "surrogatepass")) % HELD_OUT_EVERY == 0
