"""Print every message that the product shows to a user, with its file and line, for review."""

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "localdflash"
KINDS = ("error", "say", "help", "command")
PRINTERS = ("say", "_say", "echo", "secho")


class ProductMessage(NamedTuple):
    """One message in a source file; `text` shows the interpolated parts of an f-string as `{expression}`."""

    file: Path
    line: int
    kind: str
    text: str


def find_messages(file: Path) -> list[ProductMessage]:
    """Return the messages of a Python file in the order of their lines."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    messages = [ProductMessage(file, line, kind, text) for line, kind, text in _messages_in(tree)]
    return sorted(messages, key=lambda message: message.line)


def _messages_in(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of each message in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            if text := message_text(node.exc.args[0]):
                yield node.lineno, "error", text
        elif isinstance(node, ast.Call):
            if _name_of(node.func) in PRINTERS and node.args and (text := message_text(node.args[0])):
                yield node.lineno, "say", text
            for keyword in node.keywords:
                if keyword.arg == "help" and (text := message_text(keyword.value)):
                    yield keyword.value.lineno, "help", text
        elif isinstance(node, ast.FunctionDef) and _is_command(node) and (docstring := ast.get_docstring(node)):
            yield node.lineno, "command", docstring


def message_text(node: ast.expr) -> str:
    """Return the text of a string expression, or "" if the expression holds no literal text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = [
            f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else message_text(part)
            for part in node.values
        ]
        return "".join(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [(side, message_text(side)) for side in (node.left, node.right)]
        return "".join(text or f"{{{ast.unparse(side)}}}" for side, text in sides) if any(t for _, t in sides) else ""
    if isinstance(node, ast.IfExp):
        texts = [text for text in (message_text(node.body), message_text(node.orelse)) if text]
        return " | ".join(texts)
    return ""


def _name_of(function: ast.expr) -> str:
    """Return the last part of a dotted name, or "" for other expressions."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_command(function: ast.FunctionDef) -> bool:
    """Return whether a click command or group decorates a function."""
    calls = [one.func if isinstance(one, ast.Call) else one for one in function.decorator_list]
    return any(_name_of(one) in ("command", "group") for one in calls)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print `file:line: kind: text` for each message."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "paths", nargs="*", type=Path, default=[PRODUCT], help="files or folders (default: localdflash)"
    )
    parser.add_argument("--kind", choices=KINDS, action="append", help="print only this kind; repeat for several")
    options = parser.parse_args(arguments)
    for path in options.paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for message in find_messages(file):
                if not options.kind or message.kind in options.kind:
                    absolute = file.resolve()
                    shown = absolute.relative_to(ROOT) if absolute.is_relative_to(ROOT) else file
                    sys.stdout.write(f"{shown}:{message.line}: {message.kind}: {' '.join(message.text.split())}\n")


if __name__ == "__main__":
    main()
