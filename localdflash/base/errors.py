"""The few errors that a user sees: one line that says what, where and what to do, and an exit code."""


class LocaldflashError(Exception):
    """Base of every error that is shown without a traceback."""

    exit_code = 1


class UsageError(LocaldflashError):
    """The command or the request asks for something that makes no sense (exit code 2)."""

    exit_code = 2


class ModelError(LocaldflashError):
    """A model file, registry entry or pair that cannot be used (exit code 3)."""

    exit_code = 3


class MissingExtra(ModelError):
    """An optional dependency is not installed; the message names the extra that brings it (exit code 3)."""


class ModelNotLoaded(ModelError):
    """A request names a model that is not loaded now, or is no longer (exit code 3)."""


class ModelBusy(LocaldflashError):
    """A model cannot be loaded without taking one away that is answering somebody else (exit code 1)."""


class OutOfMemory(LocaldflashError):
    """What was asked for does not fit into memory (exit code 4)."""

    exit_code = 4


class NoDevice(LocaldflashError):
    """There is no GPU here that the CUDA engine can use (exit code 1)."""


class DeviceFailed(LocaldflashError):
    """The GPU is lost to this process; only a new one can use it (exit code 5, for a supervisor to see)."""

    exit_code = 5


class ContextOverflow(UsageError):
    """The prompt and the answer do not fit into the context (exit code 2)."""


class QueueFull(LocaldflashError):
    """Too many requests wait for the engine (exit code 1)."""


class EngineGone(LocaldflashError):
    """The connection to a server broke, or there is none; the request may be repeated (exit code 1)."""


class TrainingError(LocaldflashError):
    """Training cannot start or go on (exit code 1)."""


class StoreFailed(LocaldflashError):
    """Chats cannot be read or written; what was stored before stays as it is (exit code 1)."""


class StoreLost(StoreFailed):
    """An id is no longer in the file: it was damaged and started anew, or the chat was deleted elsewhere."""
