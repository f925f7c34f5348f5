"""The form of calls in each family's syntax: names that there are, and arguments of their tool's schema.

What cannot be said: Gemma's arguments, whose strings stand between markers, and calls of Llama 3 that nobody demands,
which nothing tells from an answer. There the model is taken at its word.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from localdflash.base.errors import UsageError
from localdflash.engine.sampling import Constraint
from localdflash.text.call_constraint import CallConstraint, CallPart, up_to
from localdflash.text.grammar import JSON_BLANKS, GrammarConstraint, Grammars
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.tool_calls import Schemas, syntax_of

_RECIPIENT = re.compile(r"\bto=functions\.([\w.-]+)")
_BLANKS = {"x-guidance": {"whitespace_pattern": JSON_BLANKS}}
_END_OF_VALUE = "\n</parameter>\n"


class OneMarker:
    """Calls that begin with a marker of their own; see `CallWatch`."""

    def __init__(self, opening: int, parts: Sequence[CallPart]) -> None:
        self._opening, self._parts = opening, parts

    def before(self, tokens: Sequence[int]) -> int:
        """See `CallWatch`."""
        return up_to(tokens, self._opening)

    def push(self, token: int) -> tuple[str, Sequence[CallPart]]:
        """See `CallWatch`."""
        return ("", self._parts) if token == self._opening else ("", ())


class OpeningText:
    """Calls that begin with a text, which may end inside of a token; see `CallWatch`. `form` is what follows it."""

    def __init__(self, tokenizer: Tokenizer, opening: str, form: Callable[[], GrammarConstraint]) -> None:
        self._tokenizer, self._opening, self._form = tokenizer, opening, form
        self._text = ""  # the last of the answer, shorter than the opening

    def before(self, tokens: Sequence[int]) -> int:
        """See `CallWatch`."""
        text = self._text
        for place, token in enumerate(tokens):
            text += self._spelled(token)
            if self._opening in text:
                return place + 1
        return len(tokens)

    def push(self, token: int) -> tuple[str, Sequence[CallPart]]:
        """See `CallWatch`."""
        _, found, rest = (self._text + self._spelled(token)).partition(self._opening)
        self._text = "" if found else (self._text + self._spelled(token))[1 - len(self._opening) :]
        if not found:
            return "", ()
        form, begun = self._form(), self._tokenizer.encode(rest, continues=True)
        if form.count_allowed(begun) < len(begun):
            return "", ()  # it goes on in a way of its own
        for spelled in begun:
            form.advance(spelled)
        return rest, [CallPart(lambda _: form)]

    def _spelled(self, token: int) -> str:
        return self._tokenizer.piece(token, special=True).decode("utf-8", "replace")


class HarmonyHeaders:
    """Messages to a function, which their headers tell; see `CallWatch`."""

    def __init__(self, tokenizer: Tokenizer, tools: Schemas, parts: Sequence[CallPart]) -> None:
        self._opening, self._start = tokenizer.special("<|message|>"), tokenizer.special("<|start|>")
        self._channel = tokenizer.special("<|channel|>")
        self._tokenizer, self._tools, self._parts = tokenizer, tools, parts
        self._header: str | None = ""  # None inside of a message

    def before(self, tokens: Sequence[int]) -> int:
        """See `CallWatch`."""
        return up_to(tokens, self._opening)

    def push(self, token: int) -> tuple[str, Sequence[CallPart]]:
        """See `CallWatch`."""
        if token == self._opening:
            header, self._header = self._header or "", None
            called = _RECIPIENT.search(header)
            return (header, self._parts) if called and called[1] in self._tools else ("", ())
        if token in (self._start, self._channel):
            self._header = self._header or ""
        if self._header is not None:
            self._header += self._tokenizer.piece(token, special=True).decode("utf-8", "replace")
        return "", ()


def call_constraint(
    tokenizer: Tokenizer, grammars: Grammars, tools: Schemas, *, must: bool
) -> Callable[[], Constraint] | None:
    """A maker of each choice's constraint, with `must` to a call; None where nothing can be said of this model's.

    Grammars are compiled here, once: UsageError if a call must be and its form takes too much or is unknown. Where a
    call only may be, such a form is not insisted on.
    """
    try:
        return _constraint(tokenizer, grammars, tools, must)
    except RecursionError:
        if must:
            raise UsageError("tools: a schema is nested too deeply") from None
    except UsageError:
        if must:
            raise
    return None


def _constraint(
    tokenizer: Tokenizer, grammars: Grammars, tools: Schemas, must: bool
) -> Callable[[], Constraint] | None:
    make = partial(CallConstraint, tokenizer, grammars.vocab_size)
    match syntax_of(tokenizer):
        case "harmony":
            form = _harmony(tokenizer, grammars, tools)
            return lambda: make(HarmonyHeaders(tokenizer, tools, form[-1:]), form if must else ())
        case "whole":
            whole = _lark(grammars, f"start: json\n{_object(tools, 'parameters')}")
            return (lambda: whole("")) if must else None
        case "gemma":
            opening, closing = tokenizer.special("<|tool_call>"), tokenizer.special("<tool_call|>")
            names = f'start: "call:" ({_any_of(tools)}) "{{"'
            form = [CallPart(_lark(grammars, names)), CallPart(marker=closing, free=True)]
        case "tags" | "json" | "words" as syntax:
            call = _tags(tools) if syntax == "tags" else f'call: "\\n" json "\\n"\n{_object(tools, "arguments")}'
            if not (tokenizer.has_special("<tool_call>") and tokenizer.has_special("</tool_call>")):
                return _between_texts(tokenizer, grammars, call, must)
            opening, closing = tokenizer.special("<tool_call>"), tokenizer.special("</tool_call>")
            form = [CallPart(_lark(grammars, f"start: call\n{call}"), closing)]
    return lambda: make(OneMarker(opening, form), [CallPart(marker=opening), *form] if must else ())


def _between_texts(tokenizer: Tokenizer, grammars: Grammars, call: str, must: bool) -> Callable[[], Constraint]:
    """Calls between texts for which the vocabulary has no token."""
    rest = _lark(grammars, f'start: call "</tool_call>"\n{call}')
    whole = [CallPart(_lark(grammars, f'start: "<tool_call>" call "</tool_call>"\n{call}'))] if must else []
    watch = partial(OpeningText, tokenizer, "<tool_call>", lambda: rest(""))
    return lambda: CallConstraint(tokenizer, grammars.vocab_size, watch(), whole)


def _lark(grammars: Grammars, grammar: str) -> Callable[[str], GrammarConstraint]:
    grammars.lark(grammar)  # not first when a call begins
    return lambda _: grammars.lark(grammar)


def _harmony(tokenizer: Tokenizer, grammars: Grammars, tools: Schemas) -> list[CallPart]:
    """A call from the first token on; its last part are the arguments, whose tool the header has named."""
    _lark(grammars, f"start: json\n{_object(tools, 'arguments')}")  # all of them at once

    def arguments(header: str) -> GrammarConstraint:
        called = _RECIPIENT.search(header)
        schema = tools[called[1]] if called else {}
        return grammars.json_schema(_closed(schema))

    names = _lark(grammars, f'start: "commentary to=functions." ({_any_of(tools)}) " "')
    return [
        CallPart(marker=tokenizer.special("<|channel|>")),
        CallPart(names, tokenizer.special("<|constrain|>")),
        CallPart(_lark(grammars, 'start: "json"'), tokenizer.special("<|message|>")),
        CallPart(arguments, tokenizer.special("<|call|>")),
    ]


def _object(tools: Schemas, arguments: str) -> str:
    """The rule of a call as one JSON object, its name first."""
    calls, schemas = list[dict[str, Any]](), dict[str, Any]()
    for number, (name, schema) in enumerate(tools.items()):
        place = f"#/$defs/{number}"  # each tool has definitions of its own, two of which may have one name
        schemas[str(number)] = _closed(_moved(schema, place))
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, arguments: {"$ref": place}},
                "required": ["name", arguments],
                "additionalProperties": False,
            }
        )
    return f"json: %json {json.dumps({'anyOf': calls, '$defs': schemas, **_BLANKS})}\n"


def _tags(tools: Schemas) -> str:
    """A call as tags around each parameter, in the order of the schema; strings without quotes."""
    calls, rules = list[str](), [f"text[suffix={json.dumps(_END_OF_VALUE)}]: /(.|\\n)*/"]
    for number, (name, schema) in enumerate(tools.items()):
        parts = list[str]()
        for place, (parameter, kind) in enumerate(schema.get("properties", {}).items()):
            rule = f"p{number}_{place}"
            rules += _parameter(rule, parameter, kind, schema)
            parts.append(rule if parameter in schema.get("required", ()) else f"{rule}?")
        calls.append(f"{json.dumps(f'<function={name}>{chr(10)}')} {' '.join(parts)} {json.dumps('</function>')}")
    return "\n".join([f'call: "\\n" ({" | ".join(calls)}) "\\n"', *rules]) + "\n"


def _parameter(rule: str, name: str, kind: Any, tool: Mapping[str, Any]) -> list[str]:
    """The rules of a parameter of this tool with its tags: text is written as it is, all else as JSON."""
    opening, closing = json.dumps(f"<parameter={name}>\n"), json.dumps(_END_OF_VALUE)
    known = kind if isinstance(kind, Mapping) else {}
    if known.get("type", "string") != "string":
        schema = known
        if '"$ref"' in json.dumps(known):
            schema = {**_moved(known, "#/$defs/tool"), "$defs": {"tool": _moved(tool, "#/$defs/tool")}}
        return [f"{rule}: {opening} {rule}_json {closing}", f"{rule}_json: %json {json.dumps({**schema, **_BLANKS})}"]
    words = known.get("enum")
    return [f"{rule}: {opening} ({_any_of(map(str, words))}) {closing}" if words else f"{rule}: {opening} text"]


def _any_of(words: Any) -> str:
    return " | ".join(map(json.dumps, words))


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of arguments that has no others than it names, unless it says so."""
    return {"type": "object", "additionalProperties": False, **schema}


def _moved(part: Any, place: str) -> Any:
    """A part of a schema whose root has come to stand at `place`, with its references to it."""
    if isinstance(part, Mapping):
        return {name: _referred(name, value, place) for name, value in part.items()}
    return [_moved(one, place) for one in part] if isinstance(part, list) else part


def _referred(name: str, value: Any, place: str) -> Any:
    local = name == "$ref" and isinstance(value, str) and value.startswith("#")
    return place + value[1:] if local else _moved(value, place)
