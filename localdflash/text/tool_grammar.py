"""Grammars of tool calls in each family's syntax: known names, and arguments that fit the tool's schema.

Gemma's arguments, whose strings stand between markers, and optional calls of Llama 3 are not constrained.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from localdflash.base.errors import UsageError
from localdflash.engine.sampling import Constraint
from localdflash.text.call_constraint import CallConstraint, CallPart, count_through
from localdflash.text.grammar import JSON_BLANKS, GrammarConstraint, Grammars
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.tool_calls import Schemas, allows, syntax_of

_RECIPIENT = re.compile(r"\bto=functions\.([\w.-]+)")
_BLANKS = {"x-guidance": {"whitespace_pattern": JSON_BLANKS}}
_END_OF_VALUE = "\n</parameter>\n"


class OpeningMarker:
    """`CallWatch` of calls that begin with a marker token."""

    def __init__(self, opening: int, parts: Sequence[CallPart]) -> None:
        self._opening, self._parts = opening, parts

    def count_free(self, tokens: Sequence[int]) -> int:
        """See `CallWatch`."""
        return count_through(tokens, self._opening)

    def push(self, token: int) -> tuple[str, Sequence[CallPart]]:
        """See `CallWatch`."""
        return ("", self._parts) if token == self._opening else ("", ())


class OpeningText:
    """`CallWatch` of calls that begin with text, which may end inside a token. `make_grammar` constrains the rest."""

    def __init__(self, tokenizer: Tokenizer, opening: str, make_grammar: Callable[[], GrammarConstraint]) -> None:
        self._tokenizer, self._opening, self._make_grammar = tokenizer, opening, make_grammar
        self._text = ""  # last characters of the answer, fewer than the opening has

    def count_free(self, tokens: Sequence[int]) -> int:
        """See `CallWatch`."""
        text = self._text
        for index, token in enumerate(tokens):
            text += self._tokenizer.text_of(token)
            if self._opening in text:
                return index + 1
        return len(tokens)

    def push(self, token: int) -> tuple[str, Sequence[CallPart]]:
        """See `CallWatch`."""
        _, mark, rest = (self._text + self._tokenizer.text_of(token)).partition(self._opening)
        self._text = "" if mark else (self._text + self._tokenizer.text_of(token))[1 - len(self._opening) :]
        if not mark:
            return "", ()
        grammar, begun = self._make_grammar(), self._tokenizer.encode(rest, continues=True)
        if grammar.count_allowed(begun) < len(begun):
            return "", ()  # the text is not a call after all
        for spelled in begun:
            grammar.advance(spelled)
        return rest, [CallPart(lambda _: grammar)]


class HarmonyHeaders:
    """`CallWatch` of gpt-oss's calls: messages whose header names one of the tools."""

    def __init__(self, tokenizer: Tokenizer, tools: Schemas, parts: Sequence[CallPart]) -> None:
        self._opening, self._start = tokenizer.special("<|message|>"), tokenizer.special("<|start|>")
        self._channel = tokenizer.special("<|channel|>")
        self._tokenizer, self._tools, self._parts = tokenizer, tools, parts
        self._header: str | None = ""  # header text so far; None inside a message

    def count_free(self, tokens: Sequence[int]) -> int:
        """See `CallWatch`."""
        return count_through(tokens, self._opening)

    def push(self, token: int) -> tuple[str, Sequence[CallPart]]:
        """See `CallWatch`."""
        if token == self._opening:
            header, self._header = self._header or "", None
            called = _RECIPIENT.search(header)
            return (header, self._parts) if called and called[1] in self._tools else ("", ())
        if token in (self._start, self._channel):
            self._header = self._header or ""
        if self._header is not None:
            self._header += self._tokenizer.text_of(token)
        return "", ()


def call_constraint(
    tokenizer: Tokenizer, grammars: Grammars, tools: Schemas, *, required: bool
) -> Callable[[], Constraint] | None:
    """Return a factory of constraints, one for each choice; None if this model's calls cannot be constrained.

    If `required`, the answer has to be a call, and an invalid schema raises UsageError; otherwise it gives None.
    """
    try:
        return _constraint_factory(tokenizer, grammars, tools, required)
    except RecursionError:
        if required:
            raise UsageError("tools: a schema is nested too deeply; simplify it") from None
    except UsageError:
        if required:
            raise
    return None


def _constraint_factory(
    tokenizer: Tokenizer, grammars: Grammars, tools: Schemas, required: bool
) -> Callable[[], Constraint] | None:
    make = partial(CallConstraint, tokenizer, grammars.vocab_size)
    match syntax_of(tokenizer):
        case "harmony":
            parts = _harmony_parts(tokenizer, grammars, tools)
            return lambda: make(HarmonyHeaders(tokenizer, tools, parts[-1:]), parts if required else ())
        case "whole":
            json_call = _lark_factory(grammars, f"start: json\n{_json_rule(tools, 'parameters')}")
            return (lambda: json_call("")) if required else None
        case "gemma":
            opening, closing = tokenizer.special("<|tool_call>"), tokenizer.special("<tool_call|>")
            names = f'start: "call:" ({_alternatives(tools)}) "{{"'
            parts = [CallPart(_lark_factory(grammars, names)), CallPart(marker=closing, is_free=True)]
        case "tags" | "json" | "words" as syntax:
            call = _tag_call(tools) if syntax == "tags" else f'call: "\\n" json "\\n"\n{_json_rule(tools, "arguments")}'
            if not (tokenizer.has_special("<tool_call>") and tokenizer.has_special("</tool_call>")):
                return _text_call_factory(tokenizer, grammars, call, required)
            opening, closing = tokenizer.special("<tool_call>"), tokenizer.special("</tool_call>")
            parts = [CallPart(_lark_factory(grammars, f"start: call\n{call}"), closing)]
    return lambda: make(OpeningMarker(opening, parts), [CallPart(marker=opening), *parts] if required else ())


