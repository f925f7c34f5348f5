"""Errors that users see: one line with the subject, the problem and the remedy, and an exit code."""

from collections.abc import Collection


class LocaldflashError(Exception):
    """Base of all errors that are shown without a traceback (exit code 1)."""

    exit_code = 1


class UsageError(LocaldflashError):
    """Invalid command or request (exit code 2)."""

    exit_code = 2


class ModelError(LocaldflashError):
    """Unusable model file, registry entry or pair (exit code 3)."""

    exit_code = 3


class MissingExtra(ModelError):
    """An optional dependency is not installed; the message names its extra (exit code 3)."""


class NoLoadedModel(ModelError):
    """A request names a model that is not loaded (exit code 3)."""


class ModelBusy(LocaldflashError):
    """A model cannot be loaded without unloading a busy one (exit code 1)."""


class OutOfMemory(LocaldflashError):
    """The model or context does not fit into memory (exit code 4)."""

    exit_code = 4


class NoDevice(LocaldflashError):
    """The CUDA engine finds no GPU that it can use (exit code 1)."""


class DeviceError(LocaldflashError):
    """The current process has lost its GPU. A new process can use it (exit code 5, so that a supervisor restarts)."""

    exit_code = 5


class ContextOverflow(UsageError):
    """The prompt and the answer do not fit into the context (exit code 2)."""


class QueueFull(LocaldflashError):
    """Too many requests are queued (exit code 1)."""


class EngineDisconnect(LocaldflashError):
    """The connection to a server is lost or refused; the request may be repeated (exit code 1)."""


class TrainingError(LocaldflashError):
    """Training cannot start or continue (exit code 1)."""


class StoreError(LocaldflashError):
    """Chats cannot be read or written; stored chats are unchanged (exit code 1)."""


class StoreLost(StoreError):
    """A chat is no longer in the database, because it was deleted or the damaged database was recreated."""


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known word, "" if none is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, known, 1) or get_close_matches(word.lower(), known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
