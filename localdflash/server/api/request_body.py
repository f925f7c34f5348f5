"""Read a request's body into a struct. ApiError for its size, JSON syntax, types, ranges or unsupported fields."""

import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from localdflash.server.api.http_responses import ApiError
from localdflash.text.sanitize import printable

MAX_BODY_BYTES = 16 * 1024 * 1024

# Unsupported fields that would change the answer, each with the values that are accepted because they have no effect.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "best_of": (1,),
    "echo": (False,),
    "audio": (),
    "modalities": (["text"],),
    "image_data": ([],),
    "images": ([],),
    "web_search_options": (),
    "lora": ([],),
    "ignore_eos": (False,),
    "mirostat": (0,),
    "typical_p": (1,),
    "n_probs": (0,),
    "top_n_sigma": (-1, 0),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "grammar_lazy": (False,),
    "mcp_servers": ([],),
    "output_format": (),
}

_FIELD_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$")  # end of a message of msgspec
# The group has what must stay: a whole pair, or another escape.
_LONE_SURROGATE = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u])|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
T = TypeVar("T", bound=msgspec.Struct)
U = TypeVar("U")


async def read(request: Request, kind: type[T]) -> T:
    """Return the JSON body of a request as a struct; the Content-Type is ignored. ApiError if the body is invalid."""
    data = await _read_all(request)
    try:
        try:
            struct = msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError:
            data = _replace_lone_surrogates(data)
            struct = msgspec.json.decode(data, type=kind)
        _refuse_unsupported(struct, msgspec.json.decode(data, type=dict[str, msgspec.Raw]))
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, f"the body is not JSON: {reason}", code="invalid_json") from None
    return struct


def _replace_lone_surrogates(data: bytes) -> bytes:
    """Replace escapes of lone surrogates with U+FFFD; clients that cut a text inside an emoji send them."""
    return _LONE_SURROGATE.sub(lambda match: match[1] or rb"\ufffd", data)


def convert(value: object, kind: type[U], param: str) -> U:
    """Convert the value of the field `param` to a type; ApiError names an invalid field by its path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _invalid(error, param) from None


def _invalid(error: msgspec.ValidationError, parent: str = "") -> ApiError:
    message = printable(str(error))  # it may quote the name of an unknown field
    path = _FIELD_PATH.search(message)
    param = ".".join(name for name in (parent, path[1] if path else "") if name) or None
    problem = message[: path.start()] if path else message
    return ApiError(400, f"{param}: {problem}" if param else problem, param=param, code="invalid_value")


async def _read_all(request: Request) -> bytes:
    """Return the bytes of the body; ApiError if it is too large."""
    if (length := request.headers.get("content-length", "")).isdigit() and int(length) > MAX_BODY_BYTES:
        raise _too_large()
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise _too_large()
    return bytes(data)


def _too_large() -> ApiError:
    return ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large")


def _refuse_unsupported(struct: msgspec.Struct, fields: dict[str, msgspec.Raw]) -> None:
    for name in (UNSUPPORTED.keys() & fields.keys()).difference(struct.__struct_fields__):
        value = msgspec.json.decode(fields[name])
        if value is not None and value not in UNSUPPORTED[name]:
            raise ApiError(400, f"{name}: not supported; leave it out", param=name, code="unsupported_parameter")
