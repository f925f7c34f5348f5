"""The errors that a server's answers report, as those that the engine would have raised in this process."""

import json
from typing import Any

from localdflash.base.errors import (
    ContextOverflow,
    DeviceFailed,
    EngineGone,
    LocaldflashError,
    ModelBusy,
    ModelError,
    ModelNotLoaded,
    OutOfMemory,
    QueueFull,
    UsageError,
)

Json = dict[str, Any]

_ERRORS: dict[str, type[LocaldflashError]] = {
    "context_length_exceeded": ContextOverflow,
    "unsupported_by_model": ModelError,
    "model_not_found": ModelNotLoaded,
    "model_not_loaded": ModelNotLoaded,
    "model_changed": ModelNotLoaded,
    "model_busy": ModelBusy,
    "queue_full": QueueFull,
    "out_of_memory": OutOfMemory,
    "device_failed": DeviceFailed,
    "engine_stopped": EngineGone,
}


def refusal(content: str | bytes, status: int) -> LocaldflashError:
    """Return the error in the body of an answer with this status."""
    try:
        return error_of(json_object(content), status)
    except LocaldflashError:
        return error_of({}, status)


def error_of(content: Json, status: int) -> LocaldflashError:
    """Return the error in a body of OpenAI's shape; for servers that say less, a line with the status."""
    about = content.get("error")
    about = about if isinstance(about, dict) else {"message": about}
    nonsense = f"status {status}" if status >= 300 else "something that makes no sense"
    message = about.get("message") or content.get("detail") or f"the server answered with {nonsense}"
    kind = _ERRORS.get(str(about.get("code"))) or (UsageError if 400 <= status < 500 else LocaldflashError)
    return kind(str(message))


def json_object(content: str | bytes) -> Json:
    """Return the body as a JSON object; LocaldflashError if it is none."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise LocaldflashError("the server answered with something that is no JSON object: is this its address?")
    return value
