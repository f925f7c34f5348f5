"""Parsers of the tool calls in an answer's text, one for each model family's syntax.

    <tool_call> {"name": "f", "arguments": {...}} </tool_call>                   Hermes, Qwen2.5 and 3
    <tool_call> <function=f> <parameter=a> 1 </parameter> ... </tool_call>      Qwen3-Coder, Qwen3.5
    <|tool_call>call:f{a:<|"|>text<|"|>,b:1}<tool_call|>                         Gemma 4
    <|start|>assistant to=functions.f<|channel|>...<|message|>{...}              gpt-oss, see `HarmonyText`
    {"name": "f", "parameters": {...}}                                           Llama 3, as the whole answer

Other models use the first form (see `tools_in_words`). Text that only looks like a call stays in the answer.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from localdflash.text.thoughts import overlap_at_end
from localdflash.text.tokenizer import Tokenizer

Schemas = Mapping[str, Mapping[str, Any]]  # JSON schemas of the parameters, by the tool's name
ParsedCall = tuple[str, str] | None  # name and JSON text of the arguments so far; None if the text is not a call
SplitText = tuple[str, list["CallDelta"]]  # text outside calls, additions to calls
Syntax = Literal["json", "tags", "gemma", "harmony", "whole", "words"]


@dataclass(frozen=True, slots=True)
class CallDelta:
    """Addition to call `index`: its name (only in the first addition), and a piece of its arguments' JSON text."""

    index: int
    name: str
    arguments: str


class CallReader(Protocol):
    """Incremental splitter of text and tool calls."""

    @property
    def closing(self) -> str:
        """Return the closing mark of a call; "" if the end of the answer closes it."""

    @property
    def is_in_value(self) -> bool:
        """Return whether the text so far ends inside a string value of a call."""

    def push(self, text: str) -> SplitText:
        """Add text; return the text and call additions that can no longer change."""

    def finish(self) -> SplitText:
        """Return the held-back text and call additions; call at the end of the answer."""


class MarkedCalls:
    """`CallReader` of calls between two marks; `is_open`: whether a call's body so far ends inside a value."""

    def __init__(
        self,
        opening: str,
        closing: str,
        parse: Callable[[str, bool], ParsedCall],  # takes the text between the marks so far, and whether it has ended
        is_open: Callable[[str], bool],
    ) -> None:
        self._opening, self.closing, self._parse, self._is_open = opening, closing, parse, is_open
        self._held, self._inside = "", False
        self._after_call = False  # whether a call has just ended: line feeds after it are not part of the answer
        self._finished_calls = 0
        self._reported = ("", "")  # name and arguments of the current call as reported so far

    @property
    def is_in_value(self) -> bool:
        """See `CallReader`."""
        return self._inside and self._is_open(self._held)

    def push(self, text: str) -> SplitText:
        """See `CallReader`."""
        self._held += text
        answer, calls = "", list[CallDelta]()
        while True:
            if self._after_call:
                self._held = self._held.lstrip("\n")
                self._after_call = not self._held
            if not self._inside:
                before, mark, rest = self._held.partition(self._opening)
                if not mark:
                    certain = len(before[: len(before) - overlap_at_end(before, self._opening)].rstrip("\n"))
                    self._held = before[certain:]
                    return answer + before[:certain], calls
                answer += before.rstrip("\n")
                self._held, self._inside = rest, True
            end = self._find_closing()
            if end < 0:
                certain = len(self._held) - overlap_at_end(self._held, self.closing)
                calls += self._new_deltas(self._parse(self._held[:certain], False))
                return answer, calls
            rejected, ended_calls = self._end_call(self._held[:end], self.closing)
            answer, calls = answer + rejected, calls + ended_calls
            self._held, self._after_call = self._held[end + len(self.closing) :], not rejected

    def finish(self) -> SplitText:
        """See `CallReader`."""
        held, self._held = self._held, ""
        return self._end_call(held, "") if self._inside else (held, [])

    def _find_closing(self) -> int:
        """Return the offset of the current call's closing mark; -1 if it has not arrived yet."""
        end = self._held.find(self.closing) if self.closing else -1
        while end >= 0 and self._is_open(self._held[:end]):
            end = self._held.find(self.closing, end + 1)
        return end

    def _end_call(self, body: str, mark: str) -> SplitText:
        """End the call; return its text with the marks if it is not a call after all, and the deltas to report."""
        self._inside = False
        parsed = self._parse(body, True)
        calls = self._new_deltas(parsed)
        if not self._reported[0]:
            return self._opening + body + mark, []
        self._finished_calls, self._reported = self._finished_calls + 1, ("", "")
        return "", calls

    def _new_deltas(self, parsed: ParsedCall) -> list[CallDelta]:
        if not parsed or parsed == self._reported:
            return []
        name, arguments = parsed
        reported = len(self._reported[1])
        delta = CallDelta(self._finished_calls, "" if self._reported[0] else name, arguments[reported:])
        self._reported = parsed
        return [delta]


