"""Check values from files, environment variables and the command line, and convert them to declared types."""

import re
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from localdflash.base.errors import LocaldflashError, ModelError, did_you_mean

MAX_TEXT_CHARS = 300


def pattern(regex: str, expected: str) -> Meta:
    """Return a msgspec constraint on a text. `expected` describes the regex in the error messages of `convert`."""
    return Meta(pattern=rf"(?a)(?#{expected})\A(?:{regex})\Z")


Text = Annotated[str, pattern(r".*\S.*", "text")]
Sha256 = Annotated[str, pattern("[0-9a-f]{64}", "64 lower-case hexadecimal digits")]


def convert(
    value: object, kind: Any, subject: str, *, strict: bool = True, error: type[LocaldflashError] = ModelError
) -> Any:
    """Return `value` as the type `kind`; if it does not fit, raise `error` with the subject and what was expected.

    A text must be one printable line of at most `MAX_TEXT_CHARS`. Unless `strict`, "5" is accepted as a number.
    """
    for item in value if isinstance(value, list) else (value,):
        if isinstance(item, str) and not (item.isprintable() and len(item) <= MAX_TEXT_CHARS):
            raise error(f"{subject}: expected one line of printable text, at most {MAX_TEXT_CHARS} characters")
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as invalid:
        problem = str(invalid).partition(" - at `$")[0]
    if problem.startswith(enum_error := "Invalid enum value "):
        found, choices = problem.removeprefix(enum_error), list(map(str, _choices(kind)))
        hint = did_you_mean(found.strip("'"), choices)
        raise error(f"{subject}: expected one of {', '.join(choices)}, found {found}{hint}")
    problem = re.sub(r"""`str` matching regex ['"]\(\?a\)\(\?#(.*?)\).*""", r"\1", problem)
    raise error(f"{subject}: {problem[0].lower()}{problem[1:].replace('`', '').replace(' | null', '')}")


def _choices(kind: Any) -> tuple[object, ...]:
    """Return the values of the first `Literal` within a type; () if there is none."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return next(filter(None, map(_choices, get_args(kind))), ())
