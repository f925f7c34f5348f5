"""Map exceptions to HTTP errors and back, so that a client raises the exception that the daemon raised."""

import json
from typing import Any

from localdflash.base import errors
from localdflash.base.errors import LocaldflashError, UsageError

Json = dict[str, Any]

# HTTP status and error code by exception type. Subclasses come after their bases: the last entry that matches counts.
ERRORS: dict[type[LocaldflashError], tuple[int, str | None]] = {
    LocaldflashError: (500, None),
    UsageError: (400, "invalid_value"),
    errors.ContextOverflow: (400, "context_length_exceeded"),
    errors.ModelError: (400, "unsupported_by_model"),
    errors.ModelBusy: (409, "model_busy"),
    errors.QueueFull: (503, "queue_full"),
    errors.OutOfMemory: (503, "out_of_memory"),
    errors.NoDevice: (503, "no_device"),
    errors.DeviceError: (503, "device_failed"),
    errors.EngineDisconnect: (503, "engine_stopped"),
}
_CODES: dict[str | None, type[LocaldflashError]] = {
    **{code: kind for kind, (_, code) in ERRORS.items() if code},
    **dict.fromkeys(("model_not_found", "model_not_loaded", "model_changed"), errors.NoLoadedModel),
}


def error_of_response(content: str | bytes, status: int) -> LocaldflashError:
    """Return the exception for a response with this body and error status."""
    try:
        return error_of_body(json_object(content), status)
    except LocaldflashError:
        return error_of_body({}, status)


def error_of_body(content: Json, status: int) -> LocaldflashError:
    """Return the exception for the error in an OpenAI-style body; without an error in it, for the status."""
    about = content.get("error")
    about = about if isinstance(about, dict) else {"message": about}
    fallback = f"the server answered with {f'status {status}' if status >= 300 else 'an error without a message'}"
    message = about.get("message") or content.get("detail") or fallback
    kind = _CODES.get(str(about.get("code"))) or (UsageError if 400 <= status < 500 else LocaldflashError)
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