class WholeCalls:
    """`CallReader` of calls that are the whole answer: JSON objects separated by semicolons, reported at its end."""

    closing = ""

    def __init__(self, tools: Schemas) -> None:
        self._tools, self._held = tools, ""
        self._is_text = False  # whether the answer is text without calls

    @property
    def is_in_value(self) -> bool:
        """See `CallReader`."""
        return is_value_open(self._held)

    def push(self, text: str) -> SplitText:
        """See `CallReader`."""
        text, self._held = self._held + text, ""
        self._is_text = self._is_text or text.lstrip()[:1] not in ("", "{")
        if self._is_text:
            return text, []
        self._held = text
        return "", []

    def finish(self) -> SplitText:
        """See `CallReader`."""
        text, self._held = self._held, ""
        calls, rest = list[CallDelta](), text.lstrip()
        while rest:
            try:
                value, end = json.JSONDecoder().raw_decode(rest)
                if not isinstance(value, dict) or value.get("name") not in self._tools:
                    return text, []
                arguments = _dump(value.get("parameters", value.get("arguments", {})))
            except (ValueError, RecursionError):
                return text, []
            calls.append(CallDelta(len(calls), value["name"], arguments))
            rest = rest[end:].lstrip(" ;\n")
        return ("", calls) if calls else (text, [])


_JSON_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*')
_TAGS_HEAD = re.compile(r"\s*<function=([^>\n]+)>")
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_HARMONY_HEAD = re.compile(r"[^{]*?\bto=(?:functions\.)?([\w.-]+).*?<\|message\|>", re.DOTALL)
_QUOTE = '<|"|>'
_BLANKS = re.compile(r"\s*")
_GEMMA_KEY = re.compile(r'([^\s:{}\[\],"]+)\s*:')
_GEMMA_WORD = re.compile(r"[^,{}\[\]]+")
_MAX_GEMMA_DEPTH = 64
_MAX_SCHEMA_DEPTH = 8  # references and alternatives inside each other; a deeper schema counts as without a type
_GEMMA_CALL = re.compile(r"\s*call:([\w.-]+)(\{.*\})\s*", re.DOTALL)


