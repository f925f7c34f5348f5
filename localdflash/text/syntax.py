"""Syntax trees by tree-sitter, and the language of a file. Grammars are imported on first use.

Offsets in a tree are bytes of UTF-8. Text with errors has a tree, too: the parts in error are `ERROR` nodes.
"""

import re
from functools import cache
from importlib import import_module
from pathlib import PurePosixPath

from tree_sitter import Language, Node, Parser, Point, Tree

_GRAMMARS: dict[str, tuple[str, str]] = {  # language -> module, function
    "c": ("tree_sitter_c", "language"),
    "cpp": ("tree_sitter_cpp", "language"),
    "go": ("tree_sitter_go", "language"),
    "java": ("tree_sitter_java", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "lua": ("tree_sitter_lua", "language"),
    "python": ("tree_sitter_python", "language"),
    "rust": ("tree_sitter_rust", "language"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
}
_EXTENSIONS: dict[str, str] = {
    **dict.fromkeys((".c", ".h"), "c"),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".cu", ".cuh"), "cpp"),
    **dict.fromkeys((".js", ".jsx", ".mjs", ".cjs"), "javascript"),
    **dict.fromkeys((".ts", ".mts", ".cts"), "typescript"),
    **dict.fromkeys((".py", ".pyi"), "python"),
    ".go": "go",
    ".java": "java",
    ".lua": "lua",
    ".rs": "rust",
    ".tsx": "tsx",
}
_CPP_LINE = re.compile(r"^[ \t]*(?:namespace\b|template[ \t]*<|class[ \t]+\w|using[ \t]+\w)", re.MULTILINE)
_CHUNK_BYTES = 8192  # a parse blocks other threads, except while it reads the next chunk
_EDITOR_LANGUAGES = {"javascriptreact": "javascript", "typescriptreact": "tsx", "cuda": "cpp", "cuda-cpp": "cpp"}


def language_of(path: str, editor_name: str = "", text: str = "") -> str:
    """Return a file's language by the editor's language id, else by the extension; "" if it has no grammar.

    A `.h` file is C++ if its `text` has a line of C++.
    """
    name = _EDITOR_LANGUAGES.get(editor_name, editor_name)
    if name in _GRAMMARS:
        return name
    suffix = PurePosixPath(path).suffix.lower()
    return "cpp" if suffix == ".h" and _CPP_LINE.search(text) else _EXTENSIONS.get(suffix, "")


def parse(language: str, text: str) -> Tree | None:
    """Return the tree of a text (0.15 ms per 1 000 characters); None if the language has no grammar."""
    if language not in _GRAMMARS:
        return None
    source = text.encode("utf-8", "replace")
    return Parser(_grammar(language)).parse(lambda at, _: source[at : at + _CHUNK_BYTES])


def errors(tree: Tree) -> list[Node]:
    """Return the `ERROR` nodes and the nodes that the parser inserted for missing tokens."""
    found, stack = list[Node](), [tree.root_node]
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            found.append(node)
        if node.has_error:
            stack += node.children
    return found


class Surroundings:
    """Tree of the text around a cursor; parses text inserted at the cursor 20 times faster than a whole text."""

    def __init__(self, language: str, before: str, after: str) -> None:
        """Parse the text; `language` has to have a grammar."""
        self._parser = Parser(_grammar(language))
        self._before, self._after = before.encode("utf-8", "replace"), after.encode("utf-8", "replace")
        self._cursor = _end_point(self._before)
        self.tree = self._parser.parse(self._before + self._after)

    def with_text(self, text: str) -> Tree:
        """Return the tree with a text inserted at the cursor."""
        inserted = text.encode("utf-8", "replace")
        tree, at = self.tree.copy(), len(self._before)
        head = self._before + inserted
        tree.edit(at, at, len(head), self._cursor, self._cursor, _end_point(head))
        return self._parser.parse(head + self._after, tree)


def _end_point(text: bytes) -> Point:
    """Return the line and the column, in bytes, of a text's end."""
    return Point(text.count(b"\n"), len(text) - text.rfind(b"\n") - 1)


def has_grammar(language: str) -> bool:
    """Return whether a language has a grammar."""
    return language in _GRAMMARS


@cache
def _grammar(language: str) -> Language:
    module, function = _GRAMMARS[language]
    return Language(getattr(import_module(module), function)())