def _text_call_factory(tokenizer: Tokenizer, grammars: Grammars, call: str, required: bool) -> Callable[[], Constraint]:
    """Return the factory for calls between markers that are not tokens of the vocabulary."""
    rest = _lark_factory(grammars, f'start: call "</tool_call>"\n{call}')
    parts = [CallPart(_lark_factory(grammars, f'start: "<tool_call>" call "</tool_call>"\n{call}'))] if required else []
    watch = partial(OpeningText, tokenizer, "<tool_call>", lambda: rest(""))
    return lambda: CallConstraint(tokenizer, grammars.vocab_size, watch(), parts)


def _lark_factory(grammars: Grammars, grammar: str) -> Callable[[str], GrammarConstraint]:
    grammars.lark(grammar)  # an error is raised now, not when a call begins
    return lambda _: grammars.lark(grammar)


def _harmony_parts(tokenizer: Tokenizer, grammars: Grammars, tools: Schemas) -> list[CallPart]:
    """Return the parts of a gpt-oss call: its header, which names the tool, and its arguments."""
    grammars.lark(f"start: json\n{_json_rule(tools, 'arguments')}")  # raises UsageError for an invalid schema

    def arguments(header: str) -> GrammarConstraint:
        called = _RECIPIENT.search(header)
        schema = tools[called[1]] if called else {}
        return grammars.json_schema(_disallow_extras(schema))

    names = _lark_factory(grammars, f'start: "commentary to=functions." ({_alternatives(tools)}) " "')
    return [
        CallPart(marker=tokenizer.special("<|channel|>")),
        CallPart(names, tokenizer.special("<|constrain|>")),
        CallPart(_lark_factory(grammars, 'start: "json"'), tokenizer.special("<|message|>")),
        CallPart(arguments, tokenizer.special("<|call|>")),
    ]


def _json_rule(tools: Schemas, arguments: str) -> str:
    """Return the rule `json` of a call as one JSON object: the name, then the property called `arguments`."""
    calls, schemas = list[dict[str, Any]](), dict[str, Any]()
    for number, (name, schema) in enumerate(tools.items()):
        reference = f"#/$defs/{number}"  # two tools' schemas may define the same name
        schemas[str(number)] = _disallow_extras(_relocate(schema, reference))
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, arguments: {"$ref": reference}},
                "required": ["name", arguments],
                "additionalProperties": False,
            }
        )
    return f"json: %json {json.dumps({'anyOf': calls, '$defs': schemas, **_BLANKS})}\n"


def _tag_call(tools: Schemas) -> str:
    """Return the rule `call` with tags around each parameter, in the schema's order, and the rules that it uses."""
    calls, rules = list[str](), [f"text[suffix={json.dumps(_END_OF_VALUE)}]: /(.|\\n)*/"]
    for number, (name, schema) in enumerate(tools.items()):
        parts = list[str]()
        for index, (parameter, kind) in enumerate(schema.get("properties", {}).items()):
            rule = f"p{number}_{index}"
            rules += _parameter_rules(rule, parameter, kind, schema)
            parts.append(rule if parameter in schema.get("required", ()) else f"{rule}?")
        calls.append(f"{json.dumps(f'<function={name}>{chr(10)}')} {' '.join(parts)} {json.dumps('</function>')}")
    return "\n".join([f'call: "\\n" ({" | ".join(calls)}) "\\n"', *rules]) + "\n"


def _parameter_rules(rule: str, name: str, kind: Any, tool: Mapping[str, Any]) -> list[str]:
    """Return the rules of a parameter with its tags: strings are plain text, other values JSON."""
    opening, closing = json.dumps(f"<parameter={name}>\n"), json.dumps(_END_OF_VALUE)
    known = kind if isinstance(kind, Mapping) else {}
    if not allows("string", kind, tool):
        schema = known
        if '"$ref"' in json.dumps(known):
            schema = {**_relocate(known, "#/$defs/tool"), "$defs": {"tool": _relocate(tool, "#/$defs/tool")}}
        return [f"{rule}: {opening} {rule}_json {closing}", f"{rule}_json: %json {json.dumps({**schema, **_BLANKS})}"]
    words = known.get("enum")
    if not words:
        return [f"{rule}: {opening} text"]
    return [f"{rule}: {opening} ({_alternatives('null' if word is None else word for word in words)}) {closing}"]


def _alternatives(words: Any) -> str:
    return " | ".join(map(json.dumps, words))


def _disallow_extras(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with undeclared properties disallowed, unless it allows them explicitly."""
    return {"type": "object", "additionalProperties": False, **schema}


def _relocate(part: Any, location: str) -> Any:
    """Return a part of a schema with its references adapted to the schema's new location."""
    if isinstance(part, list):
        return [_relocate(item, location) for item in part]
    if not isinstance(part, Mapping):
        return part
    moved = {name: _relocate(value, location) for name, value in part.items()}
    if isinstance(reference := part.get("$ref"), str) and reference.startswith("#"):
        moved["$ref"] = location + reference[1:]
    return moved