def parse_json(body: str, ended: bool) -> ParsedCall:
    """Parse a call that is one JSON object; unless `ended`, the arguments lack their last closing braces."""
    if head := _JSON_HEAD.match(body):
        rest = body[head.end() :].rstrip()
        return head[1], rest.removesuffix("}").rstrip() if ended else rest.rstrip("} \t\r\n")
    if not ended:
        return None
    try:
        value = json.loads(body)  # the object has other keys, or another order
        return value["name"], _dump(value["arguments"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return None


def parse_tags(body: str, ended: bool, tools: Schemas) -> ParsedCall:
    """Parse a call with tags around each parameter; unless `ended`, the JSON of the arguments lacks its end."""
    head = _TAGS_HEAD.match(body)
    if not head:
        return None
    tool, parts, at = tools.get(head[1], {}), list[str](), head.end()
    while (tag := body.find(_PARAMETER, at)) >= 0 and (start := body.find(">", tag)) >= 0:
        name = body[tag + len(_PARAMETER) : start]
        key, schema = _dump(name), tool.get("properties", {}).get(name, False)
        is_text, can_be_null = (allows(kind, schema, tool) for kind in ("string", "null"))
        end = body.find(_PARAMETER_END, start)
        if end < 0:
            text = body[start + 1 :].removeprefix("\n")
            held = (
                0 if ended else max(overlap_at_end(text, _PARAMETER_END), overlap_at_end(text, f"\n{_PARAMETER_END}"))
            )
            certain = text[: len(text) - held]
            if is_text and not (can_be_null and "null".startswith(certain)):
                parts.append(f"{key}: {_dump(certain)[:-1]}")
            return head[1], "{" + ", ".join(parts)
        text = body[start + 1 : end].removeprefix("\n").removesuffix("\n")
        is_string = is_text and not (can_be_null and text == "null")
        parts.append(f"{key}: {_dump(text) if is_string else _to_json(text)}")
        at = end + len(_PARAMETER_END)
    return head[1], "{" + ", ".join(parts) + ("}" if ended else "")


def is_value_open(body: str) -> bool:
    """Return whether a call's body ends inside a JSON string or between <parameter> tags; False if it is no call."""
    if _TAGS_HEAD.match(body):
        return _PARAMETER in body.rpartition(_PARAMETER_END)[2]
    return bool(_JSON_HEAD.match(body)) and is_string_open(body)


def is_string_open(body: str) -> bool:
    """Return whether a text ends inside a JSON string."""
    without_escapes = body.replace("\\\\", "").replace('\\"', "")
    return without_escapes.count('"') % 2 == 1


def allows(kind: str, schema: object, tool: Mapping[str, Any], depth: int = _MAX_SCHEMA_DEPTH) -> bool:
    """Return whether a schema inside a tool's schema allows values of the type `kind`, "string" or "null".

    A schema without a type allows both. An enum with values of other types allows neither: its values are JSON.
    """
    if not isinstance(schema, Mapping) or not depth:
        return schema is not False
    types, reference = schema.get("type", kind), schema.get("$ref")
    if types != kind and not (isinstance(types, list) and kind in types):
        return False
    lists = {name: value for name in ("enum", "anyOf", "oneOf", "allOf") if isinstance(value := schema.get(name), list)}
    values = [schema["const"]] if "const" in schema else lists.get("enum")
    found = {type(value) for value in values or ()}
    if found and not {str if kind == "string" else type(None)} <= found <= {str, type(None)}:
        return False
    all_of = [[part] for part in lists.get("allOf", ())]
    if isinstance(reference, str):
        all_of.append([_referenced(reference, tool)])
    all_of += (lists[name] for name in ("anyOf", "oneOf") if name in lists)
    return all(any(allows(kind, part, tool, depth - 1) for part in parts) for parts in all_of)


def _referenced(reference: str, tool: Mapping[str, Any]) -> object:
    """Return the schema at a reference inside a tool's schema; True, which allows all values, if there is none."""
    schema: object = tool
    for name in reference.split("/")[1:]:
        schema = schema.get(name, True) if isinstance(schema, Mapping) else True
    return schema


def _to_json(text: str) -> str:
    """Return a parameter's text as JSON: valid JSON keeps its type; other text becomes a string."""
    try:
        return _dump(json.loads(text))
    except (ValueError, RecursionError):
        return _dump(text)


def _dump(value: object) -> str:
    """Return a value as JSON; ValueError for NaN and infinity, which JSON does not have."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def parse_harmony(body: str, _ended: bool) -> ParsedCall:
    """Parse a gpt-oss call, which is the header and the text of a message to a function."""
    head = _HARMONY_HEAD.match(body)
    return (head[1], body[head.end() :]) if head else None


def parse_gemma(body: str, ended: bool) -> ParsedCall:
    """Parse a call in Gemma 4's notation; None until it has ended."""
    call = _GEMMA_CALL.fullmatch(body) if ended else None
    value = parse_gemma_object(call[2]) if call else None
    return (call[1], _dump(value)) if call and value is not None else None


def parse_gemma_object(text: str) -> dict[str, Any] | None:
    """Parse an object in Gemma 4's notation, JSON without quotes around keys; None if it is invalid."""
    try:
        value, end = _gemma_value(text, 0, -1)
    except (ValueError, IndexError):
        return None
    return value if isinstance(value, dict) and not text[end:].strip() else None


def _gemma_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return the value at an offset and the offset after the value; ValueError or IndexError if it is invalid."""
    if depth > _MAX_GEMMA_DEPTH:
        raise ValueError
    at = _skip_blanks(text, at)
    if text.startswith(_QUOTE, at):
        end = text.index(_QUOTE, at + len(_QUOTE))
        return text[at + len(_QUOTE) : end], end + len(_QUOTE)
    if text[at] in "{[":
        return _gemma_members(text, at, depth)
    plain = _GEMMA_WORD.match(text, at)
    if not plain:
        raise ValueError
    return json.loads(_to_json(plain[0].strip())), plain.end()  # other words are strings that the model did not quote


def _gemma_members(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return the object or list at an offset and the offset after it; ValueError or IndexError if it is invalid."""
    members: list[Any] = []
    keys: list[str] = []
    closing = "}" if text[at] == "{" else "]"
    at = _skip_blanks(text, at + 1)
    while text[at] != closing:
        if closing == "}":
            key = _GEMMA_KEY.match(text, at)
            if not key:
                raise ValueError
            keys.append(key[1].removeprefix(_QUOTE).removesuffix(_QUOTE))
            at = key.end()
        value, at = _gemma_value(text, at, depth + 1)
        members.append(value)
        at = _skip_blanks(text, at)
        if text[at] == ",":
            at = _skip_blanks(text, at + 1)
        elif text[at] != closing:
            raise ValueError
    return dict(zip(keys, members, strict=True)) if closing == "}" else members, at + 1


def _skip_blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at


def syntax_of(tokenizer: Tokenizer) -> Syntax:
    """Return the call syntax of a vocabulary and its chat template; "words" (see `tools_in_words`) if none is known."""
    template = tokenizer.chat_template() or ""
    if not re.search(r"\btools\b", template):
        return "words"
    if tokenizer.has_special("<|call|>") and tokenizer.has_special("<|message|>"):
        return "harmony"
    if tokenizer.has_special("<|tool_call>"):
        return "gemma"
    if "<tool_call>" in template:
        return "tags" if "<function=" in template else "json"
    return "whole" if tokenizer.has_special("<|python_tag|>") else "words"


def call_reader(tokenizer: Tokenizer, tools: Schemas) -> CallReader:
    """Return the reader of calls in this model's answers."""
    match syntax_of(tokenizer):
        case "harmony":
            return MarkedCalls("<|start|>assistant", "", parse_harmony, is_string_open)
        case "gemma":
            return MarkedCalls("<|tool_call>", "<tool_call|>", parse_gemma, lambda body: body.count(_QUOTE) % 2 == 1)
        case "whole":
            return WholeCalls(tools)
    return MarkedCalls(
        "<tool_call>",
        "</tool_call>",
        lambda body, ended: parse_tags(body, ended, tools) if _TAGS_HEAD.match(body) else parse_json(body, ended),
        is_value_open,
    )
