"""Training examples from Python sources: code, fill-in-the-middle, and chats that write, explain and edit code.

An example is a sequence of texts and special tokens, so that source code which spells a special token remains text.
"""

import ast
import random
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

ExampleKind = Literal["code", "fim_line", "fim_block", "function", "explain", "edit"]
KINDS: tuple[ExampleKind, ...] = ("code", "fim_line", "fim_block", "function", "explain", "edit")

CHUNK_CHARS = (300, 2400)  # minimum and maximum of a code or FIM example
FUNCTION_CHARS = (60, 1500)  # minimum and maximum of a function in a chat


class Special(NamedTuple):
    """Special token, by its spelling in the vocabulary."""

    token: str


ExamplePiece = str | Special
END = Special("<|endoftext|>")
IM_START, IM_END = Special("<|im_start|>"), Special("<|im_end|>")
PREFIX, MIDDLE, SUFFIX = Special("<|fim_prefix|>"), Special("<|fim_middle|>"), Special("<|fim_suffix|>")


@dataclass(frozen=True)
class Example:
    """Training example: `prompt`, and the expected `answer` with its stop token."""

    kind: ExampleKind
    prompt: tuple[ExamplePiece, ...]
    answer: tuple[ExamplePiece, ...]


def examples(source: str, rng: random.Random) -> Iterator[Example]:
    """Yield all examples of one source file, in file order within each kind."""
    for chunk in _chunks(source, rng):
        yield _fill_in_the_middle(chunk, rng) if rng.random() < 0.75 else Example("code", (), (chunk, END))
    for function in functions(source):
        doc = ast.get_docstring(function.node)
        if doc and len(doc) < 500:
            yield _write_function(function, doc)
            if rng.random() < 0.35:
                yield _explain(function, doc)
        if rng.random() < 0.9 and (edit := _edit(function.text, rng)):
            yield edit


def _chunks(source: str, rng: random.Random) -> Iterator[str]:
    """Yield runs of whole lines of a random size, so that the model learns every length."""
    lines = source.splitlines(keepends=True)
    start = 0
    while start < len(lines):
        size, end = rng.randint(*CHUNK_CHARS), start
        while end < len(lines) and size > 0:
            size -= len(lines[end])
            end += 1
        chunk = "".join(lines[start:end])
        if len(chunk) >= CHUNK_CHARS[0] and not _is_boilerplate(chunk):
            yield chunk
        start = end


def _is_boilerplate(chunk: str) -> bool:
    lines = [line for line in chunk.splitlines() if line.strip()]
    dull = sum(line.lstrip().startswith(("#", "import ", "from ")) for line in lines)
    return not lines or dull > 0.7 * len(lines)


def _fill_in_the_middle(chunk: str, rng: random.Random) -> Example:
    kind, start, end = _middle_line(chunk, rng) if rng.random() < 0.45 else _middle_block(chunk, rng)
    prefix, middle, suffix = chunk[:start], chunk[start:end], chunk[end:]
    if rng.random() < 0.5:
        return Example(kind, (PREFIX, prefix, SUFFIX, suffix, MIDDLE), (middle, END))
    return Example(kind, (SUFFIX, suffix, PREFIX, prefix, MIDDLE), (middle, END))


def _middle_line(chunk: str, rng: random.Random) -> tuple[ExampleKind, int, int]:
    """Return a range from a random column of a non-blank line to its end."""
    lines = [m for m in re.finditer(r"[^\n]+", chunk) if m.group().strip()]
    line = rng.choice(lines)
    indent = len(line.group()) - len(line.group().lstrip())
    return "fim_line", line.start() + rng.randint(indent, len(line.group()) - 1), line.end()


def _middle_block(chunk: str, rng: random.Random) -> tuple[ExampleKind, int, int]:
    """Return a range from a random position of a line to the end of its indented block."""
    spans = list(re.finditer(r"[^\n]*\n?", chunk))[:-1]  # the last match is empty
    first = rng.randrange(len(spans))
    indent = _indent(spans[first].group())
    last = first
    for i in range(first + 1, min(first + 14, len(spans))):
        text = spans[i].group()
        if text.strip() and _indent(text) < indent:
            break
        if text.strip():
            last = i
    line = spans[first].group()
    column = indent if rng.random() < 0.7 else rng.randint(0, max(len(line.rstrip("\n")) - 1, 0))
    end = spans[last].start() + len(spans[last].group().rstrip("\n"))
    start = min(spans[first].start() + column, end)
    return "fim_block", start, end


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


