"""Held-out prompts of the code benchmark: one of every category from each module under `prompts/`.

Random choices depend only on a hash of the prompt's id, so all machines get the same set.
"""

import ast
import hashlib
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localdflash.base.errors import UsageError
from localdflash.lab.train.examples import (
    CodeChange,
    add_line,
    change_number,
    edit_question,
    explain_question,
    fenced,
    function_question,
    remove_line,
    rename,
)

Category = Literal["fim_line", "fim_block", "function", "edit", "prose"]
CATEGORIES: tuple[Category, ...] = ("fim_line", "fim_block", "function", "edit", "prose")

MAX_TOKENS: dict[Category, int] = {"fim_line": 32, "fim_block": 96, "function": 128, "edit": 320, "prose": 64}

# The embedded model reads 1024 tokens of about three characters.
PREFIX_CHARS, SUFFIX_CHARS = 1500, 500
EDIT_CHARS = (300, 900)
BODY_LINES = 4

FOLDER = Path(__file__).with_name("prompts")


@dataclass(frozen=True)
class BenchPrompt:
    """Prompt with `prefix` and `suffix` for FIM, or `question` for a chat. Nothing compares answers to `reference`."""

    id: str
    category: Category
    reference: str
    max_tokens: int
    prefix: str = ""
    suffix: str = ""
    question: str = ""


def load(limit: int | None = None) -> list[BenchPrompt]:
    """Return the prompts, category by category; only the first `limit` of each if given (UsageError below 1)."""
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: expected 1 or more")
    sources = [path.read_text(encoding="ascii") for path in sorted(FOLDER.glob("*.py"))[:limit]]
    return [_MAKERS[category](f"{category}/{i:02}", text) for category in CATEGORIES for i, text in enumerate(sources)]


@dataclass(frozen=True)
class DocumentedFunction:
    """A documented function, dedented; `body` has no docstring and is lines `first` to `last` (from 0) of the file."""

    text: str
    signature: str
    doc: str
    body: str
    first: int
    last: int

    @property
    def without_docstring(self) -> str:
        """Return the function without its docstring."""
        return f"{self.signature}\n{self.body}"


def functions_of(source: str) -> list[DocumentedFunction]:
    """Return the functions with a docstring and a body of at least `BODY_LINES`."""
    lines = source.splitlines()
    functions = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or len(node.body) < 2 or node.end_lineno is None:
            continue
        doc, doc_end = ast.get_docstring(node), node.body[0].end_lineno or 0
        if doc is None or node.end_lineno - doc_end < BODY_LINES:
            continue
        dedented = [line[node.col_offset :] for line in lines]
        signature = "\n".join(dedented[node.lineno - 1 : node.body[0].lineno - 1])
        text = "\n".join(dedented[node.lineno - 1 : node.end_lineno])
        body = "\n".join(dedented[doc_end : node.end_lineno]).strip("\n")
        functions.append(DocumentedFunction(text, signature, doc, body, node.body[1].lineno - 1, node.end_lineno - 1))
    return functions


def choose(key: str, count: int) -> int:
    """Return a number below `count` that depends only on the key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % count


def _function(id_: str, source: str) -> DocumentedFunction:
    functions = functions_of(source)
    return functions[choose(id_, len(functions))]


def _fim(id_: str, category: Category, source: str, start: int, end: int) -> BenchPrompt:
    """Return a prompt for `source[start:end]`, with as much surrounding code as fits."""
    prefix, suffix = source[:start], source[end:]
    if len(prefix) > PREFIX_CHARS:
        prefix = prefix[prefix.index("\n", len(prefix) - PREFIX_CHARS - 1) + 1 :]
    if len(suffix) > SUFFIX_CHARS:
        suffix = suffix[: suffix.rindex("\n", 0, SUFFIX_CHARS) + 1]
    return BenchPrompt(id_, category, source[start:end], MAX_TOKENS[category], prefix, suffix)


def _line_starts(source: str) -> list[int]:
    return [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]


def _fim_line(id_: str, source: str) -> BenchPrompt:
    function, starts, lines = _function(id_, source), _line_starts(source), source.splitlines()
    code = [n for n in range(function.first, function.last + 1) if lines[n].strip() and lines[n].strip()[0] != "#"]
    number = code[choose(f"{id_} line", len(code))]
    indent = len(lines[number]) - len(lines[number].lstrip())
    column = indent + choose(f"{id_} column", len(lines[number]) - indent)
    return _fim(id_, "fim_line", source, starts[number] + column, starts[number] + len(lines[number]))


def _fim_block(id_: str, source: str) -> BenchPrompt:
    function, starts, lines = _function(id_, source), _line_starts(source), source.splitlines()
    indent = len(lines[function.first]) - len(lines[function.first].lstrip())
    end = starts[function.last] + len(lines[function.last])
    return _fim(id_, "fim_block", source, starts[function.first] + indent, end)


def _write_function(id_: str, source: str) -> BenchPrompt:
    function = _function(id_, source)
    answer = fenced(function.without_docstring)
    question = function_question(function.signature, function.doc)
    return BenchPrompt(id_, "function", answer, MAX_TOKENS["function"], question=question)


_CHANGES = (rename, change_number, remove_line, add_line)


def _edit(id_: str, source: str) -> BenchPrompt:
    change = valid_change(id_, [f.text for f in functions_of(source) if EDIT_CHARS[0] <= len(f.text) <= EDIT_CHARS[1]])
    question = edit_question(change.instruction, change.before)
    return BenchPrompt(id_, "edit", fenced(change.after), MAX_TOKENS["edit"], question=question)


def valid_change(id_: str, functions: Sequence[str]) -> CodeChange:
    """Try random changes of one of the functions until one gives different, valid code; return that change."""
    kind, code = choose(f"{id_} kind", len(_CHANGES)), functions[choose(id_, len(functions))]
    attempts = (_CHANGES[(kind + n) % len(_CHANGES)](code, random.Random(f"{id_} {n}")) for n in itertools.count())
    return next(change for change in attempts if change is not None and _is_valid(change))


def _is_valid(change: CodeChange) -> bool:
    before, after = _statements(change.before), _statements(change.after)
    return bool(before and after) and before != after


def _statements(code: str) -> str:
    """Return the function's syntax tree as text, without its docstring, for comparison; "" for invalid code."""
    try:
        function = ast.parse(code).body[0]
    except SyntaxError:
        return ""
    if isinstance(function, ast.FunctionDef) and ast.get_docstring(function) is not None:
        function.body = function.body[1:]
    return ast.dump(function)


def _prose(id_: str, source: str) -> BenchPrompt:
    function = _function(id_, source)
    question = explain_question(function.without_docstring)
    return BenchPrompt(id_, "prose", function.doc, MAX_TOKENS["prose"], question=question)


_MAKERS: dict[Category, Callable[[str, str], BenchPrompt]] = {
    "fim_line": _fim_line,
    "fim_block": _fim_block,
    "function": _write_function,
    "edit": _edit,
    "prose": _prose,
}
