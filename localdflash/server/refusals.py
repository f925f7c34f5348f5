"""Convert error responses of a server to the exceptions that the engine would raise in this process."""

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
    """Return the exception for an error response with this status and body."""
    try:
        return error_of(json_object(content), status)
    except LocaldflashError:
        return error_of({}, status)


def error_of(content: Json, status: int) -> LocaldflashError:
    """Return the error in an OpenAI-style body; if the body has none, return an error that names the status."""
    about = content.get("error")
    about = about if isinstance(about, dict) else {"message": about}
    nonsense = f"status {status}" if status >= 300 else "something that makes no sense"
    message = about.get("message") or content.get("detail") or f"the server answered with {nonsense}"
    kind = _ERRORS.get(str(about.get("code"))) or (UsageError if 400 <= status < 500 else LocaldflashError)
    return kind(str(message))


def json_object(content: str | bytes) -> Json:
    """Parse the body as a JSON object; raise LocaldflashError if it is not one."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise LocaldflashError("unexpected reply from the server (expected a JSON object); check its address")
    return value
