"""Workspace index: definitions by name, limits, and modules by path."""

import os
import shutil
from pathlib import Path

import pytest

from localdflash.code.context import index
from localdflash.code.context.index import Workspace
from tests.code.context.conftest import PATIENCE, Opens, until


def test_definitions_by_name_in_order(open_workspace: Opens) -> None:
    opened = open_workspace(
        {"b.py": "\ndef f(x):\n    'Adds.'", "a/c.py": "class f: pass\ndef f(): pass", "x.go": "package x\nfunc f() {}"}
    )
    found = opened.workspace.find("f", "python")
    assert [(one.path, one.line, one.kind) for one in found] == [
        ("a/c.py", 0, "class"),
        ("a/c.py", 1, "function"),
        ("b.py", 1, "function"),
    ]
    assert found[2].text == "def f(x):\n    'Adds.'"
    assert [one.path for one in opened.workspace.find("f", "go")] == ["x.go"]
    assert opened.workspace.find("g", "python") == []
    assert opened.workspace.find("f", "") == []
    assert opened.warnings == []


def test_a_header_is_cpp_if_a_line_of_it_is(open_workspace: Opens) -> None:
    shape = "namespace geo {\nclass Circle {\n public:\n  double area() const;\n};\n}\n"
    opened = open_workspace({"circle.h": shape, "plain.h": "int area(int subclass);\n"})
    assert [(one.path, one.qualified) for one in opened.workspace.find("area", "cpp")] == [
        ("circle.h", "Circle.area"),
        ("plain.h", "area"),
    ]


@pytest.mark.parametrize(("limit", "name", "most"), [("MAX_FILES", "{}.py", 5), ("MAX_FOLDERS", "{}/a.py", 3)])
def test_too_many_files_or_folders_are_warned_of_once(
    open_workspace: Opens, monkeypatch: pytest.MonkeyPatch, limit: str, name: str, most: int
) -> None:
    monkeypatch.setattr(index, limit, most)
    opened = open_workspace({name.format(at): "def f(): pass" for at in range(9)})
    assert len(opened.paths("f")) == (most if limit == "MAX_FILES" else most - 1)
    opened.write("new.py", "def f(): pass")
    assert opened.workspace.settled(PATIENCE)
    (warning,) = opened.warnings
    assert ".localdflashignore" in warning


def test_modules_are_located_without_the_disk(open_workspace: Opens) -> None:
    opened = open_workspace(
        dict.fromkeys(("src/pkg/__init__.py", "src/pkg/a.py", "src/pkg/sub/b.py", "lib/x.py", "go/util/u.go"), "")
    )
    root = os.path.realpath(opened.root)

    def located(near: str, module: str) -> list[str]:
        return [path.removeprefix(root + "/") for path in opened.workspace.locate(f"{root}/{near}", module)]

    assert located("src/pkg/sub/b.py", "pkg/a.py") == ["src/pkg/a.py"]
    assert located("main.py", "pkg/a.py") == ["src/pkg/a.py"]
    assert located("src/pkg/sub/b.py", "./../a.py") == ["src/pkg/a.py"]
    assert located("src/pkg/a.py", "x.py") == ["lib/x.py"]
    assert located("go/main.go", "util/") == ["go/util/u.go"]
    assert located("main.py", "missing.py") == []
    assert located("main.py", "./../../../etc/passwd") == []
    assert opened.workspace.locate("/elsewhere/a.py", "pkg/a.py") == ()
    opened.write("missing.py", "")
    assert until(lambda: located("main.py", "missing.py") == ["missing.py"])


def test_a_folder_below_the_root_is_named_like_the_root(open_workspace: Opens, root: Path) -> None:
    folder = str(root)[1:]  # as /app/app below /app
    opened = open_workspace({f"{folder}/a.py": "def f(): pass", ".localdflashignore": f"/{folder}/private.py\n"})
    assert not opened.workspace.allowed(root / folder / "private.py")
    opened.write(f"{folder}/a.py", "def g(): pass")
    assert opened.comes("g", f"{folder}/a.py")


def test_folders_that_come_and_go_do_not_add_up(open_workspace: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAX_FOLDERS", 3)
    opened = open_workspace({"a.py": ""})
    for at in range(5):
        file = opened.write("new/b.py", f"def f{at}(): pass")
        assert opened.comes(f"f{at}", "new/b.py")
        shutil.rmtree(file.parent)
        assert opened.comes(f"f{at}")
    assert opened.warnings == []


def test_a_wider_root_gives_files_their_new_names(open_workspace: Opens, root: Path) -> None:
    opened = open_workspace({"pkg/a.py": "def f(): pass"}, [root / "pkg"])
    assert opened.paths("f") == ["a.py"]
    opened.workspace = Workspace([root, root / "pkg"], opened.warnings.append, opened.workspace)
    opened.workspace.start()
    assert opened.comes("f", "pkg/a.py")
    opened.workspace.close()
