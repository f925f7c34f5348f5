"""Parse the imports of a file into candidate paths of the imported modules.

Paths that start with `./` or `../` are relative to the importing file, others to a source folder. Folders end with `/`.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from tree_sitter import Node

from localdflash.text import syntax

MAX_HEAD_CHARS = 16_000  # at the start of a file, searched for imports
_CONTAINERS = {  # node types that may contain imports
    *("if_statement", "else_clause", "try_statement", "except_clause", "block", "import_declaration"),
    *("import_spec_list", "preproc_ifdef", "preproc_if", "linkage_specification", "lexical_declaration"),
    *("variable_declaration", "assignment_statement", "expression_list"),
}
_IMPORT_TYPES = {"import_statement", "import_from_statement", "import_declaration", "use_declaration"}
_SCRIPT_SUFFIXES = (".ts", ".tsx", ".d.ts", ".js", ".jsx", ".mjs", ".cjs", ".mts", ".cts")
_QUOTED = re.compile(r"""["'<]([^"'<>\n]+)["'>]""")
_WORD = re.compile(r"\w+")


class Import(NamedTuple):
    """Imported module: its candidate paths, best first, and the imported names, () for the module itself."""

    paths: tuple[str, ...]
    names: tuple[str, ...] = ()


def cut_head(text: str) -> str:
    """Return the whole lines within the first `MAX_HEAD_CHARS` of a file."""
    return text if len(text) <= MAX_HEAD_CHARS else text[: text.rfind("\n", 0, MAX_HEAD_CHARS) + 1]


@lru_cache(32)
def parse_imports(language: str, head: str) -> tuple[Import, ...]:
    """Return the imports in a file's `cut_head`, in order; () for an unknown language."""
    read = _READERS.get(language)
    tree = syntax.parse(language, head) if read else None
    if read is None or tree is None:
        return ()
    imports: list[Import] = []
    stack = [*reversed(tree.root_node.named_children)]
    while stack:
        node = stack.pop()
        if node.type in _CONTAINERS:
            stack += reversed(node.named_children)
        imports += read(node)
    return tuple(dict.fromkeys(imports))


@lru_cache(32)
def import_statements(language: str, head: str) -> tuple[str, ...]:
    """Return the texts of the top-level import statements in a file's `cut_head`."""
    tree = syntax.parse(language, head)
    nodes = tree.root_node.named_children if tree else ()
    return tuple(_text(node) for node in nodes if node.type in _IMPORT_TYPES)


def _text(node: Node | None) -> str:
    return node.text.decode("utf-8", "replace") if node is not None and node.text else ""


def _python(node: Node) -> Iterator[Import]:
    names = [_text(name.child_by_field_name("name") or name) for name in node.children_by_field_name("name")]
    if node.type == "import_statement":
        for name in names:
            yield Import(_python_files(name.replace(".", "/")))
    if node.type != "import_from_statement":
        return
    module = _text(node.child_by_field_name("module_name")).replace(" ", "")
    levels = len(module) - len(module.lstrip("."))
    folder = "./" + "../" * (levels - 1) if levels else ""
    path = folder + module.lstrip(".").replace(".", "/")
    yield Import(_python_files(path), tuple(names))
    for name in names:
        yield Import(_python_files(f"{path.rstrip('/')}/{name}"))


def _python_files(path: str) -> tuple[str, ...]:
    package = f"{path.rstrip('/')}/__init__.py"
    return (package,) if path.endswith("/") else (f"{path}.py", package, f"{path}.pyi")


def _script(node: Node) -> Iterator[Import]:
    """Yield the imports of relative modules in JavaScript and TypeScript; other modules are not in the workspace."""
    source = node.child_by_field_name("source")
    if node.type == "variable_declarator" and _text(node.child_by_field_name("value")).startswith("require("):
        source = node.child_by_field_name("value")
    match = _QUOTED.search(_text(source))
    if not match or not match[1].startswith("."):
        return
    path = match[1].rstrip("/")
    stem = re.sub(r"\.[mc]?jsx?$", "", path)
    files = (*(stem + end for end in _SCRIPT_SUFFIXES), *(f"{path}/index{end}" for end in _SCRIPT_SUFFIXES))
    yield Import((path, *files), tuple(_script_names(node)))


def _script_names(node: Node) -> Iterator[str]:
    """Yield imported names; none for `import * as module`, `require` and `export ... from`."""
    for clause in node.named_children if node.type == "import_statement" else ():
        for part in clause.named_children if clause.type == "import_clause" else ():
            if part.type == "identifier":
                yield _text(part)
            for name in part.named_children if part.type == "named_imports" else ():
                yield _text(name.child_by_field_name("name"))


def _go(node: Node) -> Iterator[Import]:
    if node.type == "import_spec" and (match := _QUOTED.search(_text(node).replace("`", '"'))):
        parts = match[1].strip("/").split("/")
        yield Import(tuple("/".join(parts[start:]) + "/" for start in range(len(parts))))


def _rust(node: Node) -> Iterator[Import]:
    """Yield the imports of Rust: `mod name;` and `use` of a path in this crate."""
    if node.type == "mod_item" and node.child_by_field_name("body") is None:
        name = _text(node.child_by_field_name("name"))
        yield Import((f"./{name}.rs", f"./{name}/mod.rs"))
    if node.type != "use_declaration":
        return
    text = _text(node.child_by_field_name("argument"))
    path, _, rest = text.partition("{")
    first, *modules = [part for part in path.split("::") if part]
    if first not in {"crate", "super", "self"}:
        return
    names = _WORD.findall(rest) or modules[-1:]
    folders = {"crate": ("src/", ""), "super": ("./", "../"), "self": ("./",)}[first]
    paths = ["/".join(modules[:end]) for end in range(len(modules), 0, -1)]
    files = [f"{folder}{path}{file}" for path in paths for folder in folders for file in (".rs", "/mod.rs")]
    roots = [f"{folder}{file}.rs" for folder in folders for file in ("lib", "mod", "main")]
    yield Import((*files, *roots), tuple(names))


def _c(node: Node) -> Iterator[Import]:
    if node.type == "preproc_include" and (match := _QUOTED.search(_text(node))):
        yield Import((f"./{match[1]}", match[1]))


def _java(node: Node) -> Iterator[Import]:
    if node.type != "import_declaration":
        return
    text = _text(node).removeprefix("import").strip(" ;\n")
    static = text.startswith("static ")
    parts = text.removeprefix("static ").replace(" ", "").split(".")
    if parts[-1] == "*" and not static:
        yield Import(("/".join(parts[:-1]) + "/",))
        return
    owner = parts[:-1] if static else parts
    yield Import(("/".join(owner) + ".java",), (parts[-1],))


def _lua(node: Node) -> Iterator[Import]:
    if node.type == "function_call" and _text(node).startswith("require") and (match := _QUOTED.search(_text(node))):
        path = match[1].replace(".", "/")
        yield Import((f"{path}.lua", f"{path}/init.lua"))


_READERS = {
    **dict.fromkeys(("c", "cpp"), _c),
    **dict.fromkeys(("javascript", "tsx", "typescript"), _script),
    **{"go": _go, "java": _java, "lua": _lua, "python": _python, "rust": _rust},
}
