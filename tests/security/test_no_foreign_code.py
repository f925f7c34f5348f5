"""The source contains nothing that could run code from a model, a hub or a client."""

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted(
    path
    for folder in ("localdflash", "kernels", "lab", "lsp", "tui")
    for path in (ROOT / folder).rglob("*.py")
    if "prompts" not in path.parts  # programs to be completed, never imported
)
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
# `bench infill` runs a benchmark's tests, and says so, in a process that may touch nothing: see its docstring.
JAILED = {"lab/bench/jail.py": ["compile()", "exec()"]}
UNPICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
# What `runs_foreign_code` looks for is one of these names: modules without them need not be parsed.
NAMES = re.compile(
    "|".join((*RUNS_TEXT, *UNPICKLES, "kernels", "system", "popen", "torch.load", "trust_", "shell", "Environ"))
)


def runs_foreign_code(tree: ast.AST) -> Iterator[str]:
    """Yield the parts of a module that would run data as code or load a pickle."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"import {name.name}" for name in names if name.name.split(".")[0] in UNPICKLES)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in UNPICKLES | {"kernels"}:
                yield f"from {module}"
            case ast.Call(func=ast.Name(id=name)) if name in RUNS_TEXT:
                yield f"{name}()"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="system" | "popen")):
                yield "a shell"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load"), keywords=given):
                if not any(one.arg == "weights_only" and ast.unparse(one.value) == "True" for one in given):
                    yield "torch.load without weights_only"
            case ast.keyword(arg="trust_remote_code" | "shell", value=value) if ast.unparse(value) != "False":
                yield f"{node.arg}="
            case ast.Name(id="Environment") | ast.Attribute(attr="Environment"):
                yield "a Jinja environment that is no sandbox"


def test_no_source_runs_data_as_code() -> None:
    assert len(SOURCES) > 100
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in SOURCES}
    found = {name: {*runs_foreign_code(ast.parse(text))} for name, text in texts.items() if NAMES.search(text)}
    assert {name: sorted(ways) for name, ways in found.items() if ways} == JAILED
    assert [name for name, text in texts.items() if "trust_remote_code" in text] == []


def test_the_search_finds_foreign_code() -> None:
    for text in (
        *("eval(x)", "exec(x)", "import pickle", "from pickle import loads", "import os; os.system(x)"),
        *("torch.load(x)", "torch.load(x, weights_only=False)", "f(trust_remote_code=True)", "run(x, shell=True)"),
        *("jinja2.Environment()", "from jinja2 import Environment; Environment()", "from kernels import get_kernel"),
    ):
        assert NAMES.search(text)
        assert [*runs_foreign_code(ast.parse(text))], text


@pytest.mark.parametrize(("name", "least"), [("jinja2", "3.1.6"), ("torch", "2.6")])
def test_versions_with_known_vulnerabilities_are_excluded(name: str, least: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    needed = [one for one in map(Requirement, listed) if one.name == name]
    major, minor, *rest = least.split(".")
    below = f"{major}.{minor}.{int(rest[0]) - 1}" if rest else f"{major}.{int(minor) - 1}.9"
    assert needed
    assert not any(one.specifier.contains(below) for one in needed)