@dataclass(frozen=True)
class SourceFunction:
    """Function of a source file, suitable for a question."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    text: str  # dedented source with its signature
    signature: str
    body: str  # without the docstring


def functions(source: str) -> Iterator[SourceFunction]:
    """Yield the functions of suitable size whose body starts on its own line; nothing for invalid code."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = source.split("\n")  # not splitlines: for ast a form feed does not end a line
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
            continue
        indent, own_lines = node.col_offset, lines[node.lineno - 1 : node.end_lineno]
        if any(line[:indent].strip() for line in own_lines):
            continue  # a multi-line string starts left of the indentation
        text = textwrap.dedent("\n".join(own_lines))
        has_doc = ast.get_docstring(node) is not None
        if not FUNCTION_CHARS[0] <= len(text) <= FUNCTION_CHARS[1] or node.body[0].lineno == node.lineno:
            continue
        if has_doc and len(node.body) == 1:
            continue
        signature = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.body[0].lineno - 1]))
        body_start = (node.body[0].end_lineno or 0) if has_doc else node.body[0].lineno - 1
        body = "\n".join(line[indent:] for line in lines[body_start : node.end_lineno])
        yield SourceFunction(node, text, signature.rstrip(), body.strip("\n"))


def _chat(kind: ExampleKind, question: str, answer: str) -> Example:
    prompt = (IM_START, f"user\n{question}", IM_END, "\n", IM_START, "assistant\n")
    return Example(kind, prompt, (answer, IM_END, "\n", END))


def fenced(code: str) -> str:
    """Return the code in a Markdown fence, as in the corpus's chats."""
    return f"```python\n{code}\n```"


def function_question(signature: str, doc: str) -> str:
    """Return the question to write a function by its docstring, as the target was trained on it."""
    return f"Write this Python function.\n{fenced(signature)}\n{doc}"


def _write_function(function: SourceFunction, doc: str) -> Example:
    answer = fenced(f"{function.signature}\n{function.body}")
    return _chat("function", function_question(function.signature, doc), answer)


def explain_question(code: str) -> str:
    """Return the question to explain code, as the target was trained on it."""
    return f"What does this code do?\n{fenced(code)}"


def _explain(function: SourceFunction, doc: str) -> Example:
    code = f"{function.signature}\n{function.body}"
    return _chat("explain", explain_question(code), doc)


def edit_question(instruction: str, code: str) -> str:
    """Return the question to edit code, as the target was trained on it."""
    return f"{instruction}\n{fenced(code)}"


def _edit(code: str, rng: random.Random) -> Example | None:
    """Return a chat that requests a random change and answers with all of the changed code; None if none applies."""
    change = rng.choice((rename, rename, change_number, remove_line, add_line))(code, rng)
    if change is None:
        return None
    return _chat("edit", edit_question(change.instruction, change.before), fenced(change.after))


class CodeChange(NamedTuple):
    """Edit instruction and the code before and after it."""

    instruction: str
    before: str
    after: str


KEYWORDS = frozenset(
    "self cls None True False return import from def class if else for while in not and or is".split()  # noqa: SIM905
)


def rename(code: str, rng: random.Random) -> CodeChange | None:
    """Rename one identifier that occurs more than once; None if there is none, or the new name exists."""
    names = re.findall(r"\b[a-z_][a-z_0-9]{2,}\b", code)
    repeated = sorted({n for n in names if names.count(n) > 1 and n not in KEYWORDS})
    if not repeated:
        return None
    old = rng.choice(repeated)
    new = rng.choice(
        ("result", "value", "item", "data", "name", "count", "path", "node", f"new_{old}", f"{old}_2", f"my_{old}")
    )
    if new in names:
        return None
    return CodeChange(f"Rename `{old}` to `{new}`.", code, re.sub(rf"\b{old}\b", new, code))


def change_number(code: str, rng: random.Random) -> CodeChange | None:
    """Change one number that occurs once; None if there is none, or it would not change."""
    numbers = re.findall(r"\b\d+\b", code)
    single = sorted({n for n in numbers if numbers.count(n) == 1})
    if not single:
        return None
    old, new = rng.choice(single), str(rng.randint(0, 200))
    if new == old:
        return None
    return CodeChange(f"Change `{old}` to `{new}`.", code, re.sub(rf"\b{old}\b", new, code))


def remove_line(code: str, rng: random.Random) -> CodeChange | None:
    """Remove one line that occurs once and is not the first; None if fewer than three qualify."""
    lines = code.split("\n")
    single = [i for i in range(1, len(lines)) if lines[i].strip() and lines.count(lines[i]) == 1]
    if len(single) < 3:
        return None
    i = rng.choice(single)
    return CodeChange(f"Remove the line `{lines[i].strip()}`.", code, "\n".join(lines[:i] + lines[i + 1 :]))


def add_line(code: str, rng: random.Random) -> CodeChange | None:
    """Return the inverse of `remove_line`: the code without one line, and the instruction to add it again, or None."""
    lines = code.split("\n")
    single = [
        i for i in range(2, len(lines)) if lines[i].strip() and lines.count(lines[i - 1]) == 1 and lines[i - 1].strip()
    ]
    if len(single) < 3:
        return None
    i = rng.choice(single)
    without = "\n".join(lines[:i] + lines[i + 1 :])
    return CodeChange(f"Add the line `{lines[i].strip()}` after `{lines[i - 1].strip()}`.", without, code)
